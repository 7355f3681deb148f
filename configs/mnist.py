"""SimCLR+vMF on MNIST as 32x32 RGB, whose kappa the paper's OOD table uses.

    tfvmf train --config=mnist --data_dir=DIR

Not run here.
"""

import ml_collections

from tfvmf.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """A narrow ResNet-18, views without mirror images."""
    config = default_config()
    config.name = "mnist"
    config.epochs = 5
    config.data.source = "mnist"
    config.augment.flip_probability = 0.0  # a mirrored digit is another sign
    config.model.width = 16
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_epochs = 1.0
    config.monitor.every_epochs = 1.0
    return config
