"""Does the score tell wrong predictions from correct ones? The paper's Figure 2B, and beyond it.

The predictions are the linear probe's. A score of uncertainty passes if it is higher where the
probe errs: kappa, if it is lower there. Beyond the paper: risk against coverage (the error rate
that is left when the least certain images are refused), retrieval, and crops (a part of an image
says less than the whole, so the score should say so too).
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
import scipy.stats
import tensorflow as tf
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score

from tfvmf import data, neighbors
from tfvmf.data import image_ops
from tfvmf.evaluation import paper, plots
from tfvmf.evaluation.scores import Score
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, Options, Results, Suite, at_step
from tfvmf.evaluation.suites.probe import linear_probe
from tfvmf.evaluation.tables import Cell, Page, Table
from tfvmf.progress import Progress

ROUNDS, DRAWS = 50, 100
AREAS = (0.75, 0.5, 0.25, 0.1)
_BATCH = 250


def _measure(subject: Subject, options: Options) -> Measured:
    """Measures the main score as a detector of errors."""
    train_labels, test_labels = subject.labels("failure", limit=options.max_images)
    embeddings = subject.embed(subject.test, limit=options.max_images)
    score = subject.score(options)
    values = subject.main_score(subject.test, embeddings, options)
    wrong = linear_probe(subject).predict(embeddings["features"]) != test_labels
    uncertainty = score.uncertainty(values)
    bank = subject.embed(subject.train)["features"]
    _, rows = neighbors.nearest(embeddings["features"], bank, k=1)
    results: dict[str, Any] = {
        "score": score.title,
        "expected_sign": score.expected_sign,
        "data": subject.test.name,
        "images": len(values),
        "method": subject.name,
        **subject.facts,
        **compare(values, wrong),
        **detect(uncertainty, wrong),
        **retrieve(uncertainty, train_labels[rows[:, 0]] == test_labels),
        "mean_whole": float(values.mean()),
    }
    measure = subject.uncertainty(options)
    cropped = crop_test(subject.test, lambda images: measure(images)[score.name], values, score)
    results |= {
        "crop_share": float(np.mean([entry["share"] for entry in cropped])),
        "crops": cropped,
        "paper": paper.FAILURE,
    }
    return Measured(
        results, {"failure.png": lambda path: draw(path, results, values, uncertainty, wrong)}
    )


def compare(
    values: np.ndarray,
    wrong: np.ndarray,
    *,
    rounds: int = ROUNDS,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Any]:
    """The paper's test: Mann-Whitney U (two-sided) on draws from either group, several times.

    Args:
        values: Scores [N].
        wrong: bool [N].
        rounds: Bootstrap rounds.
        draws: Images drawn from each group in a round, with replacement.
        seed: Seed of the draws.

    Returns:
        Sizes and means of the groups; the smallest, median and largest p over the rounds, None
        where a group is empty; a `note` where a group is smaller than a draw from it.
    """
    groups = {"correct": values[~wrong], "wrong": values[wrong]}
    results: dict[str, Any] = {name: len(group) for name, group in groups.items()}
    for name, group in groups.items():
        results[f"mean_{name}"] = float(group.mean()) if len(group) else None
    results |= {"smallest_p": None, "median_p": None, "largest_p": None, "rounds": rounds}
    small = [f"{len(group)} {name}" for name, group in groups.items() if len(group) < draws]
    empty = [name for name, group in groups.items() if not len(group)]
    if empty:
        return results | {"note": f"no prediction is {empty[0]}: there is nothing to compare"}
    if small:
        results["note"] = (
            f"only {' and '.join(small)} predictions: each round draws {draws} of them with "
            "repetition, and its p is too small"
        )
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(group, (rounds, draws)) for group in groups.values()]
    p = scipy.stats.mannwhitneyu(*drawn, axis=1, method="asymptotic").pvalue
    p = np.nan_to_num(p, nan=1.0)  # a score that is the same for all images
    return results | {
        "smallest_p": float(p.min()),
        "median_p": float(np.median(p)),
        "largest_p": float(p.max()),
    }


def detect(uncertainty: np.ndarray, wrong: np.ndarray) -> dict[str, float | None]:
    """The score [N] as a detector of wrong predictions (bool [N]).

    `auroc`: a wrong prediction is positive. `aurc`: area under the risk-coverage curve;
    `excess_aurc`: by how much it exceeds that of an oracle; `error_rate`: that of chance.
    """
    area, best = aurc(risk_coverage(uncertainty, wrong)), aurc(oracle(wrong))
    return {
        "auroc": _auroc(wrong, uncertainty),
        "aurc": area,
        "oracle_aurc": best,
        "excess_aurc": area - best,
        "error_rate": float(wrong.mean()),
    }


def retrieve(uncertainty: np.ndarray, same_class: np.ndarray) -> dict[str, float | None]:
    """The score [N] as a detector of bad neighbors: no classifier takes part.

    Args:
        uncertainty: [N], high is uncertain.
        same_class: bool [N], whether the nearest training image is of the image's class.

    Returns:
        `nearest_accuracy`, the share of these, and `r_auroc` (a neighbor of another class is
        positive, which is the same as certainty predicting one of the same class).
    """
    return {
        "nearest_accuracy": float(same_class.mean()),
        "r_auroc": _auroc(~same_class, uncertainty),
    }


def _auroc(positive: np.ndarray, values: np.ndarray) -> float | None:
    """AUROC, None where there is only one class."""
    return float(roc_auc_score(positive, values)) if 0 < positive.sum() < len(positive) else None


def risk_coverage(uncertainty: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Selective risk [N]: entry i - 1 is the error rate of the i most certain of N images.

    Where images are equally certain, the mean over all their orders: a score that says nothing
    has the overall error rate everywhere.

    Args:
        uncertainty: [N], high is uncertain.
        wrong: bool [N], which predictions are wrong.
    """
    _, group, size = np.unique(uncertainty, return_inverse=True, return_counts=True)
    expected = (np.bincount(group, wrong) / size)[np.sort(group)]
    return np.cumsum(expected) / np.arange(1, len(wrong) + 1)


def oracle(wrong: np.ndarray) -> np.ndarray:
    """The selective risk [N] of a score that refuses every wrong prediction before a right one."""
    return risk_coverage(wrong.astype(float), wrong)


def aurc(risk: np.ndarray) -> float:
    """The area under the risk-coverage curve: the mean of the selective risk over coverages."""
    return float(risk.mean())


def crop_test(
    source: data.Source,
    measure: Callable[[np.ndarray], np.ndarray],
    whole: np.ndarray,
    score: Score,
    *,
    seed: int = 0,
) -> list[dict[str, float]]:
    """How often an image is less certain once it is cropped.

    Each of the first N images is cut to a square of a share of its area and scaled up again. Where
    the square lies is drawn once per image, from `seed` and its index alone: the same at every
    area, and whatever the number of images.

    Args:
        source: The images.
        measure: From uint8 images [n, S, S, 3] to the score [n].
        whole: The score [N] of the images as they are.
        score: Which way it points.
        seed: Seed of the positions.

    Returns:
        For each of `AREAS` its `area`, the `share` of images that became less certain (a draw
        counts half), and the `mean` of the score.
    """
    size = len(whole)
    corners = np.random.default_rng(seed).random((size, 2))
    cropped = np.empty((len(AREAS), size))
    with Progress(size * len(AREAS), unit="image", description="crops") as progress:
        for start in range(0, size, _BATCH):
            part = slice(start, min(start + _BATCH, size))
            images = source.images(part.start, part.stop)
            for row, area in enumerate(AREAS):
                cropped[row, part] = measure(crop(images, corners[part], area))
                progress.update(len(images))
    before, after = score.uncertainty(whole), score.uncertainty(cropped)
    shares = (after > before).mean(axis=1) + 0.5 * (after == before).mean(axis=1)
    return [
        {"area": area, "share": float(share), "mean": float(values.mean())}
        for area, share, values in zip(AREAS, shares, cropped, strict=True)
    ]


def crop(images: np.ndarray, corners: np.ndarray, area: float) -> np.ndarray:
    """Cuts squares out of images and scales them up to the images' size.

    Args:
        images: uint8 [N, S, S, 3].
        corners: [N, 2] in [0, 1], where the square lies between the top (left) and the bottom
            (right) of the image.
        area: The share of the image that is left.

    Returns:
        uint8 [N, S, S, 3].
    """
    size = images.shape[1]
    side = size * np.sqrt(area)
    top, left = (corners * (size - side)).T
    boxes = np.stack([top, left, top + side, left + side], axis=1)
    cut = image_ops.resized_crop(
        tf.cast(images, tf.float32) / 255.0, tf.constant(boxes, tf.float32), size
    )
    return np.round(255.0 * cut.numpy()).astype(np.uint8)


def _page(results: Results) -> Page:
    """All numbers, with the paper's beside where it has one."""
    printed, score = results["paper"], results["score"]
    rows: list[Sequence[Cell]] = [
        ["correct predictions", f"{results['correct']:,}", f"{printed['correct']:,}"],
        ["wrong predictions", f"{results['wrong']:,}", f"{printed['wrong']:,}"],
        [f"mean {score}, correct", _number(results["mean_correct"]), None],
        [f"mean {score}, wrong", _number(results["mean_wrong"]), None],
        *(
            [f"{name} p", _number(results[f"{name}_p"], ".2e"), _small(printed.get(f"{name}_p"))]
            for name in ("smallest", "median", "largest")
        ),
        ["AUROC, wrong is positive", _number(results["auroc"]), None],
        ["AURC", results["aurc"], None],
        ["AURC of an oracle", results["oracle_aurc"], None],
        ["E-AURC, the excess over it", results["excess_aurc"], None],
        ["error rate, the AURC of chance", results["error_rate"], None],
        ["nearest training image is of the same class", results["nearest_accuracy"], None],
        ["R-AUROC, another class is positive", _number(results["r_auroc"]), None],
        *(
            [f"less certain when cropped to {entry['area']:.0%}", f"{entry['share']:.1%}", None]
            for entry in results["crops"]
        ),
    ]
    blocks: list[str | Table] = [
        f"{results['images']:,} test images{at_step(results)}, predictions of the linear probe. p: "
        f"Mann-Whitney U (two-sided), {results['rounds']} rounds of 100 draws with replacement "
        "from either group. Above 0.5, AUROC and R-AUROC say that the score is less certain where "
        "it should be. The paper's column is CIFAR-10, ResNet-50, 1000 epochs.",
    ]
    if "note" in results:
        blocks.append(f"Note: {results['note']}.")
    blocks.append(Table(columns=["", "tfvmf", "paper"], rows=rows, form=".4f", align="lrr"))
    title = f"{score.capitalize()} and failure: {results['method']} on {results['data']}"
    return Page(title, blocks)


def _number(value: float | None, form: str = ".4f") -> str:
    return "none" if value is None else format(value, form)


def _small(value: float | None) -> str | None:
    return None if value is None else f"{value:.2e}"


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
    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(11, 3.2))
        groups, coverage, crops = figure.subplots(1, 3)
        _draw_groups(groups, results, values, wrong)
        _draw_risk(coverage, results, uncertainty, wrong)
        _draw_crops(crops, results)
        figure.tight_layout(w_pad=2.5)
        plots.save(figure, path)


def _draw_groups(
    axis: Axes, results: dict[str, Any], values: np.ndarray, wrong: np.ndarray
) -> None:
    plots.draw_groups(
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
        (results["score"], risk_coverage(uncertainty, wrong), plots.BLUE),
        ("oracle", oracle(wrong), plots.GREEN),
    ):
        axis.plot(covered[shown], curve[shown], color=color, label=f"{name} {aurc(curve):.3f}")
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


failure = Suite(
    name="failure",
    title="Failures",
    measure=_measure,
    page=_page,
    headlines=lambda results: [
        Headline("AUROC of failures", results["auroc"]),
        Headline(
            "largest p, right against wrong",
            results["largest_p"],
            form=".1e",
            printed=paper.FAILURE["largest_p"],
        ),
    ],
)
