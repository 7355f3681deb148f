"""How a run went: losses, kappa and accuracy along training."""

import pathlib

import matplotlib.pyplot as plt

from tfvmf.errors import UserError
from tfvmf.evaluation import plots
from tfvmf.evaluation.run import Evaluation
from tfvmf.training import read_metrics

_TERMS = ("loss", "contrastive", "cross_entropy", "alignment", "penalty")


def run(evaluation: Evaluation) -> dict[str, object]:
    """Draws `curves.png` from the run's metrics."""
    lines = read_metrics(evaluation.workdir)
    trained = [line for line in lines if "loss" in line]
    if not trained:
        raise UserError(f"{evaluation.workdir}/metrics.jsonl has no lines: nothing to draw")
    path = evaluation.directory("curves") / "curves.png"
    draw(path, trained, [line for line in lines if "eval_kappa" in line])
    return {"final_loss": trained[-1]["loss"], "epochs": trained[-1]["epoch"]}


def draw(
    path: pathlib.Path, trained: list[dict[str, float]], monitored: list[dict[str, float]]
) -> None:
    """Three panels: terms of the loss, kappa with its spread, k-NN accuracy."""
    epochs = [line["epoch"] for line in trained]
    steps_per_epoch = trained[-1]["step"] / trained[-1]["epoch"]
    seen = [line["step"] / steps_per_epoch for line in monitored]
    with plt.rc_context(plots.STYLE):
        figure, (losses, kappa, accuracy) = plt.subplots(1, 3, figsize=(11, 3))
        for term in _TERMS:
            if term in trained[0]:
                losses.plot(epochs, [line[term] for line in trained], label=term)
        losses.set_title("loss and its terms", loc="left")
        losses.legend()
        if "kappa" in trained[0]:
            mean = [line["kappa"] for line in trained]
            kappa.plot(epochs, mean, color=plots.BLUE, label="training views (band: spread)")
            low, high = (
                [line["kappa"] + sign * line["kappa_std"] for line in trained] for sign in (-1, 1)
            )
            kappa.fill_between(epochs, low, high, color=plots.BLUE, alpha=0.15, linewidth=0)
            held_out = [line["eval_kappa"] for line in monitored]
            kappa.plot(seen, held_out, "o", color=plots.ORANGE, label="held-out images")
            kappa.legend()
        kappa.set_title("kappa", loc="left")
        if monitored and "knn_accuracy" in monitored[0]:
            values = [line["knn_accuracy"] for line in monitored]
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
