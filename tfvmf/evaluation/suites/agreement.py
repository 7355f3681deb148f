"""How far is kappa from the agreement of views that it estimates (slow, only by name)?

kappa is to predict the agreement of views, E[cos]: as kappa / 5 with the paper's weights. The
suite measures both on clean, corrupted and foreign images. Where the agreement follows a corruption
and kappa does not, the head is to blame; where neither does, the encoder.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats
import tensorflow as tf

from tfvmf import vmf
from tfvmf.data.corruptions import SEVERITIES
from tfvmf.evaluation.scores import SCORES
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, NotApplicable, Options, Results, Suite
from tfvmf.evaluation.suites.cifar10c import correlate, corrupted_images, measure_scores
from tfvmf.evaluation.suites.ood import detection, foreign_sources
from tfvmf.evaluation.tables import Cell, Table

PAIR = ("kappa", "agreement")

_COLUMNS = ("images", "kappa", "predicted", "agreement", "error", "rank")

Values = dict[str, np.ndarray]
Cosine = Callable[[tf.Tensor], tf.Tensor]


def _measure(subject: Subject, options: Options) -> Measured:
    """Measures kappa and the agreement of views together."""
    options = dataclasses.replace(options, scores=PAIR)
    predict = _predicted_cosine(subject)
    one = subject.embedder(subject.test.images(0, 1))
    scale = scale_words(predict, dimension=one["mean_direction"].shape[1])
    # All that can be wrong with the sources shows before anything is measured.
    foreign = foreign_sources(subject, options)
    corrupted = corrupted_images(subject, options)
    measured = measure_scores(subject, options, corrupted)
    names = list(measured["kappa"])
    spearman = {
        score: {name: correlate(measured[score][name], rounds=1).spearman for name in names}
        for score in PAIR
    }
    clean = {score: measured[score][names[0]][0] for score in PAIR}
    damaged = {score: np.stack([measured[score][name][1:] for name in names]) for score in PAIR}
    calibration = {
        name: [
            compare(predict, kappa, cosine)
            for kappa, cosine in zip(*(damaged[score][row] for score in PAIR), strict=True)
        ]
        for row, name in enumerate(names)
    }
    whole = {
        "clean": compare(predict, *clean.values()),
        "corrupted": compare(predict, *(values.ravel() for values in damaged.values())),
    }
    results: dict[str, Any] = {
        **{f"{score}_spearman": float(np.mean(list(spearman[score].values()))) for score in PAIR},
        **{f"{name}_error": entry["error"] for name, entry in whole.items()},
        "scale": scale,
        "corruptions": corrupted.described,
        "views": options.num_views,
        **({"note": subject.kappa_note} if subject.kappa_note else {}),
        **whole,
        "spearman": spearman,
        "calibration": calibration,
        "out": {},
    }
    for name, source in foreign.items():
        values = subject.measure(source, options)
        results["out"][name] = compare(predict, *(values[score] for score in PAIR)) | {
            f"{score}_auroc": _auroc(score, clean, values) for score in PAIR
        }
    results |= {f"{name}_error": entry["error"] for name, entry in results["out"].items()}
    return Measured(results)


def compare(predict: Cosine, kappa: np.ndarray, cosine: np.ndarray) -> dict[str, Any]:
    """Kappa [N] against the measured E[cos] [N] of the same images.

    `kappa`, `predicted` (the cosine that kappa stands for) and `agreement` are means; `error` is
    the mean of |predicted - agreement|, `rank` the Spearman correlation of kappa with the agreement
    over the images, None where one of them is the same for all.
    """
    predicted = np.asarray(predict(tf.constant(kappa, tf.float32))).astype(np.float64)
    varied = np.ptp(kappa) > 0 and np.ptp(cosine) > 0
    return {
        "images": len(kappa),
        "kappa": float(np.mean(kappa)),
        "predicted": float(predicted.mean()),
        "agreement": float(np.mean(cosine)),
        "error": float(np.abs(predicted - cosine).mean()),
        "rank": float(scipy.stats.spearmanr(kappa, cosine).statistic) if varied else None,
    }


def scale_words(predict: Cosine, *, dimension: int) -> str:
    """The cosine that a kappa stands for, in words: kappa / 5, A_d(kappa) or f(kappa)."""
    kappa = tf.constant([1.0, 2.0, 5.0, 20.0])
    try:
        cosine = np.asarray(predict(kappa))
    except ValueError as error:
        raise NotApplicable(f"the suite agreement has nothing to compare: {error}") from error
    if np.allclose(cosine, cosine[0] * kappa, rtol=1e-5):
        return f"kappa / {1 / float(cosine[0]):g}"
    exact = vmf.mean_resultant_length(kappa, dimension)
    return "A_d(kappa)" if np.allclose(cosine, exact, rtol=1e-5) else "f(kappa)"


def _predicted_cosine(subject: Subject) -> Cosine:
    if subject.predicted_cosine is None:
        raise NotApplicable(
            "the suite agreement has nothing to compare: the subject has no predicted_cosine"
        )
    return subject.predicted_cosine


def _auroc(score: str, clean: Values, foreign: Values) -> float:
    """How well a score tells foreign images from the clean ones."""
    turn = SCORES[score].uncertainty
    return detection(turn(clean[score]), turn(foreign[score]))["auroc"]


def _table(results: Results) -> Table:
    """One row per set of images: clean, every corruption and severity, all of them, foreign."""
    rows: list[list[Cell]] = []

    def add(name: str, severity: int | None, entry: dict[str, Any]) -> None:
        rows.append([name, severity, *(entry[key] for key in _COLUMNS)])

    add("clean", 0, results["clean"])
    for name, entries in results["calibration"].items():
        for severity, entry in zip(SEVERITIES, entries, strict=True):
            add(name, severity, entry)
    add("corrupted", None, results["corrupted"])
    for name, entry in results["out"].items():
        add(name, None, entry)
    return Table(columns=["images_of", "severity", *_COLUMNS], rows=rows)


def _verdict(results: Results) -> str:
    clean, corrupted = results["clean_error"], results["corrupted_error"]
    kappa, views = results["kappa_spearman"], results["agreement_spearman"]
    blame = "kappa follows corruptions as the views do"
    if views < -0.5 and kappa > views + 0.3:
        blame = "the views follow corruptions and kappa does not: the head is to blame"
    elif views >= -0.5:
        blame = "the agreement of views itself does not follow corruptions: the encoder is to blame"
    return (
        f"kappa misses the agreement by {clean:.3f} (clean), {corrupted:.3f} (corrupted); {blame}"
    )


def _blocks(results: Results) -> list[str | Table]:
    """What kappa predicts and what is measured, then both scores against severity."""
    scale = results["scale"]
    blocks: list[str | Table] = [
        f"{results['corruptions']}. Agreement: the mean cosine E[cos] of the directions of "
        f"{results['views']} augmented views, measured. Predicted: {scale}, from the image alone. "
        f"The error is the mean of |{scale} - E[cos]| over the images (few views make the "
        "measurement itself uncertain); the rank correlation is Spearman's, of kappa with E[cos] "
        "over the images.",
    ]
    if "note" in results:
        blocks.append(f"Note: {results['note']}.")
    named = {"clean": results["clean"], "corrupted": results["corrupted"], **results["out"]}
    means = [results[f"{score}_spearman"] for score in PAIR]
    keys = ("predicted", "agreement", "error", "rank")
    blocks.append(
        Table(
            title="What kappa predicts",
            columns=["images", *keys[:-1], "rank correlation"],
            rows=[[name, *(entry[key] for key in keys)] for name, entry in named.items()],
        )
    )
    blocks.append(
        Table(
            title="Spearman correlation with severity (six points), and the error at each severity",
            columns=["corruption", *PAIR, *(f"error at {severity}" for severity in SEVERITIES)],
            rows=[
                [
                    name.replace("_", " "),
                    *(results["spearman"][score][name] for score in PAIR),
                    *(entry["error"] for entry in entries),
                ]
                for name, entries in results["calibration"].items()
            ],
            footer=[["mean", *means, *[None] * len(SEVERITIES)]],
        )
    )
    if results["out"]:
        blocks.append(
            Table(
                title="AUROC with foreign images positive",
                columns=["foreign", *PAIR],
                rows=[
                    [name, *(entry[f"{score}_auroc"] for score in PAIR)]
                    for name, entry in results["out"].items()
                ],
            )
        )
    return blocks


agreement = Suite(
    name="agreement",
    title="Agreement of views",
    measure=_measure,
    verdict=_verdict,
    headlines=lambda results: [
        Headline("error of kappa on clean images", results["clean_error"]),
        Headline("error of kappa on corrupted images", results["corrupted_error"]),
        Headline("mean Spearman of kappa with severity", results["kappa_spearman"], "+.3f"),
        Headline("mean Spearman of the agreement itself", results["agreement_spearman"], "+.3f"),
    ],
    blocks=_blocks,
    table=_table,
    among_all=False,  # many passes over many images
)
