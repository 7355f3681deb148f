"""Callbacks that watch an encoder in any Keras training."""

import keras
import numpy as np
import pytest

from tfvmf import data, neighbors
from tfvmf.callbacks import KappaMonitor, KNNMonitor
from tfvmf.data.corruptions import corrupt
from tfvmf.errors import UserError


@pytest.fixture(scope="module")
def digits():
    source = data.load_source("digits", "test", image_size=8)
    return source.images(0, 60), source.labels[:60]


@pytest.fixture
def encoder():
    """Kappa is the mean pixel; features and direction are the pixels."""
    images = keras.Input((8, 8, 3))
    features = keras.layers.Flatten()(images)
    kappa = keras.layers.Reshape(())(keras.layers.Dense(1, kernel_initializer="ones")(features))
    outputs = {
        "features": features,
        "mean_direction": keras.layers.UnitNormalization()(features),
        "concentration": keras.layers.Rescaling(1 / 192)(kappa),
    }
    return keras.Model(images, outputs)


class Around(keras.Model):
    """Any training of one's own: here it does nothing."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.built = True

    def train_step(self, data):
        return {"loss": keras.ops.mean(data)}


def fit(model, callback, **options):
    model.compile("sgd")
    return model.fit(np.ones((4, 1)), callbacks=[callback], verbose=0, **options).history


def test_kappa_is_logged_on_clean_and_corrupted_images(encoder, digits):
    monitor = KappaMonitor(digits[0], corruptions=["contrast", "Gaussian Noise"], severity=3)
    history = fit(Around(encoder), monitor, epochs=2)
    clean = digits[0].mean() / 255
    corrupted = corrupt(digits[0], "contrast", 3).mean() / 255
    assert history["kappa_clean"] == pytest.approx([clean, clean], rel=1e-4)
    assert history["kappa_contrast"] == pytest.approx([corrupted, corrupted], rel=1e-4)
    assert len(history["kappa_gaussian_noise"]) == len(history["loss"]) == 2


def test_floats_in_the_unit_interval_are_the_same_images(encoder, digits):
    monitors = [KappaMonitor(images, corruptions=[]) for images in (digits[0], digits[0] / 255)]
    first, second = (fit(Around(encoder), monitor)["kappa_clean"] for monitor in monitors)
    assert first == second


def test_the_accuracy_of_nearest_neighbors_is_logged(encoder, digits):
    images, labels = digits
    pixels = images.reshape(60, -1) / np.float32(255)
    expected = neighbors.classify(pixels[40:], pixels[:40], labels[:40], k=3) == labels[40:]
    monitor = KNNMonitor(
        (images[:40], labels[:40]), (images[40:], labels[40:]), neighbors=3, every=2
    )
    history = fit(Around(encoder), monitor, epochs=3)
    assert history["knn_accuracy"] == pytest.approx([expected.mean()])  # of the second epoch
    assert history["direction_std"][0] > 0


def test_what_cannot_be_watched_is_refused(encoder, digits):
    images, labels = digits
    plain = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(UserError, match=r"KappaMonitor: .* has no output concentration; pass enc"):
        fit(plain, KappaMonitor(images, corruptions=[]))
    assert fit(Around(plain), KappaMonitor(images, corruptions=[], encoder=encoder))
    with pytest.raises(UserError, match="unknown corruption 'nois'"):
        KappaMonitor(images, corruptions=["nois"])
    with pytest.raises(UserError, match=r"float64 from 0 to 25.*expected uint8"):
        KappaMonitor(images.astype(float))
    with pytest.raises(UserError, match="60 images but labels of shape"):
        KNNMonitor((images, labels[:5]), (images, labels))
    with pytest.raises(UserError, match="every=0"):
        KappaMonitor(images, every=0)
