"""As `cifar10_cpu`, with a concentration head that sees all levels and learns from wide views.

    bin/train --config=configs/cifar10_cpu_wide.py --data_dir=DIR

Not the paper's recipe: see docs/kappa.md. The encoder is trained as in `cifar10_cpu`, a step costs
one more view. The numbers in docs/kappa.md are of the same head fitted afterwards,

    bin/fit_kappa --encoder=runs/cifar10_cpu-simclr_vmf

which takes minutes; this joint run has not been measured on CIFAR-10.
"""

import ml_collections

from configs import cifar10_cpu


def get_config() -> ml_collections.ConfigDict:
    """The wide recipe."""
    config = cifar10_cpu.get_config()
    config.name = "cifar10_cpu_wide"
    config.concentration.levels = "all"
    config.concentration.views = "wide"
    return config
