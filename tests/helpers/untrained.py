"""A run directory as training leaves it, without the training."""

import keras
import numpy as np

from helpers.tiny import tiny_config
from tfvmf.methods import build_method
from tfvmf.training import run_directory
from tfvmf.training.checkpoints import Checkpoints


def make_run(workdir, *, num_classes=0, **changes):
    """Writes a run whose batch norms look trained; `changes` are dotted settings."""
    config = tiny_config(**{"data.image_size": 16, "model.width": 4, **changes})
    keras.utils.set_random_seed(0)
    method = build_method(config, num_classes=num_classes)
    rng = np.random.default_rng(1)
    for variable in method.encoder.variables:
        if len(variable.shape) == 1:
            # Statistics and scales away from 0 and 1: batch norm in the wrong mode would show.
            variable.assign(variable + rng.uniform(0.0, 0.3, variable.shape))
    run_directory.write_or_check_config(
        workdir, config, {"num_classes": num_classes, "train_images": 1397}
    )
    optimizer = keras.optimizers.SGD()
    optimizer.build(method.trainable_variables)
    optimizer.iterations.assign(7)
    Checkpoints(workdir, method, optimizer, keep=1).save()
    return workdir
