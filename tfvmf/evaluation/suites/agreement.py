"""How far is kappa from the agreement of views that it estimates? Slow, so only by name.

kappa should predict the agreement of views, E[cos]: as kappa / 5 with the paper's weights. If only
the agreement follows a corruption, the head is at fault; if neither does, the encoder is.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats
import tensorflow as tf

from tfvmf import vmf
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES
from tfvmf.evaluation.scores import SCORES
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, NotApplicable, Options
from tfvmf.evaluation.suites.cifar10c import corrupted_images, measure_corruption
from tfvmf.evaluation.suites.ood import detection, foreign_sources
from tfvmf.evaluation.tables import Table

PAIR = ("kappa", "agreement")
_NOTHING = "the suite agreement has nothing to compare"
_COLUMNS = ("images", "kappa", "predicted", "agreement", "error", "rank")

Cosine = Callable[[tf.Tensor], tf.Tensor]


def measure(subject: Subject, options: Options) -> Measured:
    """Measures kappa and the agreement of views together."""
    options, predict = dataclasses.replace(options, scores=PAIR), subject.predicted_cosine
    if predict is None:
        raise NotApplicable(f"{_NOTHING}: the subject has no predicted_cosine")
    one = subject.embedder(subject.test.images(0, 1))
    scale = scale_words(predict, dimension=one["mean_direction"].shape[1])
    # Problems with the sources should show before anything is measured.
    foreign = foreign_sources(subject, options)
    corrupted = corrupted_images(subject, options)
    measured, scores = measure_corruption(subject, options, corrupted)
    spearman = {score: measured["scores"][score]["spearman"] for score in PAIR}
    means = {score: measured["scores"][score]["mean_spearman"] for score in PAIR}
    clean = {score: scores[score][0, 0] for score in PAIR}
    damaged = np.stack([scores[score][:, 1:] for score in PAIR], axis=2)  # [18, 5, 2, N]
    every = (each.ravel() for each in np.moveaxis(damaged, 2, 0))
    found = {"clean": compare(predict, *clean.values()), "corrupted": compare(predict, *every)}
    calibration = {
        name: [compare(predict, *pair) for pair in by_severity]
        for name, by_severity in zip(CORRUPTIONS, damaged, strict=True)
    }
    out = {}
    for name, source in foreign.items():
        values = subject.measure(source, options)
        out[name] = compare(predict, *(values[score] for score in PAIR))
        for score in PAIR:
            pair = (SCORES[score].uncertainty(each[score]) for each in (clean, values))
            out[name][f"{score}_auroc"] = detection(*pair)["auroc"]
    blame = "kappa follows corruptions as the views do"
    if means["agreement"] >= -0.5:
        blame = "the agreement of views itself does not follow corruptions: the encoder is to blame"
    elif means["kappa"] > means["agreement"] + 0.3:
        blame = "the views follow corruptions and kappa does not: the head is to blame"
    errors = {name: entry["error"] for name, entry in (found | out).items()}
    keys = (*_COLUMNS, *(f"{score}_auroc" for score in PAIR))
    return Measured(
        verdict=f"kappa misses the agreement by {errors['clean']:.3f} (clean), "
        f"{errors['corrupted']:.3f} (corrupted); {blame}",
        results={
            **{f"{score}_spearman": mean for score, mean in means.items()},
            **{f"{name}_error": error for name, error in errors.items()},
            "scale": scale,
            "corruptions": corrupted.described,
            "views": options.num_views,
            **({"note": subject.kappa_note} if subject.kappa_note else {}),
            **found,
            "spearman": spearman,
            "calibration": calibration,
            "out": out,
        },
        headlines=[
            Headline("error of kappa on clean images", errors["clean"]),
            Headline("error of kappa on corrupted images", errors["corrupted"]),
            Headline("mean Spearman of kappa with severity", means["kappa"], "+.3f"),
            Headline("mean Spearman of the agreement itself", means["agreement"], "+.3f"),
        ],
        blocks=[
            f"{corrupted.described}. Agreement: the mean cosine E[cos] of the directions of "
            f"{options.num_views} augmented views, measured. Predicted: {scale}, from the image "
            f"alone. The error is the mean of |{scale} - E[cos]| over the images (few views make "
            "the measurement itself uncertain); the rank correlation is Spearman's, of kappa with "
            "E[cos] over the images.",
            *([f"Note: {subject.kappa_note}."] if subject.kappa_note else []),
            Table(
                ["images of", *_COLUMNS, *(f"{score} AUROC" for score in PAIR)],
                [[name, *map(entry.get, keys)] for name, entry in (found | out).items()],
                title="What kappa predicts",
            ),
            Table(
                ["corruption", *PAIR, *(f"error at {severity}" for severity in SEVERITIES)],
                [
                    [name, *(spearman[s][name] for s in PAIR), *(each["error"] for each in row)]
                    for name, row in calibration.items()
                ],
                footer=[["mean", *means.values(), *[None] * len(SEVERITIES)]],
                title="Spearman correlation with severity (six points), and the error at each "
                "severity",
            ),
        ],
    )


def compare(predict: Cosine, kappa: np.ndarray, cosine: np.ndarray) -> dict[str, Any]:
    """Compares kappa [N] with the measured E[cos] [N] of the same images.

    `kappa`, `predicted` (its cosine) and `agreement` are means; `error` is the mean absolute
    difference of the last two. `rank` is Spearman's correlation of kappa and agreement, None if one
    is constant.
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
    """How kappa maps to a cosine, in words: kappa / 5, A_d(kappa) or f(kappa)."""
    kappa = tf.constant([1.0, 2.0, 5.0, 20.0])
    try:
        cosine = np.asarray(predict(kappa))
    except ValueError as error:
        raise NotApplicable(f"{_NOTHING}: {error}") from error
    if np.allclose(cosine, cosine[0] * kappa, rtol=1e-5):
        return f"kappa / {1 / float(cosine[0]):g}"
    exact = vmf.mean_resultant_length(kappa, dimension)
    return "A_d(kappa)" if np.allclose(cosine, exact, rtol=1e-5) else "f(kappa)"
