"""The smallest run that trains: a second on the embedded digits, once its graph is built."""

from tfvmf.config import default_config


def tiny_config(**changes):
    """Four steps an epoch; `changes` are dotted settings."""
    config = default_config()
    config.epochs = 2
    config.batch_size = 349
    config.data.image_size = 8
    config.model.backbone = "resnet10"  # half the layers: half the time that graphs take
    config.model.width = 2
    config.model.dimension = 8
    config.model.hidden = 8
    config.optimizer.warmup_epochs = 0.5
    config.monitor.every_epochs = 1.0
    config.log_every_steps = 3
    config.update_from_flattened_dict(changes)
    return config
