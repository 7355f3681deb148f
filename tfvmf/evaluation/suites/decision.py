"""Can the judge's decisions be trusted? Share of rejected images, and the accuracy that remains.

The judge promises to reject at most a share alpha of images like those of its calibration. This
suite checks that on clean test images, measures rejection on corrupted and foreign ones and, with
labels, the accuracy of accepted images. Controls: the norm of the features, their nearest
neighbors, and the probe's own maximum softmax.
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.special
import scipy.stats
import tensorflow as tf

from tfvmf.data.base import sample_indices
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES
from tfvmf.errors import UserError
from tfvmf.evaluation import plots
from tfvmf.evaluation.scores import NO_JUDGE, one_pass
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, NotApplicable, Options, Results
from tfvmf.evaluation.suites.cifar10c import Scores, auroc, corrupted_images, kept_scores
from tfvmf.evaluation.suites.failure import detect
from tfvmf.evaluation.suites.ood import NEIGHBORS, foreign_sources, short_name
from tfvmf.evaluation.suites.probe import linear_probe
from tfvmf.evaluation.tables import Table

ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.2)
TRIED = (*ALPHAS, 0.3, 0.5, 0.7)  # the last three only for `max_error`
FEW = 100  # accepted images; with fewer, their accuracy is too uncertain
_LEVEL = 0.05  # significance level of all tests and intervals
_BANK = 10_000  # training images searched for neighbors

# All measure certainty. `both` is the judge's confidence.
TITLES = {"kappa": "kappa", "familiarity": "familiarity", "confidence": "both"}
TITLES |= {"feature_norm": "feature norm", "neighbors": "k-NN", "softmax": "softmax"}
_DETECTORS = ("kappa", "familiarity", "confidence", "softmax")  # detectors of the probe's errors

Reader = Callable[[Mapping[str, Any]], dict[str, tf.Tensor]]


def measure(subject: Subject, options: Options) -> Measured:
    """Measures the judge's decisions on clean, corrupted and foreign images."""
    judge = subject.judge
    if judge is None:
        kind = NotApplicable if options.max_error is None else UserError
        raise kind(f"the suite decision needs {NO_JUDGE}")
    labeled = subject.train.labels is not None and subject.test.labels is not None
    if options.max_error is not None and not labeled:
        raise UserError(f"max_error={options.max_error:g}: {subject.test.name} has no labels")
    judge = judge if options.alpha is None else judge.at(options.alpha)
    # Problems with the sources should show before anything is measured.
    foreign = foreign_sources(subject, options)
    corrupted = corrupted_images(subject, options)
    read = subject.keep(("reader", labeled), lambda: _reader(subject, labeled=labeled))
    needed = [*one_pass(judge), "neighbors", *(["softmax", "predicted"] if labeled else [])]
    scores = kept_scores(subject, options, corrupted, needed, further=read)
    clean = {name: values[0, 0] for name, values in scores.items()}
    each_pass = dataclasses.replace(options, scores=one_pass(judge))
    outside = {name: subject.measure(each, each_pass, read) for name, each in foreign.items()}
    alpha, ranks = np.float32(judge.decision.alpha), len(judge.decision.joined)
    shown = [name for name in TITLES if name in scores]
    rejected = (scores["confidence"] <= alpha).mean(axis=2)
    severe = {
        name: {key: scores[key][place, -1] for key in shown}
        for place, name in enumerate(CORRUPTIONS)
    }
    aurocs = {
        name: {key: auroc(clean[key], values[key]) for key in shown}
        for name, values in (severe | outside).items()
    }
    means = {key: float(np.mean([aurocs[name][key] for name in CORRUPTIONS])) for key in shown}
    results: dict[str, Any] = {
        "alpha": judge.decision.alpha,
        "calibration": judge.describe(),
        "corruptions": corrupted.described,
        "clean": false_rejections(clean["confidence"], float(alpha), ranks),
        "rejected": dict(zip(CORRUPTIONS, rejected, strict=True)),
        "mean_rejected": rejected.mean(axis=0),
        "foreign": {name: share(values["confidence"] <= alpha) for name, values in outside.items()},
        "auroc": aurocs,
        "mean_auroc": means,
    }
    right = None
    if labeled:
        classes = linear_probe(subject).classes
        correct = classes[scores["predicted"].astype(int)] == subject.test.labels
        results |= _with_labels(scores, correct, alpha)
        right = correct[0, 0]
    results["alphas"] = try_alphas(clean["confidence"], ranks, right)
    if options.max_error is not None:
        fine = [each["alpha"] for each in results["alphas"] if each["bound"] < options.max_error]
        results["max_error"] = {"asked": options.max_error, "alpha": min(fine, default=None)}
    return Measured(
        verdict=verdict(results),
        results=results,
        headlines=_headlines(results),
        blocks=_blocks(results),
        lines=_lines(results),
        files={"decision.png": lambda path: draw(path, results)},
    )


def _reader(subject: Subject, *, labeled: bool) -> Reader:
    """Maps outputs to the values [B] of the nearest neighbors and the probe."""
    rows = sample_indices(subject.train, _BANK)
    if labeled:  # the probe needs all images
        features = subject.embed(subject.train)["features"][rows]
    else:
        features = subject.embed(subject.train.subset(rows))["features"]
    bank = tf.math.l2_normalize(tf.constant(features, tf.float32), axis=1)
    probe = linear_probe(subject) if labeled else None
    count = min(NEIGHBORS, len(features))

    def read(outputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        values = tf.cast(outputs["features"], tf.float32)
        cosines = tf.matmul(tf.math.l2_normalize(values, axis=1), bank, transpose_b=True)
        found = {"neighbors": tf.reduce_mean(tf.math.top_k(cosines, count).values, axis=1)}
        if probe is not None:
            judged = probe(values, index=True)
            found["softmax"] = judged["class_probability"]
            found["predicted"] = tf.cast(judged["class"], tf.float32)
        return found

    return read


def share(hits: np.ndarray) -> dict[str, Any]:
    """The share of hits (bool [N]) with its 95 % Clopper-Pearson interval."""
    test = scipy.stats.binomtest(int(hits.sum()), len(hits))
    interval = test.proportion_ci(1 - _LEVEL, "exact")
    return {"images": len(hits), "share": test.statistic, "interval": [interval.low, interval.high]}


def false_rejections(confidence: np.ndarray, alpha: float, ranks: int) -> dict[str, Any]:
    """The share of clean images that are rejected, and whether the promise is kept.

    For one calibration with m ranks, the share of rejected in-distribution images is a draw from
    Beta(k, m + 1 - k), k = floor(alpha (m + 1)), with a mean of at most alpha. The number among N
    images is then beta-binomial, which gives the `expected` range (95 %).
    """
    found = share(confidence <= np.float32(alpha))
    size, k = len(confidence), _rejected_ranks(alpha, ranks)
    law = scipy.stats.betabinom(size, k, ranks + 1 - k)
    low, high = law.ppf([_LEVEL / 2, 1 - _LEVEL / 2]) / size
    place = "below" if found["share"] < low else "above" if found["share"] > high else "within"
    return {**found, "expected": [float(low), float(high)], "place": place}


def _rejected_ranks(alpha: float, ranks: int) -> int:
    """The number of possible confidences 1 / (m + 1), 2 / (m + 1) ... that are at most alpha."""
    return math.floor(float(np.float32(alpha)) * (ranks + 1) + 1e-4)


def compare_accepted(correct: np.ndarray, accept: np.ndarray) -> dict[str, Any]:
    """Accuracy of accepted and of all images (bool [N]), with Fisher's two-sided exact test `p`."""
    kept, lost = correct[accept], correct[~accept]
    counts = [[int(each.sum()), int((~each).sum())] for each in (kept, lost)]
    both = len(kept) > 0 and len(lost) > 0
    return {
        "images": len(correct),
        "accepted": len(kept),
        "accuracy": float(correct.mean()),
        "accepted_accuracy": float(kept.mean()) if len(kept) else None,
        "p": float(scipy.stats.fisher_exact(counts).pvalue) if both else None,
        "few": len(kept) < FEW,
    }


def try_alphas(
    confidence: np.ndarray, ranks: int, correct: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """The effect of each of `TRIED` that can reject anything on images with confidences [N].

    `rejected` is a share. With `correct` (bool [N]), `accuracy` is that of the accepted images, and
    `bound` the Clopper-Pearson upper bound of their error rate at level 1 - 0.05 / K for each of
    the K alphas, so that all bounds hold together with a probability of 95 % (Bonferroni).
    """
    found: list[dict[str, Any]] = []
    alphas = [alpha for alpha in TRIED if _rejected_ranks(alpha, ranks)]
    for alpha in alphas:
        accept = confidence > np.float32(alpha)
        found.append({"alpha": alpha, "rejected": float((~accept).mean())})
        if correct is not None:
            size, errors = int(accept.sum()), int((accept & ~correct).sum())
            level = 1 - _LEVEL / len(alphas)
            bound = scipy.special.betaincinv(errors + 1, size - errors, level)
            found[-1] |= {
                "accepted": size,
                "errors": errors,
                "accuracy": float(correct[accept].mean()) if size else None,
                "bound": float(bound) if errors < size else 1.0,
            }
    return found


def _with_labels(scores: Scores, correct: np.ndarray, alpha: np.float32) -> Results:
    """Accuracy of accepted images, and detection of the probe's errors; `correct` [18, 6, N]."""

    def pooled(values: np.ndarray, level: int) -> np.ndarray:
        """The images of one severity under all corruptions, or the clean ones."""
        return values[:, level].ravel() if level else values[0, 0]

    accept = scores["confidence"] > alpha
    severe = zip(CORRUPTIONS, correct[:, -1], accept[:, -1], strict=True)
    each = {name: compare_accepted(*pair) for name, *pair in severe}
    gains = {
        name: found["accepted_accuracy"] - found["accuracy"]
        for name, found in each.items()
        if found["accepted"]
    }
    return {
        "accuracy": {"clean": compare_accepted(correct[0, 0], accept[0, 0]), **each},
        # Without p, because every image appears once per corruption.
        "accuracy_by_severity": [
            compare_accepted(pooled(correct, level), pooled(accept, level)) | {"p": None}
            for level in (0, *SEVERITIES)
        ],
        "above": sum(gain > 0 for gain in gains.values()),
        "significantly_below": [
            name for name, gain in gains.items() if gain < 0 and each[name]["p"] < _LEVEL
        ],
        "few": [name for name in CORRUPTIONS if each[name]["few"]],
        "errors": {
            words: {
                key: detect(-pooled(scores[key], level), ~pooled(correct, level))
                for key in _DETECTORS
            }
            for words, level in (("clean", 0), ("severity 5", SEVERITIES[-1]))
        },
    }


def verdict(results: Results) -> str:
    """Whether the promise is kept, and what it is worth, in one sentence."""
    clean = results["clean"]
    low, high = clean["expected"]
    kept = {
        "within": "as promised",
        "below": "fewer than expected",
        "above": "MORE than promised: these are not images like those of the calibration",
    }[clean["place"]]
    found = (
        f"rejects {clean['share']:.1%} of clean images at alpha={results['alpha']:g}, {kept} "
        f"({low:.1%} to {high:.1%} expected), {results['mean_rejected'][-1]:.0%} at severity 5"
    )
    for name, each in list(results["foreign"].items())[:2]:
        found += f", {each['share']:.0%} of {short_name(name)}"
    return found


def _headlines(results: Results) -> list[Headline]:
    """The promise, the AUROC of `both`, and the accuracy gained."""
    low, high = results["clean"]["interval"]
    promised = f"false rejections (promised: {results['alpha']:.1%})"
    note = f"95 % interval {low:.1%} to {high:.1%}"
    found = [Headline(promised, results["clean"]["share"], ".1%", note=note)]
    aurocs = {"severity 5": results["mean_auroc"]} | results["auroc"]
    for name in ("severity 5", *list(results["foreign"])[:2]):
        words, each = f"AUROC of {short_name(name)}, by both", aurocs[name]
        note = f"kappa {each['kappa']:.3f}, familiarity {each['familiarity']:.3f}"
        found.append(Headline(words, each["confidence"], note=note))
    if "accuracy" in results:
        last = results["accuracy_by_severity"][-1]
        words, note = "accuracy on accepted, severity 5", f"all: {last['accuracy']:.3f}"
        found.append(Headline(words, last["accepted_accuracy"], note=note))
    return found


def _lines(results: Results) -> list[str]:
    """The effect of each alpha, and the one that keeps the error below `max_error`."""
    tried = {each["alpha"]: each for each in results["alphas"]}
    lines, few = [], "nothing: too few calibration images"
    for alpha in ALPHAS:
        found = tried.get(alpha)
        text = f"{found['rejected']:6.1%} of clean images" if found else few
        if found and found.get("accuracy") is not None:
            text += f", accuracy of the others {found['accuracy']:.4f}"
        lines.append(f"alpha={alpha:<4g} rejects {text}")
    if "accuracy" in results:
        known = results["accuracy"]["clean"]["accuracy"]
        lines = [f"accuracy on all clean images {known:.4f}", *lines, _gains(results)]
    return [*lines, _max_error(results)] if "max_error" in results else lines


def _gains(results: Results) -> str:
    """The number of corruptions under which accepted images have a higher accuracy than all."""
    worse = ", ".join(results["significantly_below"]).replace("_", " ") or "none"
    return (
        "at severity 5 accepted images are classified better than all under "
        f"{results['above']} of {len(CORRUPTIONS)} corruptions, significantly worse under {worse}; "
        f"fewer than {FEW} are accepted under {len(results['few'])}"
    )


def _max_error(results: Results) -> str:
    """The answer to `max_error`, in one sentence."""
    tried, asked = results["alphas"], results["max_error"]
    best = min(tried, key=lambda each: (each["alpha"] != asked["alpha"], each["bound"]))
    enough = "is enough" if asked["alpha"] else "is the best, and no alpha is enough"
    return (
        f"max_error={asked['asked']:g}: alpha={best['alpha']:g} {enough}; {best['errors']:,} of "
        f"{best['accepted']:,} accepted images are wrong, an error rate of at most "
        f"{best['bound']:.2%} with 95 % confidence, for all {len(tried)} alphas from "
        f"{tried[0]['alpha']:g} to {tried[-1]['alpha']:g} together"
    )


def _blocks(results: Results) -> list[str | Table]:
    """All numbers; the first table has the rejected shares."""
    clean, calibration, aurocs = results["clean"], results["calibration"], results["mean_auroc"]
    (low, high), (least, most) = clean["interval"], clean["expected"]
    foreign, alphas = results["foreign"], results["alphas"]
    blocks: list[str | Table] = [
        f"Calibrated on {calibration['images']:,} images of {calibration['source']}. Of "
        f"{clean['images']:,} clean test images {clean['share']:.2%} are rejected (95 % interval "
        f"{low:.2%} to {high:.2%}, Clopper and Pearson's); alpha={results['alpha']:g} is promised "
        f"on average over calibrations, and one calibration of this size gives {least:.2%} to "
        f"{most:.2%} (95 %).",
        f"{results['corruptions']}. The table has the share of images that are rejected.",
        Table(
            ["corruption", "clean", *map(str, SEVERITIES)],
            [[name, *map(float, shares)] for name, shares in results["rejected"].items()],
            footer=[["mean", *map(float, results["mean_rejected"])]],
            title="Rejected share by corruption and severity",
        ),
    ]
    if foreign:
        rows = [[name, x["images"], x["share"], *x["interval"]] for name, x in foreign.items()]
        columns = ["foreign", "images", "rejected", "low", "high"]
        blocks.append(Table(columns, rows, title="Rejected share of foreign images"))
    blocks += [
        "AUROC: how often a clean image has a higher score than one of severity 5, or a foreign "
        "one. Both: kappa and familiarity joined, the confidence. k-NN: mean cosine to the "
        f"{NEIGHBORS} nearest of up to {_BANK:,} training images. Softmax: the probe's maximum, "
        "which needs labels.",
        Table(
            ["images", *map(TITLES.__getitem__, aurocs)],
            [[name, *(each[key] for key in aurocs)] for name, each in results["auroc"].items()],
            footer=[["mean of the corruptions", *aurocs.values()]],
            title="AUROC against clean images",
        ),
    ]
    if "accuracy" in results:
        parts = ("augrc", "aurc", "coverage", "auroc")
        blocks += [
            "Accuracy of the linear probe on accepted and on all images, clean and at severity 5. "
            "p: Fisher's exact test, two-sided, of accepted against rejected images, not corrected "
            f"for the number of corruptions; significant is p < {_LEVEL:g}. Few: fewer than {FEW} "
            f"accepted. In short: {_gains(results)}.",
            Table(
                ["images", "accepted", "accuracy, all", "accuracy, accepted", "p", ""],
                [
                    [name, x["accepted"], x["accuracy"], x["accepted_accuracy"],
                     None if x["p"] is None else f"{x['p']:.1e}", "few" if x["few"] else None]
                    for name, x in results["accuracy"].items()
                ],
                align="lrrrrl",
                title="Accuracy on accepted images",
            ),
            "The scores as detectors of the probe's errors; AUGRC and AURC: 0 is best. Coverage: "
            "the largest share of images, the most certain ones, of which at most 5 % are wrong.",
            Table(
                ["images", "score", "AUGRC", "AURC", "coverage at 5 %", "AUROC"],
                [
                    [where, TITLES[key], *map(each.get, parts)]
                    for where, by_score in results["errors"].items()
                    for key, each in by_score.items()
                ],
                form=".4f",
                title="Errors of the probe",
            ),
            "Upper bounds of the error rate of accepted images hold for all alphas together with "
            "95 % confidence (Clopper and Pearson's, Bonferroni).",
        ]  # fmt: skip
    if "max_error" in results:
        blocks.append(f"{_max_error(results)}.")
    titles = {"accuracy": "accuracy, accepted", "bound": "upper bound of the error rate"}
    tried = [{titles.get(key, key): value for key, value in each.items()} for each in alphas]
    last = Table.of(
        [{**each, "alpha": f"{each['alpha']:g}"} for each in tried],
        align="r" * len(tried[0]),
        form=".4f",
        title="What each alpha does to clean images",
    )
    return [*blocks, last]


def draw(path: pathlib.Path, results: Results) -> None:
    """Draws the rejected shares and, with labels, the remaining accuracy."""
    levels, foreign = ["clean", *map(str, SEVERITIES)], results["foreign"]
    groups = np.repeat([0, 1, 2], [1, len(SEVERITIES), len(foreign)])
    known = (results["clean"], *foreign.values())
    shares = np.insert([each["share"] for each in known], 1, results["mean_rejected"][1:])
    labeled = "accuracy" in results
    with plots.drawing(path, 11 if labeled else 6.5, 3.6) as figure:
        left, *right = figure.subplots(1, 1 + labeled, squeeze=False)[0]
        places = np.arange(len(groups)) + 0.4 * groups
        colors = np.array([plots.BLUE, plots.ORANGE, plots.GREEN])[groups]
        labels = [f"{x:.0%}" if x >= 0.1 else f"{x:.1%}" for x in shares]
        plots.draw_shares(left, places, shares, labels, width=0.75, color=colors)
        left.axhline(results["alpha"], color="#333333", linestyle=":", linewidth=1)
        names = [*levels, *(name.rsplit("/", 1)[-1][-20:] for name in foreign)]
        turn = {"rotation": 20, "ha": "right"} if max(map(len, names)) > 8 else {}
        left.set_xticks(places, names, **turn)
        mean = "clean, corrupted with severity 1 to 5 (mean)" + (", foreign" if foreign else "")
        promised = f"dotted: {100 * results['alpha']:g} %, promised for clean ones"
        left.set(xlabel=mean, ylim=(0, 1.1), title=f"share of images rejected ({promised})")
        for axis in right:
            rows = np.arange(len(levels))
            for offset, key, color, words in (
                (-0.2, "accuracy", plots.GRAY, "all images"),
                (0.2, "accepted_accuracy", plots.BLUE, "accepted images"),
            ):
                heights = [found[key] or 0.0 for found in results["accuracy_by_severity"]]
                labels = [f"{height:.0%}" if height else "" for height in heights]
                style = {"width": 0.38, "color": color, "label": words}
                plots.draw_shares(axis, rows + offset, heights, labels, **style)
            axis.set_xticks(rows, levels)
            together = "clean, corrupted with severity 1 to 5 (all corruptions together)"
            axis.set(xlabel=together, ylim=(0, 1.25), title="accuracy of the linear probe")
            axis.legend(loc="upper right", ncols=2)
        for axis in (left, *right):
            axis.set_yticks(np.linspace(0, 1, 6))
        figure.tight_layout(w_pad=2.5)
