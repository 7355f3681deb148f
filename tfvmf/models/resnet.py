"""Networks with outputs at every level: ResNet-10, 18, 34 and 50, and a shallow one for CPUs."""

import keras
from keras import layers

from tfvmf.models.layers import BatchNorm, Convolution, Dropout
from tfvmf.settings import STEMS

# Blocks in each of the four stages, and whether they are bottlenecks: 1x1, 3x3 and 1x1
# convolutions, the last with 4 times the channels. Other blocks are two 3x3 convolutions.
ARCHITECTURES = {
    "resnet10": ((1, 1, 1, 1), False),
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
}
# Channels of `convnet8` after the stem, as multiples of the width. Most are on small maps, where
# Winograd's method makes 3x3 convolutions of many channels cheap (`layers.Convolution`).
_CONVNET8 = (2, 8, 16)


def build_backbone(
    name: str = "resnet18", *, width: int = 64, stem: str = "cifar", dropout: float = 0.0
) -> keras.Model:
    """Builds a network without its classifier.

    The first stage of `convnet8` is the stem. Each of the other three is: 3x3 convolution, 2x2
    max-pooling, batch norm, ReLU, 3x3 convolution, batch norm, ReLU. Shortcuts did not help at this
    depth.

    Args:
        name: `resnet10`, `resnet18`, `resnet34`, `resnet50` or `convnet8`.
        width: Channels of the first stage; each later stage has twice as many (2, 8 and 16 times
            as many in `convnet8`). 64 is the original ResNet, 16 a sixteenth of the work.
        stem: `cifar` for small images (3x3 convolution, no pooling, as in the paper) or
            `imagenet` (7x7 convolution of stride 2 and max-pooling).
        dropout: Probability of dropping a channel before the last convolution of each block or, in
            `convnet8`, stage (`Dropout`); 0 for no such layers.

    Returns:
        A model from float images [B, H, W, 3] with values in [0, 1] to a dictionary: the feature
        maps `stage1` ... `stage4` and `features` [B, F], the last map averaged over space
        (F = 8 width, times 4 for ResNet-50; 16 width for `convnet8`).
    """
    known = (*ARCHITECTURES, "convnet8")
    if name not in known:
        raise ValueError(f"backbone {name!r} is unknown: use one of {', '.join(known)}")
    if stem not in STEMS:
        raise ValueError(f"stem {stem!r} is unknown: use one of {', '.join(STEMS)}")
    if width < 1:
        raise ValueError(f"width must be at least 1, not {width}")
    images = keras.Input((None, None, 3), name="images")
    # The same center and scale for all data: the first normalization layer makes the constants of
    # a data set redundant, and a served model needs none.
    x = layers.Rescaling(4.0, offset=-2.0, name="rescale")(images)
    kernel, stride = (3, 1) if stem == "cifar" else (7, 2)
    x = layers.ReLU(name="stem_relu")(_conv_norm(x, width, kernel, stride, "stem"))
    if stem == "imagenet":
        x = layers.MaxPooling2D(3, 2, padding="same", name="stem_pool")(x)
    outputs = {}
    if name == "convnet8":
        outputs["stage1"] = x
        for stage, multiple in enumerate(_CONVNET8, start=2):
            x = _conv_norm(x, multiple * width, 3, 1, f"stage{stage}_1", pool=2)
            x = layers.ReLU(name=f"stage{stage}_1_relu")(x)
            if dropout:
                x = Dropout(dropout, name=f"stage{stage}_dropout")(x)
            x = _conv_norm(x, multiple * width, 3, 1, f"stage{stage}_2")
            x = outputs[f"stage{stage}"] = layers.ReLU(name=f"stage{stage}_relu")(x)
    else:
        counts, bottleneck = ARCHITECTURES[name]
        for stage, blocks in enumerate(counts, start=1):
            for block in range(1, blocks + 1):
                stride = 2 if stage > 1 and block == 1 else 1
                channels, place = width * 2 ** (stage - 1), f"stage{stage}_block{block}"
                x = _block(x, channels, stride, bottleneck, place, dropout)
            outputs[f"stage{stage}"] = x
    outputs["features"] = layers.GlobalAveragePooling2D(name="pool", dtype="float32")(x)
    return keras.Model(images, outputs, name=name)


def _conv_norm(
    x: keras.KerasTensor, channels: int, kernel: int, stride: int, name: str, *, pool: int = 1
) -> keras.KerasTensor:
    """Convolution without bias, `pool` x `pool` max-pooling, batch norm."""
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
    x: keras.KerasTensor, channels: int, stride: int, bottleneck: bool, name: str, dropout: float
) -> keras.KerasTensor:
    """A residual block: relu(shortcut(x) + convolutions(x))."""
    outputs = channels * 4 if bottleneck else channels
    # (kernel, stride, channels); a bottleneck strides in its 3x3 convolution.
    plan = [(3, stride, channels), (3, 1, outputs)]
    if bottleneck:
        plan = [(1, 1, channels), (3, stride, channels), (1, 1, outputs)]
    shortcut = x
    if stride != 1 or x.shape[-1] != outputs:
        if stride != 1:
            # Every other pixel first, then a convolution without stride: the same numbers. With a
            # stride, oneDNN's AVX2 kernel for the filter's gradient has a race for few channels:
            # 11 of 60 gradients of [698, 8, 8, 2] -> [698, 4, 4, 4] were wrong, by up to 37 %.
            shortcut = layers.AveragePooling2D(1, stride, padding="same", name=f"{name}_skip")(x)
        shortcut = _conv_norm(shortcut, outputs, 1, 1, f"{name}_shortcut")
    for position, (kernel, step, filters) in enumerate(plan, start=1):
        if dropout and position == len(plan):
            x = Dropout(dropout, name=f"{name}_dropout")(x)
        x = _conv_norm(x, filters, kernel, step, f"{name}_{position}")
        if position < len(plan):
            x = layers.ReLU(name=f"{name}_{position}_relu")(x)
    return layers.ReLU(name=f"{name}_relu")(layers.Add(name=f"{name}_add")([shortcut, x]))
