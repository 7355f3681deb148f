"""Does the score tell wrong predictions from correct ones? The paper's Figure 2B, and beyond it.

The predictions are the linear probe's. A score of uncertainty passes if it is higher where the
probe errs: kappa, if it is lower there.
"""

from typing import Any

import numpy as np
import scipy.stats
from sklearn.metrics import roc_auc_score

from tfvmf import neighbors
from tfvmf.evaluation import crops, failure_output, paper, risk
from tfvmf.evaluation.run import Evaluation
from tfvmf.files import write_json, write_text

ROUNDS, DRAWS = 50, 100


def run(evaluation: Evaluation) -> dict[str, Any]:
    """Measures the main score as a detector of errors; writes a table, a plot and numbers."""
    train_labels, test_labels = evaluation.labels("failure")
    embeddings, score = evaluation.test_embeddings, evaluation.score
    values = evaluation.main_score(evaluation.test, embeddings)
    wrong = evaluation.linear_probe.predict(embeddings["features"]) != test_labels
    uncertainty = score.uncertainty(values)
    _, rows = neighbors.nearest(
        embeddings["features"], evaluation.train_embeddings["features"], k=1
    )
    results: dict[str, Any] = {
        "score": score.title,
        "expected_sign": score.expected_sign,
        "data": evaluation.test.name,
        "images": len(values),
        "step": evaluation.step,
        "method": evaluation.config.method,
        **compare(values, wrong),
        **detect(uncertainty, wrong),
        **retrieve(uncertainty, train_labels[rows[:, 0]] == test_labels),
        "mean_whole": float(values.mean()),
    }
    cropped = crops.crop_test(evaluation, values)
    results |= {
        "crop_share": float(np.mean([entry["share"] for entry in cropped])),
        "crops": cropped,
        "paper": paper.FAILURE,
    }
    directory = evaluation.directory("failure")
    write_text(directory / "table.md", failure_output.table_markdown(results))
    failure_output.draw(directory / "failure.png", results, values, uncertainty, wrong)
    write_json(directory / "results.json", results)
    return results


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
        seed: Of the draws.

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
    area, best = risk.aurc(risk.risk_coverage(uncertainty, wrong)), risk.aurc(risk.oracle(wrong))
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
