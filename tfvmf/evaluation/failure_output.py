"""The table and the picture of the suite failure."""

import pathlib
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from tfvmf.evaluation import histograms, plots, risk


def table_markdown(results: dict[str, Any]) -> str:
    """All numbers, a row each, with the paper's beside where it has one."""
    printed, score = results["paper"], results["score"]
    rows = [
        ("correct predictions", f"{results['correct']:,}", f"{printed['correct']:,}"),
        ("wrong predictions", f"{results['wrong']:,}", f"{printed['wrong']:,}"),
        (f"mean {score}, correct", _number(results["mean_correct"]), ""),
        (f"mean {score}, wrong", _number(results["mean_wrong"]), ""),
        *(
            (f"{name} p", _number(results[f"{name}_p"], ".2e"), _number(beside, ".2e", none=""))
            for name, beside in (
                ("smallest", printed["smallest_p"]),
                ("median", None),
                ("largest", printed["largest_p"]),
            )
        ),
        ("AUROC, wrong is positive", _number(results["auroc"]), ""),
        ("AURC", _number(results["aurc"]), ""),
        ("AURC of an oracle", _number(results["oracle_aurc"]), ""),
        ("E-AURC, the excess over it", _number(results["excess_aurc"]), ""),
        ("error rate, the AURC of chance", _number(results["error_rate"]), ""),
        ("nearest training image is of the same class", _number(results["nearest_accuracy"]), ""),
        ("R-AUROC, another class is positive", _number(results["r_auroc"]), ""),
        *(
            (f"less certain when cropped to {entry['area']:.0%}", f"{entry['share']:.1%}", "")
            for entry in results["crops"]
        ),
    ]
    lines = [
        f"# {score.capitalize()} and failure: {results['method']} on {results['data']}\n",
        f"{results['images']:,} test images, step {results['step']}, predictions of the linear "
        f"probe. p: Mann-Whitney U (two-sided), {results['rounds']} rounds of 100 draws with "
        "replacement from either group. Above 0.5, AUROC and R-AUROC say that the score is less "
        "certain where it should be. The paper's column is CIFAR-10, ResNet-50, 1000 epochs.\n",
    ]
    if "note" in results:
        lines.append(f"Note: {results['note']}.\n")
    lines += ["| | tfvmf | paper |", "| --- | ---: | ---: |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _number(value: float | None, form: str = ".4f", *, none: str = "none") -> str:
    return none if value is None else format(value, form)


def draw(
    path: pathlib.Path,
    results: dict[str, Any],
    values: np.ndarray,
    uncertainty: np.ndarray,
    wrong: np.ndarray,
) -> None:
    """Three panels: the score of both groups, risk against coverage, the crop test.

    Args:
        path: The PNG.
        results: What the suite returns.
        values: The score [N].
        uncertainty: The score [N], turned so that high is uncertain.
        wrong: bool [N].
    """
    with plt.rc_context(plots.STYLE):
        figure, (groups, coverage, crops) = plt.subplots(1, 3, figsize=(11, 3.2))
        _draw_groups(groups, results, values, wrong)
        _draw_risk(coverage, results, uncertainty, wrong)
        _draw_crops(crops, results)
        figure.tight_layout(w_pad=2.5)
        plots.save(figure, path)


def _draw_groups(
    axis: Axes, results: dict[str, Any], values: np.ndarray, wrong: np.ndarray
) -> None:
    histograms.draw_groups(
        axis,
        {
            f"correct ({results['correct']:,})": values[~wrong],
            f"wrong ({results['wrong']:,})": values[wrong],
        },
    )
    axis.set_xlabel(results["score"])
    axis.set_ylim(top=1.3 * axis.get_ylim()[1])  # room for the legend
    axis.legend(loc="upper left")
    auroc = results["auroc"]
    known = "" if auroc is None else f", AUROC {auroc:.3f}"
    axis.set_title(f"correct and wrong predictions{known}", loc="left")


def _draw_risk(
    axis: Axes, results: dict[str, Any], uncertainty: np.ndarray, wrong: np.ndarray
) -> None:
    covered = np.arange(1, len(wrong) + 1) / len(wrong)
    # The first few images make a ragged start that says nothing.
    shown = slice(min(50, len(wrong) // 10), None)
    for name, curve, color in (
        (results["score"], risk.risk_coverage(uncertainty, wrong), plots.BLUE),
        ("oracle", risk.oracle(wrong), plots.GREEN),
    ):
        axis.plot(covered[shown], curve[shown], color=color, label=f"{name} {risk.aurc(curve):.3f}")
    rate = results["error_rate"]
    axis.axhline(rate, color=plots.GRAY, linestyle=":", label=f"chance {rate:.3f}")
    axis.set_xlabel("coverage: share of images that are not refused")
    axis.set_ylabel("error rate of these")
    axis.set_xlim(0, 1)
    axis.set_ylim(bottom=0)
    axis.legend(title="AURC", alignment="left")
    axis.set_title(f"risk and coverage, excess AURC {results['excess_aurc']:.3f}", loc="left")


def _draw_crops(axis: Axes, results: dict[str, Any]) -> None:
    areas = [entry["area"] for entry in results["crops"]]
    shares = [entry["share"] for entry in results["crops"]]
    places = range(len(areas))
    axis.bar(places, shares, color=plots.BLUE, width=0.6)
    for place, share in zip(places, shares, strict=True):
        axis.annotate(
            f"{share:.0%}", (place, share), xytext=(0, 2), textcoords="offset points", ha="center"
        )
    axis.axhline(0.5, color=plots.GRAY, linestyle=":")
    axis.set_xticks(places, [f"{area:.0%}" for area in areas])
    axis.set_ylim(0, 1.08)
    axis.set_yticks(np.linspace(0, 1, 5), [f"{level:.0%}" for level in np.linspace(0, 1, 5)])
    axis.grid(visible=False, axis="x")
    axis.set_xlabel("area of the image that a random crop keeps")
    axis.set_ylabel("share of images")
    axis.set_title("less certain when cropped (chance: 50 %)", loc="left")
