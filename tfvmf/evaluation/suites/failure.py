"""Does the score tell wrong predictions from correct ones? The paper's Figure 2B, and more.

The predictions are the linear probe's; its own maximum softmax is the control. Beyond the paper:
risk against coverage (the error rate after rejecting the least certain images), retrieval, and
crops (a part of an image should be less certain than the whole).
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats
import tensorflow as tf
from sklearn.metrics import roc_auc_score

from tfvmf import data, neighbors
from tfvmf.data import image_ops
from tfvmf.evaluation import paper, plots
from tfvmf.evaluation.scores import Score
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, Options, Results
from tfvmf.evaluation.suites.probe import linear_probe
from tfvmf.evaluation.tables import Cell, Table
from tfvmf.progress import Progress

ROUNDS, DRAWS = 50, 100
AREAS = (0.75, 0.5, 0.25, 0.1)
_BATCH = 250


def measure(subject: Subject, options: Options) -> Measured:
    """Measures the main score as a detector of errors."""
    train_labels, test_labels = subject.labels("failure")
    outputs, probe = subject.embed(subject.test), linear_probe(subject)
    score = subject.score(options)
    values = subject.main_score(subject.test, outputs, options)
    probabilities = probe.probabilities(outputs["features"])
    wrong = probe.classes[probabilities.argmax(axis=1)] != test_labels
    curves = {score.title: score.uncertainty(values), "maximum softmax": -probabilities.max(axis=1)}
    found, softmax = (detect(uncertainty, wrong) for uncertainty in curves.values())
    _, rows = neighbors.nearest(outputs["features"], subject.embed(subject.train)["features"], k=1)
    same_class = train_labels[rows[:, 0]] == test_labels
    cropped = crop_test(subject.test, subject.uncertainty(options), values, score)
    results: dict[str, Any] = {
        "score": score.title,
        "expected_sign": score.expected_sign,
        **compare(values, wrong, sign=score.expected_sign),
        **found,
        "softmax": softmax,
        # Without any classifier; positive if the nearest training image has another class.
        "nearest_accuracy": float(same_class.mean()),
        "r_auroc": auroc(~same_class, curves[score.title]),
        "mean_whole": values.mean(),
        "crop_share": np.mean([entry["share"] for entry in cropped]),
        "crops": cropped,
        "paper": paper.FAILURE,
    }
    errors = f"{results['wrong']:,} errors"
    chance = f"softmax {softmax['augrc']:.4f}, chance {wrong.mean() / 2:.4f}"
    return Measured(
        verdict=verdict(results),
        results=results,
        headlines=[
            Headline(f"AUROC of errors by {score.title}", found["auroc"], note=errors),
            Headline("AUROC of errors by the probe's softmax", softmax["auroc"]),
            Headline("AUGRC (0 is best)", found["augrc"], form=".4f", note=chance),
            Headline("one-sided p, all images", results["p"], form=".1e", note=errors),
        ],
        blocks=_blocks(results),
        files={"failure.png": lambda path: draw(path, results, values, curves, wrong)},
    )


def compare(
    values: np.ndarray, wrong: np.ndarray, *, sign: int = -1, seed: int = 0
) -> dict[str, Any]:
    """Tests whether wrong predictions (bool [N]) are less certain: one-sided Mann-Whitney U.

    `p` is for all images, None if a group is empty. `smallest_p`, `median_p` and `largest_p` are
    from the paper's rounds of draws from either group, with replacement. They are too small if a
    group is smaller than a draw; a `note` then says so. `sign` is `Score.expected_sign`.
    """
    groups = {"correct": values[~wrong], "wrong": values[wrong]}
    results: dict[str, Any] = {name: len(group) for name, group in groups.items()}
    for name, group in groups.items():
        results[f"mean_{name}"] = float(group.mean()) if len(group) else None
    results |= dict.fromkeys(("p", "smallest_p", "median_p", "largest_p")) | {"rounds": ROUNDS}
    small = [f"{len(group)} {name}" for name, group in groups.items() if len(group) < DRAWS]
    empty = [name for name, group in groups.items() if not len(group)]
    if empty:
        return results | {"note": f"no prediction is {empty[0]}: there is nothing to compare"}
    if small:
        drawn = "predictions, each drawn many times: p is too small"
        results["note"] = f"only {' and '.join(small)} {drawn}"
    how = {"axis": -1, "method": "asymptotic", "alternative": "less" if sign > 0 else "greater"}
    rng = np.random.default_rng(seed)
    draws = [rng.choice(group, (ROUNDS, DRAWS)) for group in groups.values()]
    # NaN: all images have the same score.
    p, rounds = (
        np.nan_to_num(scipy.stats.mannwhitneyu(*pair, **how).pvalue, nan=1.0)
        for pair in (groups.values(), draws)
    )
    found = {"smallest_p": rounds.min(), "median_p": np.median(rounds), "largest_p": rounds.max()}
    return results | {name: float(value) for name, value in {"p": p, **found}.items()}


def detect(uncertainty: np.ndarray, wrong: np.ndarray) -> dict[str, float | None]:
    """The score [N] as a detector of wrong predictions (bool [N]), the positives.

    `aurc` is the mean of the selective risk over coverages, `excess_aurc` its excess over an
    oracle's. `error_rate` is the AURC of chance, whose AUGRC is half of that. `coverage` is the
    largest share of the most certain images with an error rate of at most 5 %.
    """
    risk, oracle = (risk_coverage(by, wrong) for by in (uncertainty, wrong.astype(float)))
    area, best = float(risk.mean()), float(oracle.mean())
    return {
        "auroc": auroc(wrong, uncertainty),
        "aurc": area,
        "oracle_aurc": best,
        "excess_aurc": area - best,
        "augrc": augrc(risk),
        "error_rate": float(wrong.mean()),
        "coverage": float(1 + np.flatnonzero(risk <= 0.05).max(initial=-1)) / len(risk),
    }


def auroc(positive: np.ndarray, values: np.ndarray) -> float | None:
    """AUROC, None if there is only one class."""
    return float(roc_auc_score(positive, values)) if 0 < positive.sum() < len(positive) else None


def risk_coverage(uncertainty: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Selective risk [N]: entry i - 1 is the error rate of the i most certain; ties averaged."""
    _, group, size = np.unique(uncertainty, return_inverse=True, return_counts=True)
    expected = (np.bincount(group, wrong) / size)[np.sort(group)]
    return np.cumsum(expected) / np.arange(1, len(wrong) + 1)


def augrc(risk: np.ndarray) -> float:
    """Area under the generalized risk-coverage curve (arXiv 2407.01032), in [0, 0.5].

    At coverage i / N the generalized risk is risk_i i / N, the share of accepted and wrong images.
    """
    joint = risk * np.arange(1, len(risk) + 1) / len(risk)
    return float(joint.mean() - joint[-1] / (2 * len(risk)))


def crop_test(
    source: data.Source,
    measure: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    whole: np.ndarray,
    score: Score,
) -> list[dict[str, float]]:
    """How often an image is less certain once it is cropped, for each of `AREAS`.

    The place of the square depends only on the image's index. `measure` maps uint8 images to
    scores by name; `whole` is the score [N] of the uncropped images. `share` is the share of images
    that became less certain (ties count half), `mean` the mean score.
    """
    size = len(whole)
    corners = np.random.default_rng(0).random((size, 2))
    cropped = np.empty((len(AREAS), size))
    with Progress(size * len(AREAS), unit="image", description="crops") as progress:
        for start in range(0, size, _BATCH):
            part = slice(start, min(start + _BATCH, size))
            images = source.images(part.start, part.stop)
            for row, area in enumerate(AREAS):
                cropped[row, part] = measure(crop(images, corners[part], area))[score.name]
                progress.update(len(images))
    before, after = score.uncertainty(whole), score.uncertainty(cropped)
    shares = (after > before).mean(axis=1) + 0.5 * (after == before).mean(axis=1)
    return [
        {"area": area, "share": float(share), "mean": float(values.mean())}
        for area, share, values in zip(AREAS, shares, cropped, strict=True)
    ]


def crop(images: np.ndarray, corners: np.ndarray, area: float) -> np.ndarray:
    """Crops squares of a share `area` at `corners` [N, 2] in [0, 1], resized to [N, S, S, 3]."""
    size = images.shape[1]
    side = size * np.sqrt(area)
    top, left = (corners * (size - side)).T
    boxes = np.stack([top, left, top + side, left + side], axis=1)
    pixels = tf.cast(images, tf.float32) / 255.0
    cut = image_ops.resized_crop(pixels, tf.constant(boxes, tf.float32), size)
    return np.round(255.0 * cut.numpy()).astype(np.uint8)


def verdict(results: Results) -> str:
    """The results of `compare` and `detect` in one sentence."""
    score, auroc, errors = results["score"], results["auroc"], results["wrong"]
    lower = "lower" if results["expected_sign"] < 0 else "higher"
    if auroc is None:
        return results["note"]
    known = f"AUROC {auroc:.3f}, p {results['p']:.1e}"
    if min(errors, results["correct"]) < 20:
        few = f"{errors} errors" if errors < 20 else f"{results['correct']} correct predictions"
        return f"only {few}: too few to judge {score} by ({known})"
    if results["p"] < 0.01:
        return f"{score} is {lower} where the probe errs ({known})"
    if results["p"] > 0.99:
        return f"{score} misleads: it is not {lower} where the probe errs ({known})"
    return f"{score} does not tell errors from correct predictions ({known})"


def _blocks(results: Results) -> list[str | Table]:
    """All numbers, next to the control's and the paper's."""
    printed, score, softmax = results["paper"], results["score"], results["softmax"]
    small = f" ({results['note']})" if "note" in results else ""
    rows: list[Sequence[Cell]] = []

    def add(words: str, key: str, form: str = ".4f") -> None:
        values = (source.get(key) for source in (results, softmax, printed))
        rows.append([words, *(None if v is None else format(v, form) for v in values)])

    for name in ("correct", "wrong"):
        add(f"{name} predictions", name, ",")
        add(f"mean {score}, {name}", f"mean_{name}")
    add("p, all images", "p", ".2e")
    for name in ("smallest", "median", "largest"):
        add(f"{name} p of {results['rounds']} rounds{small}", f"{name}_p", ".2e")
    add("AUROC, wrong is positive", "auroc")
    add("AUGRC, generalized risk and coverage", "augrc")
    add("AURC, risk and coverage", "aurc")
    add("AURC of an oracle", "oracle_aurc")
    add("E-AURC, the excess over it", "excess_aurc")
    add("error rate: AURC of chance, twice its AUGRC", "error_rate")
    add("coverage at an error rate of 5 %", "coverage")
    add("nearest training image is of the same class", "nearest_accuracy")
    add("R-AUROC, another class is positive", "r_auroc")
    for entry in results["crops"]:
        share = f"{entry['share']:.1%}"
        rows.append([f"less certain when cropped to {entry['area']:.0%}", share, None, None])
    lower = "lower" if results["expected_sign"] < 0 else "higher"
    return [
        "Predictions of the linear probe, whose maximum softmax is the control. p: Mann-Whitney's "
        f"U, one-sided ({score} is {lower} on errors); as in the paper, also in "
        f"{results['rounds']} rounds of 100 draws with replacement from either group. Above 0.5, "
        "AUROC and R-AUROC mean that the score is less certain where it should be. The paper's "
        "column is CIFAR-10, ResNet-50, 1000 epochs.",
        Table(["", score, "softmax", "paper"], rows, align="lrrr", title="Failures"),
    ]


def draw(
    path: pathlib.Path,
    results: Results,
    values: np.ndarray,
    curves: Mapping[str, np.ndarray],
    wrong: np.ndarray,
) -> None:
    """Three panels: score [N] of both groups, risk against coverage of `curves`, crop test."""
    with plots.drawing(path, 11, 3.2) as figure:
        left, middle, right = figure.subplots(1, 3)
        groups = {"correct": values[~wrong], "wrong": values[wrong]}
        plots.draw_groups(left, {f"{name} ({len(each):,})": each for name, each in groups.items()})
        left.set_ylim(top=1.3 * left.get_ylim()[1])  # room for the legend
        left.legend(loc="upper left")
        known = "" if results["auroc"] is None else f", AUROC {results['auroc']:.3f}"
        left.set(xlabel=results["score"], title=f"correct and wrong predictions{known}")

        covered, rate = np.arange(1, len(wrong) + 1) / len(wrong), wrong.mean()
        # The curve of the first few images is too noisy to be useful.
        shown, highest = slice(min(50, len(wrong) // 10), None), 0.0
        colors = (plots.BLUE, plots.ORANGE, plots.GREEN)
        drawn = {**curves, "oracle": wrong.astype(float)}
        for (name, uncertainty), color in zip(drawn.items(), colors, strict=True):
            risk = risk_coverage(uncertainty, wrong)
            highest = max(highest, risk[shown].max())
            middle.plot(covered[shown], risk[shown], color=color, label=f"{name} {augrc(risk):.4f}")
        middle.axhline(rate, color=plots.GRAY, linestyle=":", label=f"chance {rate / 2:.4f}")
        middle.set(
            xlabel="coverage: share of images that are accepted",
            ylabel="error rate of accepted images",
            title="risk and coverage",
            xlim=(0, 1),
            ylim=(0, max(0.01, 1.9 * highest)),  # with room for the legend above
        )
        middle.legend(title="AUGRC", alignment="left", loc="upper left")

        areas, shares = ([entry[key] for entry in results["crops"]] for key in ("area", "share"))
        kept, labels = ([f"{share:.0%}" for share in each] for each in (areas, shares))
        plots.draw_shares(right, kept, shares, labels, width=0.6, color=plots.BLUE)
        right.axhline(0.5, color=plots.GRAY, linestyle=":")
        right.set(
            xlabel="area of the image that a random crop keeps",
            ylabel="share of images",
            title="less certain when cropped (chance: 50 %)",
            ylim=(0, 1.08),
        )
        figure.tight_layout(w_pad=2.5)
