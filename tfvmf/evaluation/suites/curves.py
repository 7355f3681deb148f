"""How did training go? Losses, kappa and accuracy along it."""

import math
import pathlib
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from tfvmf.evaluation import plots
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Measured, NotApplicable, Options, Suite

# What a line holds beside the loss and its terms.
_NOT_TERMS = frozenset(
    ("step", "epoch", "cosine", "kappa", "kappa_std", "learning_rate", "images_per_second")
)

Lines = Sequence[Mapping[str, float]]


def _measure(subject: Subject, options: Options) -> Measured:
    """Draws `curves.png` from what was logged in training."""
    del options
    trained = [line for line in subject.metrics if "loss" in line and line.get("epoch")]
    if not trained:
        raise NotApplicable("the suite curves has nothing to draw: no training was logged")
    monitored = [line for line in subject.metrics if "eval_kappa" in line]
    results = {"final_loss": trained[-1]["loss"], "epochs": trained[-1]["epoch"]}
    return Measured(results, {"curves.png": lambda path: draw(path, trained, monitored)})


def term_names(trained: Lines) -> list[str]:
    """The loss and all its terms that every line holds, in the order of the first."""
    return [
        name
        for name in trained[0]
        if name not in _NOT_TERMS and all(name in line for line in trained)
    ]


def draw(path: pathlib.Path, trained: Lines, monitored: Lines) -> None:
    """Three panels: terms of the loss, kappa with its spread, k-NN accuracy."""

    def column(lines: Lines, name: str) -> list[float]:
        return [line.get(name, math.nan) for line in lines]  # which a damaged line may lack

    epochs = column(trained, "epoch")
    steps_per_epoch = trained[-1]["step"] / trained[-1]["epoch"]
    seen = [line["step"] / steps_per_epoch for line in monitored]
    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(11, 3))
        losses, kappa, accuracy = figure.subplots(1, 3)
        for term in term_names(trained):
            losses.plot(epochs, column(trained, term), label=term)
        losses.set_title("loss and its terms", loc="left")
        losses.legend()
        if "kappa" in trained[0]:
            mean, spread = column(trained, "kappa"), column(trained, "kappa_std")
            kappa.plot(epochs, mean, color=plots.BLUE, label="training views (band: spread)")
            low, high = np.subtract(mean, spread), np.add(mean, spread)
            kappa.fill_between(epochs, low, high, color=plots.BLUE, alpha=0.15, linewidth=0)
            held_out = column(monitored, "eval_kappa")
            kappa.plot(seen, held_out, "o", color=plots.ORANGE, label="held-out images")
            kappa.legend()
        kappa.set_title("kappa", loc="left")
        if monitored and "knn_accuracy" in monitored[0]:
            values = column(monitored, "knn_accuracy")
            accuracy.plot(seen, values, "o-", color=plots.GREEN)
            accuracy.annotate(
                f"{values[-1]:.3f}", (seen[-1], values[-1]), xytext=(0, 6),
                textcoords="offset points", ha="right",
            )  # fmt: skip
        accuracy.set_title("k-NN accuracy on held-out images", loc="left")
        for axis in (losses, kappa, accuracy):
            axis.set_xlabel("epoch")
        figure.tight_layout()
        plots.save(figure, path)


curves = Suite(name="curves", title="Training", measure=_measure)
