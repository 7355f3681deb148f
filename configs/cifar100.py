"""The paper's CIFAR-100 run, whose kappa its OOD table uses: otherwise like configs/cifar10.py.

    tfvmf train --config=cifar100 --strategy=mirrored --data_dir=DIR

Not run here: it needs GPUs.
"""

import ml_collections

from tfvmf.configs import cifar10


def get_config() -> ml_collections.ConfigDict:
    """The settings of configs/cifar10.py on CIFAR-100."""
    config = cifar10.get_config()
    config.name = "cifar100"
    config.data.source = "cifar100"
    return config
