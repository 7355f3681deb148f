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

KINDS = ("mix", "patch", "crop", "filter", "spectrum")
DEFAULT_KINDS = ("filter", "spectrum")
# Each parameter has its own column of random numbers. Append only.
_COLUMNS = ("kind", "strength", "top", "left")
_SALT = 0x5DEECE66  # draws other numbers than the augmentation does from the same seeds


@dataclasses.dataclass(frozen=True, kw_only=True)
class WideViews:
    """One ordinary view of each image, with one kind of damage drawn for each.

    - mix: a blend with another image of the batch, of which the image keeps 0 to 100 %.
    - patch: a box of another image in its place, 0 to 100 % of the area.
    - crop: a box of 3 to 30 % of the area, enlarged.
    - filter: a random 3x3 filter over all channels, blended with the image.
    - spectrum: the amplitudes of its Fourier transform moved 0 to 100 % of the way to those of
      another image; the phases stay.

    Attributes:
        augmentation: What happens to the images first; its `size` is the size of the views.
        kinds: Which of `KINDS` are drawn from, each as likely.
        crop_min: Least area of `crop`.
        crop_max: Greatest area of `crop`.
    """

    augmentation: Augmentation
    kinds: tuple[str, ...] = DEFAULT_KINDS
    crop_min: float = 0.03
    crop_max: float = 0.3

    def __post_init__(self) -> None:
        unknown = set(self.kinds) - set(KINDS)
        if unknown or not self.kinds:
            raise ValueError(f"kinds must be some of {', '.join(KINDS)}, not {self.kinds}")
        if not 0.0 < self.crop_min <= self.crop_max <= 1.0:
            raise ValueError(f"crop areas must be in (0, 1], not {self.crop_min}, {self.crop_max}")

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
        salted = tf.bitwise.bitwise_xor(seeds, tf.constant(_SALT, tf.int32))
        columns = tf.unstack(counter_random.uniforms(salted, len(_COLUMNS)), axis=1)
        drawn = dict(zip(_COLUMNS, columns, strict=True))
        kind = tf.cast(drawn["kind"] * len(self.kinds), tf.int32)
        is_kind = {
            name: tf.cast(tf.equal(kind, self.kinds.index(name)), tf.float32) for name in self.kinds
        }
        views = self.augmentation(images, seeds)
        if "crop" in is_kind:
            area = self.crop_min + (self.crop_max - self.crop_min) * drawn["strength"]
            side = 1.0 + is_kind["crop"] * (tf.sqrt(area) - 1.0)  # 1: the whole view
            views = image_ops.resized_crop(views, self._boxes(side, drawn), views.shape[1])
        if {"mix", "patch", "spectrum"} & {*is_kind}:
            others = _others(views)
            if "mix" in is_kind:
                share = (is_kind["mix"] * drawn["strength"])[:, None, None, None]
                views += share * (others - views)
            if "patch" in is_kind:
                inside = self._inside(is_kind["patch"] * tf.sqrt(drawn["strength"]), drawn)
                views += inside[..., None] * (others - views)
            if "spectrum" in is_kind:
                share = (is_kind["spectrum"] * drawn["strength"])[:, None, None, None]
                views = _with_spectrum(views, others, share)
        if "filter" in is_kind:
            filtered = _filtered(views, salted)
            share = (is_kind["filter"] * drawn["strength"])[:, None, None, None]
            views += share * (filtered - views)
        return image_ops.clip(views)

    def _boxes(self, side: tf.Tensor, drawn: dict[str, tf.Tensor]) -> tf.Tensor:
        """[B, 4] squares with `side` [B], as a share of the view's, anywhere in it."""
        size = float(self.augmentation.size)
        top, left = (drawn[name] * (1.0 - side) * size for name in ("top", "left"))
        return tf.stack([top, left, top + side * size, left + side * size], axis=1)

    def _inside(self, side: tf.Tensor, drawn: dict[str, tf.Tensor]) -> tf.Tensor:
        """[B, size, size]: 1 inside of a square, 0 outside."""
        boxes = self._boxes(side, drawn)
        centers = tf.range(self.augmentation.size, dtype=tf.float32) + 0.5
        rows = (centers >= boxes[:, 0:1]) & (centers < boxes[:, 2:3])
        columns = (centers >= boxes[:, 1:2]) & (centers < boxes[:, 3:4])
        return tf.cast(rows[:, :, None] & columns[:, None, :], tf.float32)


def _others(views: tf.Tensor) -> tf.Tensor:
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
