"""Does the score tell wrong predictions from correct ones? The paper's Figure 2B, and beyond it.

The predictions are the linear probe's. A score of uncertainty passes if it is higher where the
probe errs: kappa, if it is lower there. Beyond the paper: risk against coverage (the error rate
that is left when the least certain images are refused), retrieval, and crops (a part of an image
says less than the whole, so the score should say so too). The control is the probe's own maximum
softmax, which sees the labels.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats
import tensorflow as tf
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
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
    embeddings, score = subject.embed(subject.test), subject.score(options)
    values = subject.main_score(subject.test, embeddings, options)
    probabilities = linear_probe(subject).probabilities(embeddings["features"])
    wrong = linear_probe(subject).classes[probabilities.argmax(axis=1)] != test_labels
    curves = {score.title: score.uncertainty(values), "maximum softmax": -probabilities.max(axis=1)}
    found, softmax = (detect(uncertainty, wrong) for uncertainty in curves.values())
    bank = subject.embed(subject.train)["features"]
    _, rows = neighbors.nearest(embeddings["features"], bank, k=1)
    uncertainty = subject.uncertainty(options)
    cropped = crop_test(subject.test, lambda images: uncertainty(images)[score.name], values, score)
    results: dict[str, Any] = {
        "score": score.title,
        "expected_sign": score.expected_sign,
        **compare(values, wrong, sign=score.expected_sign),
        **found,
        "softmax": softmax,
        **retrieve(curves[score.title], train_labels[rows[:, 0]] == test_labels),
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
    """Are wrong predictions (bool [N]) less certain? Mann-Whitney's U of scores [N], one-sided.

    `p` is of all images. The paper's protocol draws from either group, with replacement, several
    times: `smallest_p`, `median_p`, `largest_p`. From a group that is smaller than a draw, images
    are drawn many times over, and these p are too small, which a `note` says. A p is None where a
    group is empty. `sign` is -1 if a certain image has a high score, 1 if a low one.
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
        results["note"] = (
            f"only {' and '.join(small)} predictions, each drawn many times: p is too small"
        )

    def test(correct: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        side = "less" if sign > 0 else "greater"
        p = scipy.stats.mannwhitneyu(
            correct, wrong, axis=-1, method="asymptotic", alternative=side
        ).pvalue
        return np.nan_to_num(p, nan=1.0)  # a score that is the same for all images

    rng = np.random.default_rng(seed)
    p = test(*(rng.choice(group, (ROUNDS, DRAWS)) for group in groups.values()))
    return results | {
        "p": float(test(*groups.values())),
        "smallest_p": float(p.min()),
        "median_p": float(np.median(p)),
        "largest_p": float(p.max()),
    }


def detect(uncertainty: np.ndarray, wrong: np.ndarray) -> dict[str, float | None]:
    """The score [N] as a detector of wrong predictions (bool [N]).

    `auroc`: a wrong prediction is positive. `aurc`, `augrc`: areas under the risk-coverage curve
    and the generalized one; `excess_aurc`: by how much the former exceeds that of an oracle;
    `error_rate`: the AURC of chance, whose AUGRC is half of that; `coverage`: the largest share of
    images, the most certain ones, with an error rate of at most 5 %.
    """
    risk, best = risk_coverage(uncertainty, wrong), aurc(oracle(wrong))
    return {
        "auroc": _auroc(wrong, uncertainty),
        "aurc": aurc(risk),
        "oracle_aurc": best,
        "excess_aurc": aurc(risk) - best,
        "augrc": augrc(risk),
        "error_rate": float(wrong.mean()),
        "coverage": coverage(risk),
    }


def retrieve(uncertainty: np.ndarray, same_class: np.ndarray) -> dict[str, float | None]:
    """The uncertainty [N] as a detector of bad neighbors: no classifier takes part.

    `nearest_accuracy`: the share of images whose nearest training image is of their class (bool
    [N]); `r_auroc`: a neighbor of another class is positive.
    """
    accuracy = float(same_class.mean())
    return {"nearest_accuracy": accuracy, "r_auroc": _auroc(~same_class, uncertainty)}


def _auroc(positive: np.ndarray, values: np.ndarray) -> float | None:
    """AUROC, None where there is only one class."""
    return float(roc_auc_score(positive, values)) if 0 < positive.sum() < len(positive) else None


def risk_coverage(uncertainty: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Selective risk [N]: entry i - 1 is the error rate of the i most certain of N images.

    Where images are equally certain, the mean over all their orders: a score that says nothing
    has the overall error rate everywhere.
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


def augrc(risk: np.ndarray) -> float:
    """The area under the generalized risk-coverage curve (arXiv 2407.01032), in [0, 0.5].

    The generalized risk at coverage i / N is the share of all N images that are accepted and wrong,
    risk_i i / N; between coverages it is linear. It weighs every error alike, where AURC counts
    those among the most certain images many times over.
    """
    joint = risk * np.arange(1, len(risk) + 1) / len(risk)
    return float(joint.mean() - joint[-1] / (2 * len(risk)))


def coverage(risk: np.ndarray, limit: float = 0.05) -> float:
    """The largest share of images whose selective risk [N] is at most `limit`; 0 if none has it."""
    fine = np.flatnonzero(risk <= limit)
    return float(fine[-1] + 1) / len(risk) if len(fine) else 0.0


def crop_test(
    source: data.Source,
    measure: Callable[[np.ndarray], np.ndarray],
    whole: np.ndarray,
    score: Score,
    *,
    seed: int = 0,
) -> list[dict[str, float]]:
    """How often an image is less certain once it is cropped.

    Each image is cut to a square of a share of its area and scaled up again. Where the square lies
    is drawn once per image, from `seed` and its index alone. `measure` gives the score [n] of uint8
    images, `whole` is that [N] of the images as they are.

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
    """Squares of a share `area` of uint8 images [N, S, S, 3], scaled up to their size.

    `corners` [N, 2] in [0, 1] say where they lie between top and bottom, left and right.
    """
    size = images.shape[1]
    side = size * np.sqrt(area)
    top, left = (corners * (size - side)).T
    boxes = np.stack([top, left, top + side, left + side], axis=1)
    cut = image_ops.resized_crop(
        tf.cast(images, tf.float32) / 255.0, tf.constant(boxes, tf.float32), size
    )
    return np.round(255.0 * cut.numpy()).astype(np.uint8)


def verdict(results: Results) -> str:
    """What `compare` and `detect` say together, in a sentence."""
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
    """All numbers, with the control's and the paper's beside where there are any."""
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
        "AUROC and R-AUROC say that the score is less certain where it should be. The paper's "
        "column is CIFAR-10, ResNet-50, 1000 epochs.",
        Table(columns=["", score, "softmax", "paper"], rows=rows, align="lrrr", title="Failures"),
    ]


def draw(
    path: pathlib.Path,
    results: Results,
    values: np.ndarray,
    curves: Mapping[str, np.ndarray],
    wrong: np.ndarray,
) -> None:
    """Three panels: the score [N] of both groups, risk against coverage, the crop test.

    `curves` are uncertainties [N] by name.
    """
    with plots.drawing(path, 11, 3.2) as figure:
        left, middle, right = figure.subplots(1, 3)
        groups = {"correct": values[~wrong], "wrong": values[wrong]}
        plots.draw_groups(left, {f"{name} ({len(each):,})": each for name, each in groups.items()})
        left.set_xlabel(results["score"])
        left.set_ylim(top=1.3 * left.get_ylim()[1])  # room for the legend
        left.legend(loc="upper left")
        known = "" if results["auroc"] is None else f", AUROC {results['auroc']:.3f}"
        left.set_title(f"correct and wrong predictions{known}", loc="left")

        draw_risk(middle, {**curves, "oracle": wrong.astype(float)}, wrong)

        areas, shares = ([entry[key] for entry in results["crops"]] for key in ("area", "share"))
        bars = right.bar([f"{area:.0%}" for area in areas], shares, width=0.6, color=plots.BLUE)
        right.bar_label(bars, [f"{share:.0%}" for share in shares], padding=2)
        right.axhline(0.5, color=plots.GRAY, linestyle=":")
        right.set_ylim(0, 1.08)
        right.yaxis.set_major_formatter(PercentFormatter(1.0))
        right.grid(visible=False, axis="x")
        right.set_xlabel("area of the image that a random crop keeps")
        right.set_ylabel("share of images")
        right.set_title("less certain when cropped (chance: 50 %)", loc="left")
        figure.tight_layout(w_pad=2.5)


def draw_risk(axis: Axes, curves: Mapping[str, np.ndarray], wrong: np.ndarray) -> None:
    """The error rate of the images that are left against their share, by uncertainty [N]."""
    covered, rate = np.arange(1, len(wrong) + 1) / len(wrong), wrong.mean()
    # The first few images make a ragged start that says nothing.
    shown = slice(min(50, len(wrong) // 10), None)
    risks = {name: risk_coverage(uncertainty, wrong) for name, uncertainty in curves.items()}
    colors = (plots.BLUE, plots.ORANGE, plots.GREEN, "#7e4fa3", "#222222")
    for (name, curve), color in zip(risks.items(), colors, strict=False):
        axis.plot(covered[shown], curve[shown], color=color, label=f"{name} {augrc(curve):.4f}")
    axis.axhline(rate, color=plots.GRAY, linestyle=":", label=f"chance {rate / 2:.4f}")
    axis.set_xlabel("coverage: share of images that are not refused")
    axis.set_ylabel("error rate of these")
    axis.set_xlim(0, 1)
    # With room above for the legend.
    axis.set_ylim(0, max(0.01, 1.9 * max(curve[shown].max() for curve in risks.values())))
    axis.legend(title="AUGRC", alignment="left", loc="upper left")
    axis.set_title("risk and coverage", loc="left")
