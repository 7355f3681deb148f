"""SimCLR+vMF on CIFAR-10 for two CPU cores: `convnet8` on views of 24 px, temperature 0.2, Muon.

    tfvmf train --config=cifar10_cpu --data_dir=DIR
    tfvmf fit-kappa runs/cifar10_cpu-simclr_vmf

58 minutes on 2 cores of a busy AMD Zen 5 (52 when idle, at 550 images per second), then 3 for the
head. One run, seed 0, on the 10,000 test images: k-NN accuracy 0.791 (k = 20, 48,000 voters, one
pass at 32 px), linear probe 0.820; a second run, on busier cores, took 76 minutes and gave the
same. The head that the second command fits: mean Spearman correlation -0.93 over the 18 corruptions
(CIFAR-10-C protocol, generated; 2,000 images), mean AUROC of single images, clean against
severity 5, 0.860.
"""

import ml_collections

from tfvmf.configs import cifar10_cpu_resnet


def get_config() -> ml_collections.ConfigDict:
    """A wide and shallow network, small views, 36 epochs; chosen in studies/recipe."""
    config = cifar10_cpu_resnet.get_config()
    config.name = "cifar10_cpu"
    config.epochs = 36
    config.data.view_share = 0.75
    config.augment.update({"brightness": 0.4, "contrast": 0.4, "saturation": 0.4})
    config.augment.gray_probability = 0.1
    config.model.backbone = "convnet8"
    config.model.width = 24
    config.model.one_pass = True
    config.simclr.temperature = 0.2
    config.optimizer.update({"name": "muon", "learning_rate": 0.1, "weight_decay": 0.0})
    return config
