"""ResNet-10, 18, 34 and 50 as Keras models that show every level of the network."""

import dataclasses

import keras
from keras import layers

from tfvmf.models.layers import BatchNorm, Convolution, Dropout
from tfvmf.settings import STEMS


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How many blocks each of the four stages has, of which kind, and what they cost."""

    blocks: tuple[int, int, int, int]
    bottleneck: bool  # 1x1, 3x3 and 1x1 convolutions; otherwise two of 3x3
    relative_cost: float  # multiplications on an image of 32x32 pixels, relative to ResNet-18

    @property
    def expansion(self) -> int:
        """Channels that a block puts out, as a multiple of its stage's width."""
        return 4 if self.bottleneck else 1


ARCHITECTURES = {
    "resnet10": Architecture((1, 1, 1, 1), bottleneck=False, relative_cost=0.46),
    "resnet18": Architecture((2, 2, 2, 2), bottleneck=False, relative_cost=1.0),
    "resnet34": Architecture((3, 4, 6, 3), bottleneck=False, relative_cost=2.1),
    "resnet50": Architecture((3, 4, 6, 3), bottleneck=True, relative_cost=2.3),
}


def build_backbone(
    name: str = "resnet18", *, width: int = 64, stem: str = "cifar", dropout: float = 0.0
) -> keras.Model:
    """Builds a ResNet without its classifier.

    Args:
        name: `resnet10`, `resnet18`, `resnet34` or `resnet50`.
        width: Channels of the first stage; each later stage has twice as many. 64 is the
            original, 16 a sixteenth of the work.
        stem: `cifar` for small images (3x3 convolution, no pooling, as in the paper) or
            `imagenet` (7x7 convolution of stride 2 and max-pooling).
        dropout: Probability of dropping a channel before the last convolution of each block
            (`Dropout`); 0 for no such layers.

    Returns:
        A model from float images [B, H, W, 3] with values in [0, 1] to a dictionary: the feature
        maps `stage1` ... `stage4` and `features` [B, F], the last map averaged over space
        (F = 8 width, times 4 for ResNet-50).
    """
    if name not in ARCHITECTURES:
        raise ValueError(f"backbone {name!r} is unknown: use one of {', '.join(ARCHITECTURES)}")
    architecture = ARCHITECTURES[name]
    images, x = build_stem(width, stem)
    outputs = {}
    for stage, blocks in enumerate(architecture.blocks, start=1):
        channels = width * 2 ** (stage - 1)
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            name_of_block = f"stage{stage}_block{block + 1}"
            x = _block(x, channels, stride, architecture, name_of_block, dropout)
        outputs[f"stage{stage}"] = x
    outputs["features"] = layers.GlobalAveragePooling2D(name="pool", dtype="float32")(x)
    return keras.Model(images, outputs, name=name)


def build_stem(width: int, stem: str) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """The input of a backbone and its first `width` feature maps; see `build_backbone`."""
    if stem not in STEMS:
        raise ValueError(f"stem {stem!r} is unknown: use one of {', '.join(STEMS)}")
    if width < 1:
        raise ValueError(f"width must be at least 1, not {width}")
    images = keras.Input((None, None, 3), name="images")
    # Center and scale alike for all data: the first normalization layer makes a data set's own
    # constants redundant, and a served model needs none.
    x = layers.Rescaling(4.0, offset=-2.0, name="rescale")(images)
    kernel, stride = (3, 1) if stem == "cifar" else (7, 2)
    x = layers.ReLU(name="stem_relu")(conv_norm(x, width, kernel, stride, "stem"))
    if stem == "imagenet":
        x = layers.MaxPooling2D(3, 2, padding="same", name="stem_pool")(x)
    return images, x


def conv_norm(
    x: keras.KerasTensor, channels: int, kernel: int, stride: int, name: str, *, pool: int = 1
) -> keras.KerasTensor:
    """Convolution without bias, the greatest of each `pool` x `pool` values, batch norm."""
    x = Convolution(
        channels,
        kernel,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"),
        name=f"{name}_conv",
    )(x)
    if pool > 1:
        x = layers.MaxPooling2D(pool, padding="same", name=f"{name}_pool")(x)
    return BatchNorm(name=f"{name}_norm")(x)


def _block(
    x: keras.KerasTensor,
    channels: int,
    stride: int,
    architecture: Architecture,
    name: str,
    dropout: float,
) -> keras.KerasTensor:
    """A residual block: relu(shortcut(x) + convolutions(x))."""
    outputs = channels * architecture.expansion
    # (kernel, stride, channels); a bottleneck strides in its 3x3 convolution.
    plan = (
        [(1, 1, channels), (3, stride, channels), (1, 1, outputs)]
        if architecture.bottleneck
        else [(3, stride, channels), (3, 1, outputs)]
    )
    shortcut = x
    if stride != 1 or x.shape[-1] != outputs:
        if stride != 1:
            # Every other pixel first, then a convolution without a stride: the same numbers. With
            # one, oneDNN's AVX2 kernel for the filter's gradient has a race where channels are
            # few: 11 of 60 gradients of [698, 8, 8, 2] -> [698, 4, 4, 4] were wrong, by up to 37 %.
            shortcut = layers.AveragePooling2D(1, stride, padding="same", name=f"{name}_skip")(x)
        shortcut = conv_norm(shortcut, outputs, 1, 1, f"{name}_shortcut")
    for position, (kernel, step, filters) in enumerate(plan, start=1):
        if dropout and position == len(plan):
            x = Dropout(dropout, name=f"{name}_dropout")(x)
        x = conv_norm(x, filters, kernel, step, f"{name}_{position}")
        if position < len(plan):
            x = layers.ReLU(name=f"{name}_{position}_relu")(x)
    return layers.ReLU(name=f"{name}_relu")(layers.Add(name=f"{name}_add")([shortcut, x]))
