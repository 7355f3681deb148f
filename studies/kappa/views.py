"""Wide views that were tried and brought less than those of `tfvmf.data.wide`."""

import dataclasses

import tensorflow as tf

from tfvmf import counter_random
from tfvmf.data import image_ops, wide
from tfvmf.data.augment import Augmentation

TRIED = ("mix", "patch", "crop")
KINDS = (*TRIED, *wide.KINDS)
CROP_MIN, CROP_MAX = 0.03, 0.3  # areas of `crop`


@dataclasses.dataclass(frozen=True, kw_only=True)
class TriedViews:
    """One ordinary view of each image, damaged in one way.

    - mix: a blend with another image of the batch, of which the image keeps 0 to 100 %.
    - patch: a box of another image in its place, 0 to 100 % of the area.
    - crop: a box of 3 to 30 % of the area, enlarged.

    Attributes:
        augmentation: What happens to the images first; its `size` is the size of the views.
        kind: One of `TRIED`.
    """

    augmentation: Augmentation
    kind: str

    def __call__(self, images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """From images [B, H, W, 3] and seeds int32 [B, 2] to float32 [B, size, size, 3]."""
        columns = counter_random.uniforms(wide.salt(seeds), 4)
        _, strength, top, left = tf.unstack(columns, axis=1)  # the first draws the kind there
        views = self.augmentation(images, seeds)
        if self.kind == "crop":
            side = tf.sqrt(CROP_MIN + (CROP_MAX - CROP_MIN) * strength)
            boxes = _boxes(side, top, left, self.augmentation.size)
            return image_ops.clip(image_ops.resized_crop(views, boxes, self.augmentation.size))
        share = strength[:, None, None, None]
        if self.kind == "patch":
            boxes = _boxes(tf.sqrt(strength), top, left, self.augmentation.size)
            share = _inside(boxes, self.augmentation.size)[..., None]
        return image_ops.clip(views + share * (wide.others(views) - views))


def wide_views(augmentation: Augmentation, kind: str) -> TriedViews | wide.WideViews:
    """The views of one of `KINDS`."""
    if kind in TRIED:
        return TriedViews(augmentation=augmentation, kind=kind)
    return wide.WideViews(augmentation=augmentation, kinds=(kind,))


def _boxes(side: tf.Tensor, top: tf.Tensor, left: tf.Tensor, size: int) -> tf.Tensor:
    """[B, 4] squares with `side` [B], as a share of the view's, anywhere in it."""
    top, left = (place * (1.0 - side) * size for place in (top, left))
    return tf.stack([top, left, top + side * size, left + side * size], axis=1)


def _inside(boxes: tf.Tensor, size: int) -> tf.Tensor:
    """[B, size, size]: 1 inside of a square, 0 outside."""
    centers = tf.range(size, dtype=tf.float32) + 0.5
    rows = (centers >= boxes[:, 0:1]) & (centers < boxes[:, 2:3])
    columns = (centers >= boxes[:, 1:2]) & (centers < boxes[:, 3:4])
    return tf.cast(rows[:, :, None] & columns[:, None, :], tf.float32)
