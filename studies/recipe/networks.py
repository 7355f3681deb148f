"""The trunks that the search compares: images -> features, with the project's own layers."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import layers

from tfvmf.models.layers import BatchNorm, Convolution


def build_trunk(
    channels: Sequence[int] = (16, 32, 128, 256),
    *,
    depth: int = 2,
    residual: bool = False,
    activation: str = "relu",
    features: str = "last",
    whitening: np.ndarray | None = None,
) -> keras.Model:
    """Builds a plain convolutional network without a classifier.

    Args:
        channels: Of the stem and of each group.
        depth: Convolutions of 3x3 pixels in a group; the max-pooling follows the first one.
        residual: Whether the convolutions after a group's first are added to its result.
        activation: A name that Keras knows.
        features: `last`: the mean of the last map; `last2`: also of the map before it.
        whitening: Filters [k, k, 3, n] of a frozen first layer, in place of a learned one.

    Returns:
        A model from float images [B, H, W, 3] in [0, 1] to features [B, F].
    """
    images = keras.Input((None, None, 3))
    x = layers.Rescaling(4.0, offset=-2.0)(images)

    def conv_norm(x: keras.KerasTensor, filters: int, *, pool: bool = False) -> keras.KerasTensor:
        start = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
        x = Convolution(filters, 3, padding="same", use_bias=False, kernel_initializer=start)(x)
        if pool:
            x = layers.MaxPooling2D(2)(x)
        return layers.Activation(activation)(BatchNorm()(x))

    if whitening is None:
        x = conv_norm(x, channels[0])
    else:
        frozen = keras.initializers.Constant(whitening)
        x = layers.Conv2D(
            whitening.shape[-1],
            whitening.shape[0],
            padding="same",
            use_bias=False,
            kernel_initializer=frozen,
            trainable=False,
        )(x)
        x = layers.Activation(activation)(x)
    levels = []
    for width in channels[1:]:
        x = conv_norm(x, width, pool=True)
        before = x
        for _ in range(depth - 1):
            x = conv_norm(x, width)
        if residual:
            x = layers.Add()([before, x])
        levels.append(x)
    pooled = [layers.GlobalAveragePooling2D()(level) for level in levels]
    outputs = pooled[-1] if features == "last" else layers.Concatenate()(pooled[-2:])
    return keras.Model(images, outputs, name="trunk")


def build_projector(
    features: int, *, hidden: Sequence[int] = (512,), dimension: int = 128
) -> keras.Model:
    """Linear, batch norm, ReLU as often as `hidden` says, then linear to `dimension`."""
    inputs = keras.Input((features,))
    x = inputs
    for units in hidden:
        x = layers.ReLU()(BatchNorm()(layers.Dense(units, use_bias=False)(x)))
    return keras.Model(inputs, layers.Dense(dimension)(x), name="projector")


def whitening_filters(images: np.ndarray, *, size: int = 3, epsilon: float = 5e-4) -> np.ndarray:
    """Eigenvectors of random patches and their negatives, each of unit variance, [k, k, 3, n].

    Args:
        images: uint8 [N, H, W, 3].
        size: k.
        epsilon: Added to the eigenvalues.
    """
    draw = np.random.default_rng(0)
    rows = draw.choice(len(images), min(5000, len(images)), replace=False)
    pixels = images[rows].astype(np.float32) / 255 * 4 - 2  # as the network's first layer scales
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (size, size), axis=(1, 2))
    patches = windows[:, ::4, ::4].transpose(0, 1, 2, 4, 5, 3).reshape(-1, size * size * 3)
    values, vectors = np.linalg.eigh(np.cov(patches, rowvar=False))
    filters = (vectors / np.sqrt(values + epsilon)).T.reshape(-1, size, size, 3)
    filters = np.concatenate([filters, -filters])
    return filters.transpose(1, 2, 3, 0).astype(np.float32)
