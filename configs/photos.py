"""SimCLR+vMF on a folder of your own photographs, for two CPU cores: the default for folders.

    tfvmf train folder:/my/photos --config.minutes=60

Images of 96x96 pixels, mirrored and recolored views, a ResNet-18 of width 32 whose first layers
shrink the image as on ImageNet. A tenth of the training images is kept for calibration. Not run to
the end here; docs/photos.md says what a folder may contain.
"""

import ml_collections

from tfvmf.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """For hundreds to tens of thousands of photographs."""
    config = default_config()
    config.name = "photos"
    config.epochs = 50
    config.batch_size = 128
    config.data.image_size = 96
    config.data.reserve = 0.1
    config.augment.brightness = 0.4
    config.augment.contrast = 0.4
    config.augment.saturation = 0.4
    config.model.width = 32
    config.model.stem = "imagenet"
    config.byol.output_norm = True
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_epochs = 5.0
    config.monitor.every_epochs = 10.0
    config.checkpoint.every_epochs = 5.0
    return config
