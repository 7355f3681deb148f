"""How familiar an image is: the density of its embedding among training images, without labels.

kappa says how well two views of an image agree. Views of a clear image of something new agree too,
so kappa alone calls it certain. Familiarity complements it.
"""

import dataclasses

import numpy as np
import tensorflow as tf
from sklearn.covariance import ledoit_wolf

from tfvmf.errors import UserError
from tfvmf.neighbors import unit

_NEIGHBORS = 10.0  # median number of training images that make up a density; studies/familiarity
_LEFT_OUT = 10  # one image in this many is in neither density, and gives their mean and deviation
_SOFTNESS = 0.3  # best of 0.03, 0.1, 0.3, 1 and none; studies/familiarity
_LEAST = 20
_BYTES = 10_000_000  # maximum size of all arrays
_MOST_KERNELS = 4096  # more would cost a small encoder over 5 % of its forward pass
_MOST_LEVELS = 1536  # maximum number of levels used: their matrix takes half of the bytes


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Familiarity:
    """The sum of two log densities, each standardized on other training images.

        familiarity(x) = z(log sum_i exp(bandwidth * u . b_i)) + min(z(-|W (a - center)|^2 / 2), 0)

    The first is about what an image shows: u are the unit-length features of x, b_i those of a bank
    of training images, for a mixture of von Mises-Fisher kernels with one bandwidth. The second is
    about what it looks like: a = arcsinh(l / softness) are the levels (mean and deviation of each
    stage's channels) on a nearly logarithmic scale, so that unusually small deviations count as
    much as large ones, under a Gaussian with a shrunk covariance. Its part is at most 0, because in
    many dimensions typical images are not near the center: one that is has less contrast or detail,
    as in fog. Models without levels have only the first part. z standardizes to mean 0 and
    deviation 1; the median training image is around 0, and the mean is a little lower.

    Attributes:
        bank: float16 [M, F], rows of unit length.
        bandwidth: The concentration of the kernels.
        columns: int32 [K]: the levels used, at most 1,536; K is 0 without levels.
        softness: float32 [K], 0.3 times the levels' standard deviations.
        center: float32 [K], the mean of a.
        scale: float32 [K], the standard deviation of a.
        whitening: float16 [K, K]: (a - center) / scale @ whitening has an identity covariance.
        reference: float32 [2, 2]: mean and standard deviation of each log density.
    """

    bank: np.ndarray
    bandwidth: float
    columns: np.ndarray
    softness: np.ndarray
    center: np.ndarray
    scale: np.ndarray
    whitening: np.ndarray
    reference: np.ndarray

    @classmethod
    def fit(
        cls,
        features: np.ndarray,
        levels: np.ndarray | None = None,
        *,
        bank_size: int = 0,
        seed: int = 0,
    ) -> "Familiarity":
        """Fits both densities to features [N, F] and levels [N, L] of training images.

        `bank_size` is the number of kernels; by default at most 4,096, and 10 MB for all arrays.
        """
        size = len(features)
        if size < _LEAST:
            raise UserError(f"{size} training images: familiarity needs at least {_LEAST}")
        levels = np.zeros((size, 0), np.float32) if levels is None else levels
        for name, values in (("features", features), ("levels", levels)):
            if len(values) != size or values.ndim != 2:
                raise ValueError(
                    f"{name} have the shape {list(values.shape)}: expected [{size}, .]"
                )
            if bad := int((~np.isfinite(values).all(axis=1)).sum()):
                raise UserError(f"{bad} of {size} training images have {name} that are not finite")
        order = np.random.default_rng(seed).permutation(size)
        left_out = order[: max(2, size // _LEFT_OUT)]
        made_of = order[len(left_out) :]
        count = min(levels.shape[1], _MOST_LEVELS)
        columns = np.linspace(0, levels.shape[1] - 1, count).astype(np.int32)
        room = (_BYTES - 2 * count * (count + 8)) // (2 * features.shape[1])
        limit = bank_size or min(len(made_of), _MOST_KERNELS, max(room, _LEAST))
        if limit > len(made_of):
            raise UserError(
                f"bank_size={bank_size}: {size} training images make a bank of at most "
                f"{len(made_of)}"
            )
        bank = unit(features[made_of[:limit]]).astype(np.float16)
        bandwidth = _bandwidth(unit(features[left_out[:1000]]) @ bank.astype(np.float32).T)
        made_of_levels = levels[made_of][:, columns]
        softness = np.maximum(_SOFTNESS * made_of_levels.std(axis=0), 1e-6).astype(np.float32)
        center, scale, whitening = _gaussian(np.arcsinh(made_of_levels / softness))
        fitted = cls(
            bank=bank,
            bandwidth=bandwidth,
            columns=columns,
            softness=softness,
            center=center,
            scale=scale,
            whitening=whitening,
            reference=np.array([[0.0, 1.0]] * 2, np.float32),
        )
        parts = [
            fitted.log_densities(features[rows], levels[rows])
            for rows in np.array_split(left_out, 1 + len(left_out) // 1000)
        ]
        found = [np.concatenate(densities) for densities in zip(*parts, strict=True)]
        reference = [[x.mean(), max(x.std(), 1e-6)] for x in found]
        return dataclasses.replace(fitted, reference=np.array(reference, np.float32))

    def __call__(self, features: tf.Tensor, levels: tf.Tensor | None = None) -> tf.Tensor:
        """Features [B, F] and levels [B, L] -> familiarity [B]; -inf if they are not finite."""
        values = tf.stack(self.log_densities(features, levels), axis=1)
        mean, deviation = self.reference.T
        kernels, gaussian = tf.unstack((values - mean) / deviation, axis=1)
        total = kernels + tf.minimum(gaussian, 0.0)
        return tf.where(tf.math.is_finite(total), total, -np.inf)

    def log_densities(
        self, features: tf.Tensor, levels: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Both log densities [B], each up to a constant; the second is 0 without levels."""
        unit = tf.math.l2_normalize(tf.cast(features, tf.float32), axis=1)
        cosines = tf.matmul(unit, tf.cast(self.bank, tf.float32), transpose_b=True)
        kernels = tf.reduce_logsumexp(self.bandwidth * cosines, axis=1)
        if not len(self.center):
            return kernels, tf.zeros_like(kernels)
        if levels is None:
            raise ValueError("levels are missing: this familiarity was fitted with them")
        levels = tf.gather(tf.cast(levels, tf.float32), self.columns, axis=1)
        standard = (_asinh(levels / self.softness) - self.center) / self.scale
        white = tf.matmul(standard, tf.cast(self.whitening, tf.float32))
        return kernels, -0.5 * tf.reduce_sum(tf.square(white), axis=1)


def _asinh(x: tf.Tensor) -> tf.Tensor:
    """tf.math.asinh, in operations that LiteRT supports."""
    return tf.sign(x) * tf.math.log(tf.abs(x) + tf.sqrt(tf.square(x) + 1.0))


def _bandwidth(cosines: np.ndarray) -> float:
    """The bandwidth at which a median of `_NEIGHBORS` kernels make up a density.

    That number is exp(entropy) of their shares, and falls as the bandwidth grows. The leave-one-out
    likelihood would prefer kernels so narrow that a single image decides.
    """
    low, high = 1.0, 1e4
    target = min(_NEIGHBORS, cosines.shape[1] / 4)
    for _ in range(40):
        middle = float(np.sqrt(low * high))
        shares = np.exp(middle * (cosines - cosines.max(axis=1, keepdims=True)))
        shares /= shares.sum(axis=1, keepdims=True)
        entropy = -(shares * np.log(np.maximum(shares, 1e-30))).sum(axis=1)
        low, high = (middle, high) if np.median(np.exp(entropy)) > target else (low, middle)
    return float(np.float32(low))


def _gaussian(levels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean [L], standard deviation [L], and the whitening [L, L] of the standardized levels."""
    if not levels.shape[1]:
        return np.zeros(0, np.float32), np.ones(0, np.float32), np.zeros((0, 0), np.float16)
    center = levels.mean(axis=0, dtype=np.float64)
    scale = np.maximum(levels.std(axis=0, dtype=np.float64), 1e-6)
    covariance, _ = ledoit_wolf((levels - center) / scale, assume_centered=True)
    values, vectors = np.linalg.eigh(covariance)
    whitening = vectors / np.sqrt(np.maximum(values, 1e-6))
    return (
        center.astype(np.float32),
        scale.astype(np.float32),
        whitening.astype(np.float16),
    )
