"""SimCLR+vMF on CIFAR-10 for two CPU cores: ResNet-18 of width 16, the paper's losses.

    tfvmf train --config=cifar10_cpu_resnet --data_dir=DIR

45 minutes on 2 CPU cores at 320 image pairs per second, 65 on slower ones (215). With
`--config.model.one_pass=true`, it reached a k-NN accuracy of 0.577 on the 10,000 test images
(k = 20; 0.559 at k = 200), and a mean Spearman correlation of -0.56 over the 18 corruptions
(CIFAR-10-C protocol, generated). 8 epochs with the default, one pass per view: k-NN 0.505, mean
Spearman -0.54 (1,000 images). These runs had no reserve: all 50,000 images were trained on.
"""

import ml_collections

from tfvmf.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """A sixteenth of a ResNet-18's work, 16 epochs."""
    config = default_config()
    config.name = "cifar10_cpu_resnet"
    config.epochs = 16
    config.batch_size = 256
    config.data.source = "cifar10"
    config.data.reserve = 2000.0
    config.model.width = 16
    config.byol.output_norm = True
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_epochs = 1.0
    config.monitor.every_epochs = 2.0
    return config
