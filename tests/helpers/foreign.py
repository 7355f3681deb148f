"""A small network from elsewhere: nothing of tfvmf in it, as keras.applications makes them."""

import keras
import numpy as np
from keras import layers


def foreign_cnn(*, size=24, outputs="list", pixels="float32"):
    """Maps `stem` and `block`, pooled `avg`, classes `top`; batch norms that look trained."""
    keras.utils.set_random_seed(3)
    images = keras.Input((size, size, 3), name="pictures", dtype=pixels)
    x = layers.Rescaling(1 / 127.5, offset=-1.0, name="scale")(images)
    x = layers.Conv2D(8, 3, strides=2, use_bias=False, name="conv")(x)
    x = layers.BatchNormalization(name="norm")(x)
    stem = layers.ReLU(name="stem")(x)
    x = layers.DepthwiseConv2D(3, name="depthwise")(stem)
    block = layers.Conv2D(16, 1, activation="relu", name="block")(x)
    pooled = layers.GlobalAveragePooling2D(name="avg")(block)
    top = layers.Dense(5, activation="softmax", name="top")(pooled)
    made = {
        "list": [pooled, top],
        "one": top,
        "dict": {"features": pooled, "classes": top},
        "maps": {"stem": stem, "block": block, "features": block},
        "boxes": layers.Reshape((4, 4), name="boxes")(pooled),
    }[outputs]
    model = keras.Model(images, made, name="foreign")
    rng = np.random.default_rng(1)
    for variable in model.get_layer("norm").variables:
        variable.assign(variable + rng.uniform(0.0, 0.3, variable.shape))
    return model
