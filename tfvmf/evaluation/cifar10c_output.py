"""Tables and pictures of the suite cifar10c."""

import pathlib
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np

from tfvmf.data.corruptions import SEVERITIES
from tfvmf.evaluation import paper, plots
from tfvmf.evaluation.correlation import Correlation
from tfvmf.evaluation.scores import SCORES
from tfvmf.files import write_json, write_text

_SHOWN = ("gaussian_blur", "fog", "gaussian_noise", "pixelate", "zoom_blur")


def write(directory: pathlib.Path, results: dict, correlations: dict[str, Correlation]) -> None:
    """Writes `table.csv`, `table.md`, `kappa.png` and, last, `results.json`."""
    write_text(directory / "table.csv", table_csv(correlations))
    write_text(directory / "table.md", table_markdown(results))
    draw_kappa(directory / "kappa.png", correlations, score=results["score"])
    write_json(directory / "results.json", results)


def table_csv(correlations: dict[str, Correlation]) -> str:
    """A line a corruption: correlations, and kappa at the six levels."""
    levels = ",".join(["kappa_clean", *(f"kappa_{severity}" for severity in SEVERITIES)])
    lines = [f"corruption,spearman,pearson,per_image,per_image_low,per_image_high,{levels}"]
    for name, value in correlations.items():
        numbers = [value.spearman, value.pearson, value.per_image, *value.interval, *value.means]
        lines.append(",".join([name, *(f"{number:.6g}" for number in numbers)]))
    return "\n".join(lines) + "\n"


def table_markdown(results: dict) -> str:
    """The paper's Table 1 and its appendix table with a row of ours, corruptions as rows."""
    score = results["score"].capitalize()
    parts = [
        f"# {score} against corruption: {results['method']} on {results['data']}",
        f"{results['images']:,} images, step {results['step']}; {results['corruptions']}.",
        f"A negative correlation says that {results['score']} falls as the corruption grows; the "
        f"expected sign is {'minus' if results['expected_sign'] < 0 else 'plus'}. The columns of "
        "the paper are its 1000 epochs of ResNet-50 on CIFAR-10-C.",
    ]
    if not results["data"].startswith("cifar10 "):
        parts.append("The images are not CIFAR-10's: the protocol is the same, the data are not.")
    for title, key, printed in (
        ("Spearman", "spearman", paper.TABLE_1),
        ("Pearson", "pearson", paper.TABLE_1_PEARSON),
    ):
        measured: dict[str, float] = results[key]
        lines = [
            f"## {title} correlation of six points\n",
            "| corruption | tfvmf | " + " | ".join(f"paper: {row}" for row in printed) + " |",
            "| --- |" + " ---: |" * (1 + len(printed)),
        ]
        for name, value in measured.items():
            beside = " | ".join(f"{row[name]:.3f}" for row in printed.values())
            lines.append(f"| {name.replace('_', ' ')} | {value:.3f} | {beside} |")
        means = " | ".join(f"{np.mean(list(row.values())):.3f}" for row in printed.values())
        lines.append(f"| **mean** | **{results[f'mean_{key}']:.3f}** | {means} |")
        parts.append("\n".join(lines))
    lines = [
        "## Spearman correlation over all (image, severity) pairs\n",
        "| corruption | tfvmf | 95 % interval |",
        "| --- | ---: | ---: |",
    ]
    for name, entry in results["per_image"].items():
        low, high = entry["interval"]
        lines.append(
            f"| {name.replace('_', ' ')} | {entry['spearman']:.3f} | {low:.3f} to {high:.3f} |"
        )
    lines.append(f"| **mean** | **{results['mean_per_image']:.3f}** | |")
    parts.append("\n".join(lines))
    if len(results["scores"]) > 1:
        parts.append(_beside(results["scores"]))
    return "\n\n".join(parts) + "\n"


def _beside(scores: dict[str, dict]) -> str:
    """Mean correlations of several scores, each with the sign that it should have."""
    lines = [
        "## Scores beside each other, means over the corruptions\n",
        "| score | expected sign | Spearman of six points | Pearson | over all images |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for name, entry in scores.items():
        numbers = " | ".join(
            f"{entry[key]:.3f}" for key in ("mean_spearman", "mean_pearson", "mean_per_image")
        )
        sign = "minus" if entry["expected_sign"] < 0 else "plus"
        lines.append(f"| {SCORES[name].title} | {sign} | {numbers} |")
    return "\n".join(lines)


def draw_kappa(
    path: pathlib.Path, correlations: dict[str, Correlation], *, score: str = "kappa"
) -> None:
    """The mean score against severity, a panel a corruption."""
    with plt.rc_context(plots.STYLE):
        columns = 6
        rows = -(-len(correlations) // columns)
        figure, axes = plt.subplots(
            rows, columns, figsize=(11, 1.75 * rows), sharex=True, sharey=True, squeeze=False
        )
        for axis in axes.flat[len(correlations) :]:
            axis.set_visible(False)
        for axis, (name, value) in zip(axes.flat, correlations.items(), strict=False):
            falls = value.spearman <= 0
            axis.plot(
                value.means, marker="o", markersize=3, color=plots.BLUE if falls else plots.ORANGE
            )
            axis.axhline(value.means[0], color=plots.GRAY, linewidth=0.8, linestyle=":")
            axis.set_title(f"{name.replace('_', ' ')}  {value.spearman:+.2f}", loc="left")
            axis.set_xticks(range(len(value.means)))
        mean = np.mean([value.spearman for value in correlations.values()])
        figure.suptitle(
            f"Mean {score} against severity (0: clean). Spearman in the titles, mean {mean:+.3f}; "
            f"orange: {score} rises",
            x=0.01, ha="left", fontsize=10,
        )  # fmt: skip
        figure.tight_layout()
        plots.save(figure, path)


def draw_examples(
    path: pathlib.Path,
    clean: np.ndarray,
    corrupted: Callable[[str, int], np.ndarray],
    kappa: dict[str, np.ndarray],
) -> None:
    """One image from mild to severe under several corruptions, each with its kappa.

    Args:
        path: The PNG.
        clean: Images [N, H, W, 3].
        corrupted: (corruption, severity) -> the same images, corrupted.
        kappa: Corruption -> scores [6, N] of these images.
    """
    # An image of typical kappa, not one that makes a point.
    scores = next(iter(kappa.values()))[0]
    chosen = int(np.argsort(scores)[len(scores) // 2])
    with plt.rc_context({**plots.STYLE, "axes.grid": False}):
        columns = 1 + len(SEVERITIES)
        figure, axes = plt.subplots(
            len(_SHOWN), columns, figsize=(1.35 * columns, 1.6 * len(_SHOWN))
        )
        for row, name in zip(axes, _SHOWN, strict=True):
            images = [clean, *(corrupted(name, severity) for severity in SEVERITIES)]
            for level, (axis, batch) in enumerate(zip(row, images, strict=True)):
                axis.imshow(batch[chosen], interpolation="nearest")
                axis.set_xticks([])
                axis.set_yticks([])
                axis.set_xlabel(f"{kappa[name][level, chosen]:.2f}", labelpad=2)
            row[0].set_ylabel(name.replace("_", " "))
        for level, axis in enumerate(axes[0]):
            axis.set_title("clean" if level == 0 else f"severity {level}")
        figure.suptitle("One image from mild to severe, with its kappa below", fontsize=10)
        figure.tight_layout()
        plots.save(figure, path)
