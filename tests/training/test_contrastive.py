"""`tfvmf.Contrastive`: a method that Keras compiles, fits, evaluates, saves and loads."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny import tiny_config

import tfvmf
from tfvmf import data, models, training
from tfvmf.errors import UserError
from tfvmf.methods import METHODS, build_method, building
from tfvmf.training.inputs import image_inputs, make_iterator
from tfvmf.training.optimizers import make_optimizer

STEPS, EPOCHS = 20, 4
QUICK = ("byol_vmf",)
SLOW = tuple(name for name in METHODS if name not in (*QUICK, "fit_kappa"))
# All that a run's configuration says of these is in the model's settings.
SETTINGS = {"swav.num_prototypes": 16, "mc_infonce.num_samples": 4, "model.hidden": 16}


class Losses(keras.callbacks.Callback):
    """The loss of each step: Keras shows the mean since the epoch began."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(float(logs["loss"]))
        self.model.reset_metrics()


def config_of(name):
    return tiny_config(
        method=name,
        epochs=EPOCHS,
        batch_size=276,
        log_every_steps=1,
        **{"monitor.every_epochs": 0.0, "model.width": 4, "model.dimension": 16, **SETTINGS},
    )


def make_model(config, num_classes):
    """The model of a run, with the weights that the run starts from."""
    own = METHODS[config.method]
    keys = {f"{own.section}.{key}" for key in own.settings} | {"model.hidden"}
    with building(seed=config.seed):
        start = build_method(config, num_classes=num_classes)
    model = training.Contrastive(
        start.encoder,
        method=config.method,
        augmentation=training.augmentation_from_config(config),
        settings={key: value for key, value in SETTINGS.items() if key in keys},
        num_classes=num_classes,
        seed=config.seed,
    )
    for part, values in start.models.items():
        getattr(model, part).set_weights(values.get_weights())
    optimizer = make_optimizer(
        config.optimizer,
        model.trainable_variables,
        steps_per_epoch=STEPS // EPOCHS,
        total_steps=STEPS,
    )
    model.compile(optimizer)
    return model


def batches_of(config):
    """The batches of a run, as a dataset."""
    inputs = image_inputs(config)
    made = make_iterator(tf.distribute.get_strategy(), inputs, config, total_steps=STEPS)(0)
    batches = list(itertools.islice(made, STEPS))
    images = tf.data.Dataset.from_tensor_slices(np.stack([batch["image"] for batch in batches]))
    if not METHODS[config.method].needs_labels:
        return images, 0
    labels = np.stack([batch["label"] for batch in batches])
    return tf.data.Dataset.zip(images, tf.data.Dataset.from_tensor_slices(labels)), 10


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_fit_and_train_compute_the_same_losses(name, tmp_path):
    config = config_of(name)
    training.train(config, tmp_path / "run")
    expected = [line["loss"] for line in training.read_metrics(tmp_path / "run")]
    dataset, num_classes = batches_of(config)
    model, losses = make_model(config, num_classes), Losses()
    model.fit(dataset, epochs=EPOCHS, steps_per_epoch=5, callbacks=[losses], verbose=0)
    assert len(losses.values) == len(expected) == STEPS
    difference = max(np.abs(np.subtract(losses.values, expected)))
    print(f"| {name} | {expected[0]:.6f} | {expected[-1]:.6f} | {difference:.1e} |")
    assert difference <= 1e-6
