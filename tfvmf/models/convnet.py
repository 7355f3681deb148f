"""A plain, wide and shallow network for CPUs that shows every level, as the ResNets do."""

import keras
from keras import layers

from tfvmf.models.layers import Dropout
from tfvmf.models.resnet import build_stem, conv_norm

# Channels of each stage, as multiples of the width. Winograd's method makes a 3x3 convolution of
# many channels on small maps cheap (`layers.Convolution`), so that is where the channels are.
STAGES = (1, 2, 8, 16)


def build_backbone(
    name: str = "convnet8", *, width: int = 16, stem: str = "cifar", dropout: float = 0.0
) -> keras.Model:
    """Builds the network without its classifier.

    The stem is the first stage. Each of the three others is: 3x3 convolution, max-pooling of 2x2,
    batch norm, ReLU, 3x3 convolution, batch norm, ReLU. There are no shortcuts: they brought
    nothing at this depth. `convnet8` has seven convolutions and, as the ResNets count, a
    classifier. Arguments and outputs are those of `resnet.build_backbone`, but the stages after
    the first have 2, 8 and 16 times `width` channels, and dropout is in each stage.
    """
    if name != "convnet8":
        raise ValueError(f"backbone {name!r} is unknown: use convnet8")
    images, x = build_stem(width, stem)
    outputs = {"stage1": x}
    for stage, multiple in enumerate(STAGES[1:], start=2):
        x = conv_norm(x, multiple * width, 3, 1, f"stage{stage}_1", pool=2)
        x = layers.ReLU(name=f"stage{stage}_1_relu")(x)
        if dropout:
            x = Dropout(dropout, name=f"stage{stage}_dropout")(x)
        x = conv_norm(x, multiple * width, 3, 1, f"stage{stage}_2")
        x = outputs[f"stage{stage}"] = layers.ReLU(name=f"stage{stage}_relu")(x)
    outputs["features"] = layers.GlobalAveragePooling2D(name="pool", dtype="float32")(x)
    return keras.Model(images, outputs, name=name)
