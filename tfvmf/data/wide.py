"""Views from a wider world than the augmentations, to show a concentration head.

An encoder that never sees a badly damaged picture cannot learn to doubt one. These views are
damaged in ways that no test of tfvmf uses (no noise, no blur, no weather, no compression): passed
through a random filter, or given the spectrum of another image. What the head is to say of them is
not taught by hand: it is the measured cosine with an ordinary view. What was tried: docs/kappa.md.
"""

import dataclasses

import tensorflow as tf

from tfvmf import counter_random, distribute
from tfvmf.data import image_ops
from tfvmf.data.augment import Augmentation

KINDS = ("filter", "spectrum")  # studies/kappa/views.py has those that brought less
# Each parameter has its own column of random numbers. Append only.
_COLUMNS = ("kind", "strength")
_SALT = 0x5DEECE66  # draws other numbers than the augmentation does from the same seeds


@dataclasses.dataclass(frozen=True, kw_only=True)
class WideViews:
    """One ordinary view of each image, with one kind of damage drawn for each.

    - filter: a random 3x3 filter over all channels, blended with the image.
    - spectrum: the amplitudes of its Fourier transform moved 0 to 100 % of the way to those of
      another image; the phases stay.

    Attributes:
        augmentation: What happens to the images first; its `size` is the size of the views.
        kinds: Which of `KINDS` are drawn from, each as likely.
    """

    augmentation: Augmentation
    kinds: tuple[str, ...] = KINDS

    def __post_init__(self) -> None:
        unknown = set(self.kinds) - set(KINDS)
        if unknown or not self.kinds:
            raise ValueError(f"kinds must be some of {', '.join(KINDS)}, not {self.kinds}")

    def __call__(self, images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """One wide view of each image.

        The other image of a pair is one of the *global* batch, so that replicas see what a single
        device would.

        Args:
            images: [B, H, W, 3], uint8, or floating point in [0, 1].
            seeds: int32 [B, 2], see `counter_random.example_seeds`.

        Returns:
            float32 [B, size, size, 3] in [0, 1].
        """
        salted = salt(seeds)
        kind, strength = tf.unstack(counter_random.uniforms(salted, len(_COLUMNS)), axis=1)
        kind = tf.cast(kind * len(self.kinds), tf.int32)
        shares = {
            name: (tf.cast(tf.equal(kind, place), tf.float32) * strength)[:, None, None, None]
            for place, name in enumerate(self.kinds)
        }
        views = self.augmentation(images, seeds)
        if "spectrum" in shares:
            views = _with_spectrum(views, others(views), shares["spectrum"])
        if "filter" in shares:
            views += shares["filter"] * (_filtered(views, salted) - views)
        return image_ops.clip(views)


def salt(seeds: tf.Tensor) -> tf.Tensor:
    """Seeds that no augmentation has drawn from."""
    return tf.bitwise.bitwise_xor(seeds, tf.constant(_SALT, tf.int32))


def others(views: tf.Tensor) -> tf.Tensor:
    """For each image of this replica another one of the global batch, half a batch away."""
    everyone = distribute.gather(views)
    rows, total = tf.shape(views)[0], tf.shape(everyone)[0]
    own = distribute.replica_id() * rows + tf.range(rows)
    return tf.ensure_shape(tf.gather(everyone, (own + (total + 1) // 2) % total), views.shape)


def _with_spectrum(views: tf.Tensor, others: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """The phases of `views`, amplitudes `share` of the way to those of `others`; [B, H, W, C]."""
    ours, theirs = (
        tf.signal.fft2d(tf.cast(tf.transpose(x, [0, 3, 1, 2]), tf.complex64))
        for x in (views, others)
    )
    amplitude = tf.abs(ours)
    factor = tf.math.divide_no_nan(amplitude + share * (tf.abs(theirs) - amplitude), amplitude)
    mixed = tf.math.real(tf.signal.ifft2d(tf.cast(factor, tf.complex64) * ours))
    return tf.transpose(mixed, [0, 2, 3, 1])


def _filtered(views: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """Each image convolved with its own 3x3 filter, then moved to the image's mean and spread."""
    batch, height, width = tf.shape(views)[0], views.shape[1], views.shape[2]
    weights = tf.reshape(counter_random.normals(seeds, 27 * 3), [batch, 27, 3])
    padded = tf.pad(views, [[0, 0], [1, 1], [1, 1], [0, 0]], mode="REFLECT")
    patches = tf.image.extract_patches(
        padded, [1, 3, 3, 1], [1, 1, 1, 1], [1, 1, 1, 1], padding="VALID"
    )
    flat = tf.matmul(tf.reshape(patches, [batch, height * width, 27]), weights)
    filtered = tf.reshape(flat, [batch, height, width, 3])
    mean, variance = tf.nn.moments(filtered, [1, 2, 3], keepdims=True)
    target_mean, target_variance = tf.nn.moments(views, [1, 2, 3], keepdims=True)
    return (filtered - mean) * tf.sqrt(target_variance / (variance + 1e-8)) + target_mean
