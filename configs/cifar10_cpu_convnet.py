"""SimCLR+vMF on CIFAR-10 for two CPU cores: `convnet8` on views of 24 px, temperature 0.2, Muon.

    tfvmf train --config=cifar10_cpu_convnet --data_dir=DIR
    tfvmf fit-kappa runs/cifar10_cpu_convnet-simclr_vmf --cache_views=2

These settings have not been trained, not even for an epoch. 30 epochs should take 50 minutes on 2
cores (estimated from 260 image pairs per CPU second in studies/recipe), then 5 for the head.
An earlier run of the same network, views and temperature with Adam (rate 2e-3, 20 epochs, 33
minutes) gave a k-NN accuracy of 0.701 (k = 20, all voters) and, with the second command, a mean
Spearman correlation of -0.90 over the 18 corruptions; it was not repeated. Muon is preferred to
Adam for one pair of runs of 2 minutes (one seed, neither rate tuned for them): 0.532 and 0.476.
"""

import ml_collections

from tfvmf.configs import cifar10_cpu


def get_config() -> ml_collections.ConfigDict:
    """A wide and shallow network, small views, 30 epochs."""
    config = cifar10_cpu.get_config()
    config.name = "cifar10_cpu_convnet"
    config.epochs = 30
    config.data.view_share = 0.75
    config.augment.update({"brightness": 0.4, "contrast": 0.4, "saturation": 0.4})
    config.augment.gray_probability = 0.1
    config.model.backbone = "convnet8"
    config.model.one_pass = True
    config.simclr.temperature = 0.2
    config.optimizer.update({"name": "muon", "learning_rate": 0.03, "weight_decay": 0.0})
    return config
