"""The paper's run on CIFAR-100, whose kappa its OOD table uses: as configs/cifar10.py otherwise.

    tfvmf train --config=cifar100 --strategy=mirrored --data_dir=DIR

Not run here: it needs GPUs.
"""

import ml_collections

from tfvmf.configs import cifar10


def get_config() -> ml_collections.ConfigDict:
    """configs/cifar10.py on other images."""
    config = cifar10.get_config()
    config.name = "cifar100"
    config.data.source = "cifar100"
    return config
