"""Risk against coverage: the error rate that is left when the least certain images are refused."""

import numpy as np


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
