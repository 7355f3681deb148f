"""May its decisions be trusted? What is rejected, rightly or not, and what accuracy remains.

The judge promises to reject at most a share alpha of images like those of its calibration. The
suite counts on clean test images whether that holds, and on corrupted and foreign ones what the
promise is worth. With labels, the linear probe says what is gained: are accepted images classified
better than all? Controls are the norm of the features, the nearest neighbors among them, and the
probe's own maximum softmax, which sees the labels.
"""

import math
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import scipy.special
import scipy.stats
import tensorflow as tf
from matplotlib.ticker import PercentFormatter

from tfvmf import data, posthoc
from tfvmf.data.base import sample_indices
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES
from tfvmf.errors import UserError
from tfvmf.evaluation import plots
from tfvmf.evaluation.scores import NO_JUDGE, from_outputs, one_pass
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, NotApplicable, Options, Results
from tfvmf.evaluation.suites.cifar10c import Scores, corrupted_images, kept_scores
from tfvmf.evaluation.suites.failure import detect
from tfvmf.evaluation.suites.ood import NEIGHBORS, foreign_sources, short_name
from tfvmf.evaluation.suites.probe import linear_probe
from tfvmf.evaluation.tables import Cell, Table

ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.2)
TRIED = (*ALPHAS, 0.3, 0.5, 0.7)  # the last ones only for `max_error`
FEW = 100  # accepted images, below which an accuracy of them says little
_LEVEL = 0.05  # of all tests and intervals
_BANK = 10_000  # training images among which neighbors are looked for
_ANY = CORRUPTIONS[0]  # row 0 has the clean images, the same for each corruption

# All are certainties. `both` is the judge's confidence.
TITLES = {
    "kappa": "kappa",
    "familiarity": "familiarity",
    "confidence": "both",
    "feature_norm": "feature norm",
    "neighbors": "k-NN",
    "softmax": "softmax",
}
_DETECTORS = ("kappa", "familiarity", "confidence", "softmax")  # of the probe's errors

Values = dict[str, np.ndarray]  # [N] by score, and `predicted`: positions among the probe's classes
Reader = Callable[[Mapping[str, Any]], dict[str, tf.Tensor]]


def measure(subject: Subject, options: Options) -> Measured:
    """Measures the judge's decisions on clean, corrupted and foreign images."""
    judge, labeled = _judge(subject, options)
    # All that can be wrong with the sources shows before anything is measured.
    foreign = foreign_sources(subject, options)
    corrupted = corrupted_images(subject, options)
    read, names = _reader(subject, labeled=labeled)
    scores = kept_scores(
        subject, options, corrupted, (*one_pass(subject.judge), *names), further=read
    )
    clean = {name: values[_ANY][0] for name, values in scores.items()}
    outside = {name: _values(subject, source, read) for name, source in foreign.items()}
    alpha, ranks = np.float32(judge.decision.alpha), len(judge.decision.joined)
    shown = [name for name in TITLES if name in scores]
    rejected = {
        name: (values <= alpha).mean(axis=1) for name, values in scores["confidence"].items()
    }
    severe = {name: {key: scores[key][name][-1] for key in shown} for name in CORRUPTIONS}
    aurocs = {
        name: {key: auroc(clean[key], values[key]) for key in shown}
        for name, values in (severe | outside).items()
    }
    results: dict[str, Any] = {
        "alpha": judge.decision.alpha,
        "calibration": judge.describe(),
        "corruptions": corrupted.described,
        "clean": false_rejections(clean["confidence"], float(alpha), ranks),
        "rejected": rejected,
        "mean_rejected": np.mean([*rejected.values()], axis=0),
        "foreign": {name: share(values["confidence"] <= alpha) for name, values in outside.items()},
        "auroc": aurocs,
        "mean_auroc": {
            key: float(np.mean([aurocs[name][key] for name in CORRUPTIONS])) for key in shown
        },
    }
    correct = None
    if labeled:
        classes, labels = linear_probe(subject).classes, subject.test.labels
        predicted = {name: each.astype(int) for name, each in scores["predicted"].items()}
        by_name = {name: classes[each] == labels for name, each in predicted.items()}
        results |= _with_labels(scores, by_name, alpha)
        correct = by_name[_ANY][0]
    results["alphas"] = try_alphas(clean["confidence"], ranks, correct)
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


def _judge(subject: Subject, options: Options) -> tuple[posthoc.Judge, bool]:
    """The judge at the alpha that is asked for, and whether there are labels."""
    if subject.judge is None:
        kind = NotApplicable if options.max_error is None else UserError
        raise kind(f"the suite decision needs {NO_JUDGE}")
    labeled = subject.train.labels is not None and subject.test.labels is not None
    if options.max_error is not None and not labeled:
        raise UserError(f"max_error={options.max_error:g}: {subject.test.name} has no labels")
    return subject.judge if options.alpha is None else subject.judge.at(options.alpha), labeled


def _reader(subject: Subject, *, labeled: bool) -> tuple[Reader, list[str]]:
    """From outputs to what the controls and the probe say of them [B], and the names of that."""

    def make() -> Reader:
        rows = sample_indices(subject.train, _BANK)
        if labeled:  # the probe needs all of them
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
                shares = tf.nn.softmax(tf.matmul(values, probe.weights) + probe.bias)
                found["softmax"] = tf.reduce_max(shares, axis=1)
                found["predicted"] = tf.cast(tf.argmax(shares, axis=1), tf.float32)
            return found

        return read

    names = ["neighbors", *(["softmax", "predicted"] if labeled else [])]
    return subject.keep(("reader", labeled), make), names


def _values(subject: Subject, source: data.Source, read: Reader) -> Values:
    """All scores of a source."""
    outputs = subject.embed(source)
    found = {name: from_outputs(name, outputs) for name in one_pass(subject.judge)}
    blocks = np.array_split(outputs["features"], -(-source.size // 1000))
    parts = [read({"features": block}) for block in blocks]
    more = {name: np.concatenate([part[name].numpy() for part in parts]) for name in parts[0]}
    return {name: values for name, values in found.items() if values is not None} | more


def auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """How often an image of the first has a higher certainty [N] than one of the second [M]."""
    wins = scipy.stats.mannwhitneyu(inside, outside, method="asymptotic").statistic
    return float(wins) / (len(inside) * len(outside))


def share(hits: np.ndarray) -> dict[str, Any]:
    """The share of hits (bool [N]) with its 95 % interval, Clopper and Pearson's."""
    test = scipy.stats.binomtest(int(hits.sum()), len(hits))
    interval = test.proportion_ci(1 - _LEVEL, "exact")
    return {"images": len(hits), "share": test.statistic, "interval": [interval.low, interval.high]}


def false_rejections(confidence: np.ndarray, alpha: float, ranks: int) -> dict[str, Any]:
    """The share of clean images that are rejected, and whether the promise is kept.

    Of one calibration with m ranks, the share of all in-distribution images that are rejected is a
    draw from Beta(k, m + 1 - k), k = floor(alpha (m + 1)): its mean is at most alpha. The number
    among N images is then beta-binomial, which gives the `expected` range (95 %).
    """
    found = share(confidence <= np.float32(alpha))
    size, k = len(confidence), _rejected_ranks(alpha, ranks)
    law = scipy.stats.betabinom(size, k, ranks + 1 - k)
    low, high = law.ppf([_LEVEL / 2, 1 - _LEVEL / 2]) / size
    place = "below" if found["share"] < low else "above" if found["share"] > high else "within"
    return {**found, "expected": [float(low), float(high)], "place": place}


def _rejected_ranks(alpha: float, ranks: int) -> int:
    """How many of the possible confidences 1 / (m + 1), 2 / (m + 1) ... are at most alpha."""
    return math.floor(float(np.float32(alpha)) * (ranks + 1) + 1e-4)


def compare_accepted(correct: np.ndarray, accept: np.ndarray) -> dict[str, Any]:
    """Accuracy on accepted images beside that on all, from bool [N] and bool [N].

    `p` is of Fisher's exact test, two-sided, of accepted against rejected images: under the null
    hypothesis an image is as often correct whether it is accepted or not.
    """
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
    """What each of `TRIED` that can reject anything does to images with confidences [N].

    `rejected` is a share. With `correct` (bool [N]), `accuracy` is that of the accepted images, and
    `bound` the upper bound of their error rate, Clopper and Pearson's, of 1 - 0.05 / K for each of
    the K alphas: all bounds hold together with a probability of 95 %, so that choosing an alpha by
    its bound does no harm (Bonferroni).
    """
    found: list[dict[str, Any]] = []
    alphas = [alpha for alpha in TRIED if _rejected_ranks(alpha, ranks)]
    for alpha in alphas:
        accept = confidence > np.float32(alpha)
        found.append({"alpha": alpha, "rejected": float((~accept).mean())})
        if correct is not None:
            kept = correct[accept]
            errors, bound = int((~kept).sum()), 1.0
            if errors < len(kept):
                level = 1 - _LEVEL / len(alphas)
                bound = float(scipy.special.betaincinv(errors + 1, len(kept) - errors, level))
            accuracy = float(kept.mean()) if len(kept) else None
            found[-1] |= {"accepted": len(kept), "errors": errors, "accuracy": accuracy}
            found[-1]["bound"] = bound
    return found


def _with_labels(
    scores: Mapping[str, Scores], correct: Mapping[str, np.ndarray], alpha: np.float32
) -> Results:
    """Accuracy on accepted images, and the scores as detectors of the probe's errors.

    `correct` is bool [6, N] by corruption.
    """

    def pooled(values: Mapping[str, np.ndarray], level: int) -> np.ndarray:
        """The images of one severity under all corruptions, or the clean ones."""
        names = CORRUPTIONS if level else (_ANY,)
        return np.concatenate([values[name][level] for name in names])

    accept = {name: values > alpha for name, values in scores["confidence"].items()}
    each = {name: compare_accepted(correct[name][-1], accept[name][-1]) for name in CORRUPTIONS}
    gains = {
        name: found["accepted_accuracy"] - found["accuracy"]
        for name, found in each.items()
        if found["accepted"]
    }
    return {
        "accuracy": {"clean": compare_accepted(correct[_ANY][0], accept[_ANY][0]), **each},
        # Without p: every image is there once for each corruption.
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
    """Whether the promise is kept, and what it is worth, in a sentence."""
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
    """The promise, the AUROC of both, and the accuracy that is gained."""
    low, high = results["clean"]["interval"]
    promised = f"false rejections (promised: {results['alpha']:.1%})"
    note = f"95 % interval {low:.1%} to {high:.1%}"
    found = [Headline(promised, results["clean"]["share"], ".1%", note=note)]
    aurocs = {"severity 5": results["mean_auroc"]}
    aurocs |= {name: results["auroc"][name] for name in list(results["foreign"])[:2]}
    for name, each in aurocs.items():
        note = f"kappa {each['kappa']:.3f}, familiarity {each['familiarity']:.3f}"
        found.append(
            Headline(f"AUROC of {short_name(name)}, by both", each["confidence"], note=note)
        )
    if "accuracy" in results:
        last = results["accuracy_by_severity"][-1]
        note = f"all: {last['accuracy']:.3f}"
        words = "accuracy on accepted, severity 5"
        found.append(Headline(words, last["accepted_accuracy"], note=note))
    return found


def _lines(results: Results) -> list[str]:
    """What each alpha does, and which one keeps the error below `max_error`."""
    tried = [each["alpha"] for each in results["alphas"]]
    few = "rejects nothing: too few calibration images"
    lines = [f"alpha={alpha:<4g} {few}" for alpha in ALPHAS if alpha not in tried]
    for each in results["alphas"]:
        known = each.get("accuracy")
        text = f"alpha={each['alpha']:<4g} rejects {each['rejected']:6.1%} of clean images"
        text += "" if known is None else f", accuracy of the others {known:.4f}"
        lines += [text] if each["alpha"] in ALPHAS else []
    if "accuracy" in results:
        known = results["accuracy"]["clean"]["accuracy"]
        lines = [f"accuracy on all clean images {known:.4f}", *lines, _gains(results)]
    return [*lines, _max_error(results)] if "max_error" in results else lines


def _gains(results: Results) -> str:
    """Under how many corruptions accepted images are classified better than all, in a sentence."""
    worse = ", ".join(results["significantly_below"]).replace("_", " ") or "none"
    return (
        "at severity 5 accepted images are classified better than all under "
        f"{results['above']} of {len(CORRUPTIONS)} corruptions, significantly worse under {worse}; "
        f"fewer than {FEW} are accepted under {len(results['few'])}"
    )


def _max_error(results: Results) -> str:
    """The answer to `max_error`, in a sentence."""
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
    """All numbers; the first table is that of rejected shares."""
    clean, calibration, aurocs = results["clean"], results["calibration"], results["mean_auroc"]
    (low, high), (least, most) = clean["interval"], clean["expected"]

    def table(title: str, columns: list[str], rows: Iterable[list[Cell]], **form: Any) -> Table:
        return Table(title=title, columns=columns, rows=list(rows), **form)

    blocks: list[str | Table] = [
        f"Calibrated on {calibration['images']:,} images of {calibration['source']}. Of "
        f"{clean['images']:,} clean test images {clean['share']:.2%} are rejected (95 % interval "
        f"{low:.2%} to {high:.2%}, Clopper and Pearson's); alpha={results['alpha']:g} is promised "
        f"on average over calibrations, and one calibration of this size gives {least:.2%} to "
        f"{most:.2%} (95 %).",
        f"{results['corruptions']}. The table has the share of images that are rejected.",
        table(
            "Rejected share by corruption and severity",
            ["corruption", "clean", *map(str, SEVERITIES)],
            ([name, *map(float, shares)] for name, shares in results["rejected"].items()),
            footer=[["mean", *map(float, results["mean_rejected"])]],
        ),
    ]
    if foreign := results["foreign"]:
        blocks.append(
            table(
                "Rejected share of foreign images",
                ["foreign", "images", "rejected", "low", "high"],
                ([name, x["images"], x["share"], *x["interval"]] for name, x in foreign.items()),
            )
        )
    blocks += [
        "AUROC: how often a clean image has a higher score than one of severity 5, or a foreign "
        "one. Both: kappa and familiarity joined, the confidence. k-NN: mean cosine to the "
        f"{NEIGHBORS} nearest of up to {_BANK:,} training images. Softmax: the probe's maximum, "
        "which needs labels.",
        table(
            "AUROC against clean images",
            ["images", *map(TITLES.__getitem__, aurocs)],
            ([name, *(each[key] for key in aurocs)] for name, each in results["auroc"].items()),
            footer=[["mean of the corruptions", *aurocs.values()]],
        ),
    ]
    if "accuracy" in results:
        parts = ("augrc", "aurc", "coverage", "auroc")
        blocks += [
            "Accuracy of the linear probe on accepted and on all images, clean and at severity 5. "
            "p: Fisher's exact test, two-sided, of accepted against rejected images, not corrected "
            f"for the number of corruptions; significant is p < {_LEVEL:g}. Few: fewer than {FEW} "
            f"accepted. In short: {_gains(results)}.",
            table(
                "Accuracy on accepted images",
                ["images", "accepted", "accuracy, all", "accuracy, accepted", "p", ""],
                (
                    [name, x["accepted"], x["accuracy"], x["accepted_accuracy"],
                     None if x["p"] is None else f"{x['p']:.1e}", "few" if x["few"] else None]
                    for name, x in results["accuracy"].items()
                ),
                align="lrrrrl",
            ),
            "The scores as detectors of the probe's errors; AUGRC and AURC: 0 is best. Coverage: "
            "the largest share of images, the most certain ones, of which at most 5 % are wrong.",
            table(
                "Errors of the probe",
                ["images", "score", "AUGRC", "AURC", "coverage at 5 %", "AUROC"],
                (
                    [where, TITLES[key], *map(each.get, parts)]
                    for where, by_score in results["errors"].items()
                    for key, each in by_score.items()
                ),
                form=".4f",
            ),
        ]  # fmt: skip
    titles = {"accuracy": "accuracy, accepted", "bound": "upper bound of the error rate"}
    known = list(results["alphas"][0])
    if "bound" in known:
        blocks.append(
            "Upper bounds of the error rate of accepted images hold for all alphas together with "
            "95 % (Clopper and Pearson's, Bonferroni)."
        )
    return [
        *blocks,
        *([f"{_max_error(results)}."] if "max_error" in results else []),
        table(
            "What each alpha does to clean images",
            [titles.get(key, key) for key in known],
            ([f"{x['alpha']:g}", *(x[key] for key in known[1:])] for x in results["alphas"]),
            align="r" * len(known),
            form=".4f",
        ),
    ]


def draw(path: pathlib.Path, results: Results) -> None:
    """What is rejected and, with labels, what accuracy remains."""
    levels, foreign = ["clean", *map(str, SEVERITIES)], results["foreign"]
    groups = np.repeat([0, 1, 2], [1, len(SEVERITIES), len(foreign)])
    known = (results["clean"], *foreign.values())
    shares = np.insert([each["share"] for each in known], 1, results["mean_rejected"][1:])
    labeled = "accuracy" in results
    with plots.drawing(path, 11 if labeled else 6.5, 3.6) as figure:
        left, *right = figure.subplots(1, 1 + labeled, squeeze=False)[0]
        places = np.arange(len(groups)) + 0.4 * groups
        colors = np.array([plots.BLUE, plots.ORANGE, plots.GREEN])[groups]
        bars = left.bar(places, shares, width=0.75, color=colors)
        left.bar_label(bars, [f"{x:.0%}" if x >= 0.1 else f"{x:.1%}" for x in shares], padding=2)
        left.axhline(results["alpha"], color="#333333", linestyle=":", linewidth=1)
        names = [*levels, *(name.rsplit("/", 1)[-1][-20:] for name in foreign)]
        turn = {"rotation": 20, "ha": "right"} if max(map(len, names)) > 8 else {}
        left.set_xticks(places, names, **turn)
        left.set_xlabel(
            "clean, corrupted with severity 1 to 5 (mean)" + (", foreign" if foreign else "")
        )
        promised = f"dotted: {100 * results['alpha']:g} %, promised for clean ones"
        left.set_title(f"share of images rejected ({promised})", loc="left")
        for axis in right:
            rows = np.arange(len(levels))
            for offset, key, color, label in (
                (-0.2, "accuracy", plots.GRAY, "all images"),
                (0.2, "accepted_accuracy", plots.BLUE, "accepted images"),
            ):
                heights = [found[key] or 0.0 for found in results["accuracy_by_severity"]]
                bars = axis.bar(rows + offset, heights, width=0.38, color=color, label=label)
                axis.bar_label(bars, [f"{h:.0%}" if h else "" for h in heights], padding=2)
            axis.set_xticks(rows, levels)
            axis.set_xlabel("clean, corrupted with severity 1 to 5 (all corruptions together)")
            axis.set_title("accuracy of the linear probe", loc="left")
            axis.legend(loc="upper right", ncols=2)
        for axis in (left, *right):
            axis.set_ylim(0, 1.25 if axis in right else 1.1)
            axis.set_yticks(np.linspace(0, 1, 6))
            axis.yaxis.set_major_formatter(PercentFormatter(1.0))
            axis.grid(visible=False, axis="x")
        figure.tight_layout(w_pad=2.5)
