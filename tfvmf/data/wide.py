"""Views with more damage than augmentations, to train a concentration head (docs/kappa.md).

The evaluations of tfvmf use other damage: noise, blur, weather and compression.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import tensorflow as tf

from tfvmf import counter_random, distribute
from tfvmf.data import image_ops
from tfvmf.data.augment import Augmentation

KINDS = ("filter", "spectrum")  # studies/kappa/views.py has the kinds that helped less
# Pixels between the taps of a filter: an image may have been enlarged, or be sharp.
_SPACINGS: tuple[int, ...] = (1, 2, 4)
# Each parameter has its own column of random numbers. Append only.
_COLUMNS = ("kind", "strength", "spacing", "native")
_SALT = 0x5DEECE66  # for other random numbers than the augmentation draws from the same seeds


@dataclasses.dataclass(frozen=True, kw_only=True)
class WideViews:
    """One ordinary view of each image, with one randomly chosen kind of damage.

    - filter: a blend with the output of a random filter with 3x3 taps over all channels. The taps
      are 1, 2 or 4 pixels apart.
    - spectrum: the amplitudes of the Fourier transform move 0 to 100 % of the way to those of
      another image; the phases stay.

    Attributes:
        augmentation: Applied to the images first; its `size` is the size of the views.
        kinds: Which of `KINDS` to draw from, with equal probability.
        native_size: Size of the images before they were enlarged for the encoder, if they were:
            half of the views are damaged at that size.
    """

    augmentation: Augmentation
    kinds: tuple[str, ...] = KINDS
    native_size: int | None = None

    def __post_init__(self) -> None:
        unknown = set(self.kinds) - set(KINDS)
        if unknown or not self.kinds:
            raise ValueError(f"kinds must be some of {', '.join(KINDS)}, not {self.kinds}")

    def __call__(self, images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """One wide view of each image: float32 [B, size, size, 3] in [0, 1].

        The second image of `spectrum` comes from the *global* batch, so that replicas compute what
        a single device would. Images and seeds are those of `Augmentation.call`.
        """
        salted = salt(seeds)
        drawn = counter_random.uniforms(salted, len(_COLUMNS))
        views = self.augmentation(images, seeds)
        size = views.shape[1]
        if self.native_size is None or self.native_size >= size:
            return self._damage(views, others(views), salted, drawn)

        def enlarged(*parts: tf.Tensor) -> tf.Tensor:
            small = (tf.image.resize(x, [self.native_size] * 2, method="area") for x in parts[:2])
            return tf.image.resize(self._damage(*small, *parts[2:]), [size, size])

        return _by_group(drawn[:, 3], [self._damage, enlarged], views, others(views), salted, drawn)

    def _damage(
        self, views: tf.Tensor, others: tf.Tensor, seeds: tf.Tensor, drawn: tf.Tensor
    ) -> tf.Tensor:
        """Applies to each of the views [B, H, W, 3] the damage drawn for it."""
        damages = [{"filter": _filtered, "spectrum": _with_spectrum}[kind] for kind in self.kinds]
        damaged = _by_group(drawn[:, 0], damages, views, others, seeds, drawn)
        return image_ops.clip(views + drawn[:, 1, None, None, None] * (damaged - views))


def _by_group(
    uniform: tf.Tensor, functions: Sequence[Callable[..., tf.Tensor]], *tensors: tf.Tensor
) -> tf.Tensor:
    """Applies to each row of `tensors` [B, ...] the function that its `uniform` number selects."""
    count = len(functions)
    group = tf.cast(uniform * count, tf.int32)
    numbered = (tf.range(tf.shape(group)[0]), *tensors)
    rows, *parts = (tf.dynamic_partition(each, group, count) for each in numbered)
    done = [function(*each) for function, *each in zip(functions, *parts, strict=True)]
    return tf.ensure_shape(tf.dynamic_stitch(rows, done), tensors[0].shape)


def salt(seeds: tf.Tensor) -> tf.Tensor:
    """Seeds that no augmentation uses."""
    return tf.bitwise.bitwise_xor(seeds, tf.constant(_SALT, tf.int32))


def others(views: tf.Tensor) -> tf.Tensor:
    """For each image of this replica, another image of the global batch, half a batch away."""
    everyone = distribute.gather(views)
    rows, total = tf.shape(views)[0], tf.shape(everyone)[0]
    own = distribute.replica_id() * rows + tf.range(rows)
    return tf.ensure_shape(tf.gather(everyone, (own + (total + 1) // 2) % total), views.shape)


def _with_spectrum(
    views: tf.Tensor, others: tf.Tensor, seeds: tf.Tensor, drawn: tf.Tensor
) -> tf.Tensor:
    """Keeps the phases of `views` [B, H, W, C]; moves their amplitudes toward those of `others`."""
    del seeds, drawn  # the strength blends the images, whose phases are equal
    ours, theirs = (tf.signal.rfft2d(tf.transpose(x, [0, 3, 1, 2])) for x in (views, others))
    factor = tf.math.divide_no_nan(tf.abs(theirs), tf.abs(ours))
    mixed = tf.signal.irfft2d(tf.cast(factor, tf.complex64) * ours, views.shape[1:3])
    return tf.transpose(mixed, [0, 2, 3, 1])


def _filtered(views: tf.Tensor, others: tf.Tensor, seeds: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
    """Convolves each image with its own filter, then restores the image's mean and deviation."""
    del others
    weights = tf.reshape(counter_random.normals(seeds, 27 * 3), [-1, 27, 3])
    # Taps farther apart than half the image would only meet its mirror image.
    fitting = [each for each in _SPACINGS if each == 1 or 4 * each <= min(views.shape[1:3])]
    convolutions = [partial(_convolved, spacing=each) for each in fitting]
    filtered = _by_group(drawn[:, 2], convolutions, views, weights)
    mean, variance = tf.nn.moments(filtered, [1, 2, 3], keepdims=True)
    target_mean, target_variance = tf.nn.moments(views, [1, 2, 3], keepdims=True)
    return (filtered - mean) * tf.sqrt(target_variance / (variance + 1e-8)) + target_mean


def _convolved(views: tf.Tensor, weights: tf.Tensor, *, spacing: int) -> tf.Tensor:
    """Images [B, H, W, 3] convolved with filters [B, 27, 3] whose taps are `spacing` apart."""
    batch, height, width = tf.shape(views)[0], views.shape[1], views.shape[2]
    padded = views
    for axis in (1, 2):  # mirrored at the sides; `tf.pad` rejects an empty batch
        places = np.pad(np.arange(views.shape[axis]), spacing, mode="reflect")
        padded = tf.gather(padded, places, axis=axis)
    # Plane by plane: `tf.image.extract_patches` takes seven times as long.
    planes = tf.transpose(padded, [0, 3, 1, 2])
    starts = [(spacing * i, spacing * j) for i in range(3) for j in range(3)]
    taps = [planes[:, :, i : i + height, j : j + width] for i, j in starts]
    patches = tf.reshape(tf.stack(taps, axis=1), [batch, 27, height * width])
    flat = tf.matmul(weights, patches, transpose_a=True)
    return tf.transpose(tf.reshape(flat, [batch, 3, height, width]), [0, 2, 3, 1])
