import keras
import numpy as np
import pytest
import tensorflow as tf

from tfvmf import data, models
from tfvmf.counter_random import example_seeds
from tfvmf.evaluation import SCORES, uncertainty

AUGMENTATION = data.Augmentation(size=8)


def build(seed, **options):
    keras.utils.set_random_seed(seed)
    return models.build_encoder(width=2, dimension=8, hidden=16, **options)


@pytest.fixture(scope="module")
def encoder():
    return build(0, dropout=0.3)


@pytest.fixture
def images(rng):
    return rng.integers(0, 256, (7, 8, 8, 3), dtype=np.uint8)


def forward(encoder, images):
    return {k: v.numpy() for k, v in encoder(images / np.float32(255)).items()}


def test_kappa_and_feature_norm_are_of_one_pass(encoder, images):
    values = uncertainty(encoder, images, scores=("kappa", "feature_norm"))
    outputs = forward(encoder, images)
    np.testing.assert_allclose(values["kappa"], outputs["concentration"], rtol=1e-5)
    expected = np.linalg.norm(outputs["features"], axis=1)
    np.testing.assert_allclose(values["feature_norm"], expected, rtol=1e-5)


def test_ensemble_variance_is_the_papers(encoder, images):
    members = [encoder, build(1), build(2)]
    value = uncertainty(members, images, scores=("ensemble",))["ensemble"]
    stacked = np.stack([forward(member, images)["features"] for member in members])
    mean = stacked.sum(axis=0) / 3
    expected = (((stacked - mean) ** 2).sum(axis=0) / 3).sum(axis=1) / stacked.shape[2]
    np.testing.assert_allclose(value, expected, rtol=1e-4)


def test_dropout_variance_is_over_passes_in_inference_mode(encoder, images):
    value = uncertainty(encoder, images, scores=("dropout",), num_passes=5, seed=3)["dropout"]
    passes = []
    for number in range(5):
        with models.dropout_masks(example_seeds(3, number, tf.zeros([7], tf.int32), 0)):
            passes.append(forward(encoder, images)["features"])
    np.testing.assert_allclose(value, np.var(passes, axis=0).mean(axis=1), rtol=1e-4)
    part = uncertainty(encoder, images[3:], scores=("dropout",), num_passes=5, seed=3)["dropout"]
    np.testing.assert_allclose(part, value[3:], rtol=1e-4)  # whatever the batch


def test_agreement_is_the_mean_cosine_of_views(encoder, images):
    options = {"scores": ("agreement",), "augmentation": AUGMENTATION, "num_views": 4}
    value = uncertainty(encoder, images, **options)["agreement"]
    directions = []
    for number in range(4):
        views = AUGMENTATION(images, example_seeds(0, number, tf.zeros([7], tf.int32), 0))
        directions.append(encoder(views)["mean_direction"].numpy())
    pairs = [(i, j) for i in range(4) for j in range(i)]
    cosines = np.mean([(directions[i] * directions[j]).sum(axis=1) for i, j in pairs], axis=0)
    np.testing.assert_allclose(value, cosines, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scores": ("entropy",)}, "unknown"),
        ({"scores": ()}, "at least one"),
        ({"scores": ("ensemble",)}, "2 members"),
        ({"scores": ("dropout",), "num_passes": 0}, "passes"),
        ({"scores": ("agreement",)}, "augmentation"),
    ],
)
def test_says_what_a_score_needs(encoder, images, options, message):
    with pytest.raises(ValueError, match=message):
        uncertainty(encoder, images, **options)


def test_a_model_without_dropout_has_no_dropout_variance(images):
    with pytest.raises(ValueError, match="with dropout"):
        uncertainty(build(1), images, scores=("dropout",))


def test_high_always_means_uncertain():
    values = np.array([1.0, 2.0])
    assert np.argmax(SCORES["kappa"].uncertainty(values)) == 0
    assert np.argmax(SCORES["ensemble"].uncertainty(values)) == 1
