"""What a suite follows: a number an image, and how it should move as an image gets worse."""

import dataclasses
from collections.abc import Callable

import numpy as np

from tfvmf.inference import Embeddings
from tfvmf.methods import Method


@dataclasses.dataclass(frozen=True)
class Score:
    """A measure of certainty (expected sign -1) or of uncertainty (+1).

    Attributes:
        name: What tables and pictures call it.
        expected_sign: Of its correlation with the severity of a corruption.
        of: From the encoder's outputs to one score an image [N].
    """

    name: str
    expected_sign: int
    of: Callable[[Embeddings], np.ndarray]


KAPPA = Score("kappa", -1, lambda outputs: outputs["concentration"])
FEATURE_NORM = Score(
    "feature norm", -1, lambda outputs: np.linalg.norm(outputs["features"], axis=1)
)


def score_of(method: Method) -> Score:
    """Kappa, or the length of the features for an encoder that learned no concentration."""
    return KAPPA if method.probabilistic else FEATURE_NORM
