"""The paper's main run: SimCLR+vMF on CIFAR-10, ResNet-50, d = 128, batch 512, 1000 epochs.

    tfvmf train --config=cifar10 --strategy=mirrored --data_dir=DIR

Not run here: it needs GPUs. The paper reports a mean Spearman correlation of -0.883 over 18
corruptions, and a k-NN accuracy around 0.86.
"""

import ml_collections

from tfvmf.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """The paper's settings."""
    config = default_config()
    config.name = "cifar10"
    config.epochs = 1000
    config.batch_size = 512
    config.data.source = "cifar10"
    config.model.backbone = "resnet50"
    config.optimizer.learning_rate = 1e-3
    config.monitor.every_epochs = 20.0
    config.monitor.neighbors = 200
    config.monitor.bank_images = 50_000
    config.monitor.query_images = 10_000
    config.checkpoint.every_epochs = 5.0
    return config
