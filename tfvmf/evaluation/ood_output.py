"""Tables and pictures of the suite ood."""

import pathlib
import re
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from tfvmf.evaluation import histograms, plots
from tfvmf.evaluation.scores import SCORES

METRICS = {"auroc": "AUROC", "aupr_out": "AUPR out", "aupr_in": "AUPR in", "fpr95": "FPR95"}
_COLUMNS = 3


def title(name: str) -> str:
    """A detector's name for people: `f_res+kappa` is F_res + kappa."""
    space, plus, score = name.partition("+")
    if plus:
        return f"{title(space)} + {SCORES[score].title}"
    if name in SCORES:
        return SCORES[name].title
    for ending, words in (
        ("_relative_mahalanobis", ", relative Mahalanobis"),
        ("_mahalanobis", ", Mahalanobis"),
    ):
        if name.endswith(ending):
            return title(name.removesuffix(ending)) + words
    return name.capitalize()


def headline(spec: str, measured: dict[str, dict[str, float]]) -> str:
    """One line of AUROCs."""
    numbers = (f"{title(name)} {values['auroc']:.4f}" for name, values in measured.items())
    return f"{spec}: AUROC of {'; '.join(numbers)}"


def table_csv(results: dict[str, Any]) -> str:
    """A line a foreign set and detector."""
    lines = [",".join(["in", "out", "detector", *METRICS])]
    for spec, entry in results["out"].items():
        for name, values in entry["scores"].items():
            numbers = (f"{values[metric]:.6g}" for metric in METRICS)
            lines.append(",".join([f'"{results["in"]}"', f'"{spec}"', name, *numbers]))
    return "\n".join(lines) + "\n"


def table_markdown(results: dict[str, Any]) -> str:
    """The paper's Table 2, extended: a table a foreign set, a row a detector."""
    score = results["score"]
    parts = [
        f"# Foreign images: {results['method']}, {results['in']} is familiar",
        f"{results['images']:,} familiar test images, {results['train_images']:,} training images, "
        f"step {results['step']}. Foreign images are positive in AUROC, AUPR out and FPR95 (the "
        "share of familiar images flagged where 95 % of the foreign ones are), familiar ones in "
        "AUPR in.",
        "F_res, F_ssl: mean cosine distance to the 5 nearest training images, in the features of "
        f"a supervised and of this run. + {score}: {score} is one more feature, standardized on "
        "the training images and given the spread of an average (unit-normalized) feature of "
        "theirs. Mahalanobis: to the nearest class, relative: minus that to all training images.",
    ]
    if "f_res" in results:
        parts.append(f"F_res: {results['f_res']}.")
    if "note" in results:
        parts.append(f"Note: {results['note']}.")
    for spec, entry in results["out"].items():
        lines = [
            f"## {spec}: {entry['images']:,} images\n",
            f"| detector | {' | '.join(METRICS.values())} | AUROC in the paper |",
            f"| --- |{' ---: |' * (len(METRICS) + 1)}",
        ]
        for name, values in entry["scores"].items():
            numbers = " | ".join(f"{values[metric]:.4f}" for metric in METRICS)
            printed = entry["paper"].get(name)
            beside = "" if printed is None else f"{printed:.4f}"
            lines.append(f"| {title(name)} | {numbers} | {beside} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def draw(
    directory: pathlib.Path,
    inside: str,
    spec: str,
    scores_inside: dict[str, np.ndarray],
    scores: dict[str, np.ndarray],
    measured: dict[str, dict[str, float]],
) -> None:
    """Histograms of familiar and foreign images, a panel a detector, in `<out>.png`.

    Args:
        directory: Where to write.
        inside: The familiar set.
        spec: The foreign set.
        scores_inside: Detector -> scores [N] of the familiar images.
        scores: Detector -> scores [M] of the foreign images.
        measured: Detector -> its metrics.
    """
    with plt.rc_context(plots.STYLE):
        rows = -(-len(scores) // _COLUMNS)
        figure, axes = plt.subplots(rows, _COLUMNS, figsize=(10, 2 * rows), squeeze=False)
        for axis in axes.flat[len(scores) :]:
            axis.set_visible(False)
        for axis, name in zip(axes.flat, scores, strict=False):
            groups = {"familiar": scores_inside[name], "foreign": scores[name]}
            histograms.draw_groups(axis, groups)
            turned = name in SCORES and SCORES[name].expected_sign < 0
            shown = f"minus {title(name)}" if turned else title(name)
            axis.set_title(f"{shown}  {measured[name]['auroc']:.3f}", loc="left")
        figure.suptitle(
            f"Scores of {_short(inside)} (familiar, blue) and {_short(spec)} (foreign, orange); "
            "AUROC in the titles",
            x=0.01, ha="left", fontsize=10,
        )  # fmt: skip
        figure.tight_layout()
        plots.save(figure, directory / f"{file_name(spec)}.png")


def _short(spec: str) -> str:
    """The end of a long path says more than its beginning."""
    return spec if len(spec) <= 28 else f"...{spec[-25:]}"


def file_name(spec: str) -> str:
    """A spec as a file name: `folder:/my/images` is folder_my_images."""
    return re.sub(r"[^\w.-]+", "_", spec).strip("_.")
