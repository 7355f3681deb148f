"""How did training go? Curves of losses, kappa and accuracy."""

import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from tfvmf.evaluation import plots
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, NotApplicable, Options

# Keys of a line besides the loss and its terms.
_NOT_TERMS = {
    *("member", "step", "epoch", "cosine", "kappa", "kappa_std"),
    *("learning_rate", "images_per_second"),
}

Lines = Sequence[Mapping[str, float]]


def measure(subject: Subject, options: Options) -> Measured:
    """Draws `curves.png` from the training log, with all members of an ensemble."""
    del options
    members = itertools.groupby(subject.metrics, lambda line: line.get("member", 0))
    logged = [lines for lines in (_split(list(group)) for _, group in members) if lines[0]]
    if not logged:
        raise NotApplicable("the suite curves has nothing to draw: no training was logged")
    trained, monitored = logged[0]
    first, last, epochs = trained[0]["loss"], trained[-1]["loss"], trained[-1]["epoch"]
    knn = monitored[-1].get("knn_accuracy") if monitored else None
    several = f"{len(logged)} members, " if len(logged) > 1 else ""
    moved = "fell" if last < first else "did not fall: it went"
    results = {"first_loss": first, "final_loss": last, "epochs": epochs, "members": len(logged)}
    return Measured(
        verdict=f"{several}{epochs:.3g} epochs; the loss {moved} from {first:.3f} to {last:.3f}",
        results={**results, "knn_accuracy": knn},
        headlines=[Headline("loss at the end", last), Headline("k-NN accuracy in training", knn)],
        files={"curves.png": lambda path: draw(path, logged)},
    )


def _split(lines: Lines) -> tuple[Lines, Lines]:
    """The lines about training, and those about held-out images."""
    trained = [line for line in lines if "loss" in line and line.get("epoch")]
    return trained, [line for line in lines if "eval_kappa" in line]


def term_names(trained: Lines) -> list[str]:
    """The loss and its terms that every line has, in the order of the first line."""
    common = set(trained[0]).intersection(*trained) - _NOT_TERMS
    return [name for name in trained[0] if name in common]


def draw(path: pathlib.Path, members: Sequence[tuple[Lines, Lines]]) -> None:
    """Three panels: loss terms, kappa with its spread, k-NN accuracy; members share colors."""

    def column(lines: Lines, name: str) -> list[float]:
        return [line.get(name, math.nan) for line in lines]  # a damaged line may lack it

    with plots.drawing(path, 11, 3) as figure:
        losses, kappa, accuracy = figure.subplots(1, 3)
        for number, (trained, monitored) in enumerate(members):
            epochs = column(trained, "epoch")
            steps_per_epoch = trained[-1]["step"] / trained[-1]["epoch"]
            seen = [line["step"] / steps_per_epoch for line in monitored]
            first = "" if number == 0 else "_"  # an underscore hides the label
            for place, term in enumerate(term_names(trained)):
                losses.plot(epochs, column(trained, term), f"C{place}", label=first + term)
            if "kappa" in trained[0]:
                mean, spread = column(trained, "kappa"), column(trained, "kappa_std")
                low, high = np.subtract(mean, spread), np.add(mean, spread)
                views, held_out = first + "training views (band: spread)", first + "held-out images"
                kappa.plot(epochs, mean, color=plots.BLUE, label=views)
                kappa.fill_between(epochs, low, high, color=plots.BLUE, alpha=0.15, linewidth=0)
                values = column(monitored, "eval_kappa")
                kappa.plot(seen, values, "o", color=plots.ORANGE, label=held_out)
                kappa.legend()
            if monitored and "knn_accuracy" in monitored[0]:
                values = column(monitored, "knn_accuracy")
                accuracy.plot(seen, values, "o-", color=plots.GREEN)
                style = {"xytext": (0, 6), "textcoords": "offset points", "ha": "right"}
                accuracy.annotate(f"{values[-1]:.3f}", (seen[-1], values[-1]), **style)
        losses.legend()
        accuracy.set_ylim(0, 1.08)
        several = f" of {len(members)} members" if len(members) > 1 else ""
        titles = ("loss and its terms", "kappa", "k-NN accuracy on held-out images")
        end = 1.02 * max(trained[-1]["epoch"] for trained, _ in members)
        for axis, title in zip((losses, kappa, accuracy), titles, strict=True):
            axis.set(title=title + several, xlabel="epoch", xlim=(0, end))
        figure.tight_layout()
