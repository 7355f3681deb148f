"""What a run's newest checkpoint holds, and the smallest state that there is to save."""

import types

import keras
import numpy as np
import tensorflow as tf

from tfvmf.training.checkpoints import Checkpoints


def weights(workdir):
    """All tensors by name: weights, moments of the optimizer, step."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(workdir / "checkpoints")))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "save_counter" not in name and "OBJECT_GRAPH" not in name
    }


def assert_equal_weights(first, second, **tolerance):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_allclose(first[name], second[name], err_msg=name, **tolerance)


class Trained:
    """A method of one layer that has been trained for some steps, and its checkpoints."""

    def __init__(self, workdir, *, keep=3, units=3):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])
        self.weights = model.variables
        self.optimizer = keras.optimizers.SGD(momentum=0.9)
        self.optimizer.build(model.trainable_variables)
        method = types.SimpleNamespace(models={"encoder": model})
        self.checkpoints = Checkpoints(workdir, method, self.optimizer, keep=keep)

    def save(self, step):
        self.optimizer.iterations.assign(step)
        self.weights[0].assign(tf.fill(self.weights[0].shape, float(step)))
        self.checkpoints.save()

    def restored(self):
        """The step it goes on from, and the weight that it got."""
        return self.checkpoints.restore(), float(self.weights[0].numpy()[0, 0])
