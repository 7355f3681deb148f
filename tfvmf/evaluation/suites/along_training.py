"""How soon is kappa reliable? The suite cifar10c at every checkpoint that a run keeps."""

import pathlib
from typing import Any

from tfvmf.errors import UserError
from tfvmf.evaluation import plots
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, Options
from tfvmf.evaluation.suites.cifar10c import MEANS, corrupted_images, measure_corruption, verdict
from tfvmf.evaluation.tables import Table
from tfvmf.training import checkpoints


def measure(subject: Subject, options: Options) -> Measured:
    """Measures correlations with severity at each checkpoint, on the same images."""
    if subject.workdir is None:
        raise UserError(f"{subject.name} was not loaded from a run: it has no checkpoints")
    kept, corrupted = checkpoints.paths(subject.workdir), corrupted_images(subject, options)
    rows: list[dict[str, Any]] = []
    for checkpoint in kept:
        at = subject.at(checkpoint)
        results, _ = measure_corruption(at, options, corrupted)
        rows.append({"step": at.facts["step"], **{key: results[key] for key in MEANS}})
        mean = f"mean Spearman {results['mean_spearman']:+.3f}"
        print(f"step {at.facts['step']}: {verdict(results)}, {mean}", flush=True)
    last = rows[-1]["step"]
    return Measured(
        verdict=f"at the last of {len(rows)} checkpoints {verdict(results)}",
        results={"checkpoints": rows},
        headlines=[Headline(f"mean Spearman at step {last}", rows[-1]["mean_spearman"], "+.3f")],
        blocks=[Table.of(rows)],
        files={"along_training.png": lambda path: _draw(path, rows)},
    )


def _draw(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    with plots.drawing(path, 6, 3) as figure:
        axis = figure.subplots()
        steps = [row["step"] for row in rows]
        for key, words in (("mean_spearman", "six points"), ("mean_per_image", "all images")):
            axis.plot(steps, [row[key] for row in rows], "o-", label=words)
        title = "mean Spearman correlation of the score with severity"
        limits = {"xlim": (0, 1.05 * steps[-1]), "ylim": (-1.05, 1.05)}
        axis.set(title=title, xlabel="training step", **limits)
        axis.legend()
