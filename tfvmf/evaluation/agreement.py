"""How far is kappa from what it estimates? Both beside each other, and the error between them.

kappa is to predict the agreement of views, E[cos]: as kappa / 5 with the paper's weights. The
suite measures both on clean, corrupted and foreign images. Where the agreement follows a corruption
and kappa does not, the head is to blame; where neither does, the encoder.
"""

from typing import Any

import numpy as np
import scipy.stats
import tensorflow as tf

from tfvmf import data, training
from tfvmf.evaluation import agreement_output, cifar10c, ood_scores
from tfvmf.evaluation.correlation import correlate
from tfvmf.evaluation.corrupted import open_corrupted
from tfvmf.evaluation.run import Evaluation, NotApplicable
from tfvmf.evaluation.scores import SCORES
from tfvmf.methods import Method

PAIR = ("kappa", "agreement")

Values = dict[str, np.ndarray]


def run(evaluation: Evaluation) -> dict[str, Any]:
    """Measures kappa and the agreement of views together; writes tables and numbers."""
    evaluation = evaluation.followed_by(*PAIR)
    method, scale = evaluation.method, scale_of(evaluation.method)
    # All that can be wrong with the sources shows before anything is measured.
    foreign = {
        spec: training.load_source(evaluation.config, spec, "test")
        for spec in dict.fromkeys(evaluation.out_sources)
    }
    corrupted = open_corrupted(evaluation)
    measured = cifar10c.measure_scores(evaluation, corrupted)
    names = list(measured["kappa"])
    spearman = {
        score: {name: correlate(measured[score][name], rounds=1).spearman for name in names}
        for score in PAIR
    }
    clean = {score: measured[score][names[0]][0] for score in PAIR}
    damaged = {score: np.stack([measured[score][name][1:] for name in names]) for score in PAIR}
    calibration = {
        name: [
            compare(method, kappa, cosine)
            for kappa, cosine in zip(*(damaged[score][row] for score in PAIR), strict=True)
        ]
        for row, name in enumerate(names)
    }
    whole = {
        "clean": compare(method, *clean.values()),
        "corrupted": compare(method, *(values.ravel() for values in damaged.values())),
    }
    results: dict[str, Any] = {
        **{f"{score}_spearman": float(np.mean(list(spearman[score].values()))) for score in PAIR},
        **{f"{name}_error": entry["error"] for name, entry in whole.items()},
        "scale": scale,
        "corruptions": corrupted.described,
        "data": f"{evaluation.test.name} ({evaluation.test.split})",
        "images": len(clean["kappa"]),
        "views": evaluation.views,
        "step": evaluation.step,
        "checkpoint": evaluation.checkpoint,
        "method": evaluation.config.method,
        **({"note": method.kappa_note} if method.kappa_note else {}),
        **whole,
        "spearman": spearman,
        "calibration": calibration,
        "out": {spec: _foreign(evaluation, source, clean) for spec, source in foreign.items()},
    }
    results |= {f"{spec}_error": entry["error"] for spec, entry in results["out"].items()}
    agreement_output.write(evaluation.directory("agreement"), results)
    return results


def compare(method: Method, kappa: np.ndarray, cosine: np.ndarray) -> dict[str, Any]:
    """Kappa [N] against the measured E[cos] [N] of the same images.

    Returns:
        `kappa`, `predicted` (the cosine that kappa stands for) and `agreement`, each a mean;
        `error`, the mean of |predicted - agreement|; `rank`, the Spearman correlation of kappa with
        the agreement over the images, None where one of them is the same for all.
    """
    predicted = method.predicted_cosine(tf.constant(kappa, tf.float32)).numpy().astype(np.float64)
    varied = np.ptp(kappa) > 0 and np.ptp(cosine) > 0
    return {
        "images": len(kappa),
        "kappa": float(np.mean(kappa)),
        "predicted": float(predicted.mean()),
        "agreement": float(np.mean(cosine)),
        "error": float(np.abs(predicted - cosine).mean()),
        "rank": float(scipy.stats.spearmanr(kappa, cosine).statistic) if varied else None,
    }


def scale_of(method: Method) -> str:
    """The cosine that a kappa stands for, in words."""
    try:
        unit = float(method.predicted_cosine(tf.ones([])))
    except ValueError as error:
        raise NotApplicable(f"the suite agreement has nothing to compare: {error}") from error
    return (
        "A_d(kappa)"
        if method.config.concentration.regularizer == "vmf"
        else f"kappa / {1 / unit:g}"
    )


def _foreign(evaluation: Evaluation, source: data.Source, clean: Values) -> dict[str, Any]:
    """The comparison on a foreign set, and how well either score tells it from the clean images."""
    values = evaluation.measure(source, limit=evaluation.images)
    turned = {name: SCORES[name].uncertainty for name in PAIR}
    return compare(evaluation.method, *(values[name] for name in PAIR)) | {
        f"{name}_auroc": ood_scores.detection(turn(clean[name]), turn(values[name]))["auroc"]
        for name, turn in turned.items()
    }
