import keras
import numpy as np
import pytest
import tensorflow as tf

from tfvmf import data, models
from tfvmf.counter_random import example_seeds
from tfvmf.errors import UserError
from tfvmf.evaluation import SCORES, Uncertainty, uncertainty

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
    values = uncertainty(encoder, images, score=("kappa", "feature_norm"))
    outputs = forward(encoder, images)
    np.testing.assert_allclose(values["kappa"], outputs["concentration"], rtol=1e-5)
    expected = np.linalg.norm(outputs["features"], axis=1)
    np.testing.assert_allclose(values["feature_norm"], expected, rtol=1e-5)


def test_ensemble_variance_is_the_papers(encoder, images):
    members = [encoder, build(1), build(2)]
    value = uncertainty(members, images, score=("ensemble",))["ensemble"]
    stacked = np.stack([forward(member, images)["features"] for member in members])
    mean = stacked.sum(axis=0) / 3
    expected = (((stacked - mean) ** 2).sum(axis=0) / 3).sum(axis=1) / stacked.shape[2]
    np.testing.assert_allclose(value, expected, rtol=1e-4)


def test_dropout_variance_is_over_passes_in_inference_mode(encoder, images):
    value = uncertainty(encoder, images, score=("dropout",), num_passes=5, seed=3)["dropout"]
    passes = []
    for number in range(5):
        with models.dropout_masks(example_seeds(3, number, tf.zeros([7], tf.int32), 0)):
            passes.append(forward(encoder, images)["features"])
    np.testing.assert_allclose(value, np.var(passes, axis=0).mean(axis=1), rtol=1e-4)
    part = uncertainty(encoder, images[3:], score=("dropout",), num_passes=5, seed=3)["dropout"]
    np.testing.assert_allclose(part, value[3:], rtol=1e-4)  # whatever the batch


def test_agreement_is_the_mean_cosine_of_views(encoder, images):
    options = {"score": ("agreement",), "augmentation": AUGMENTATION, "num_views": 4}
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
        ({"score": "entropy"}, "unknown"),
        ({"score": "kapa"}, "did you mean kappa"),
        ({"score": ()}, "at least one"),
        ({"score": ("ensemble",)}, "2 members"),
        ({"score": ("dropout",), "num_passes": 0}, "passes"),
        ({"score": ("agreement",)}, "augmentation"),
    ],
)
def test_says_what_a_score_needs(encoder, images, options, message):
    with pytest.raises(ValueError, match=message):
        uncertainty(encoder, images, **options)


def test_pixels_may_be_uint8_or_float(encoder, images):
    measure, floats = Uncertainty(encoder), images / 255
    kappa = forward(encoder, images)["concentration"]
    for same in (images, list(images), floats, floats.astype(np.float32), tf.constant(floats)):
        np.testing.assert_allclose(measure(same)["kappa"], kappa, rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda images: images.astype(np.float32), r"float32 from 0 to 25\d: expected uint8"),
        (lambda images: images.astype(np.int64), r"int64 from 0 to 25\d: expected uint8"),
        (lambda images: images / 127.5 - 1, r"float64 from -1 to .*float in \[0, 1\]"),
        (lambda images: np.full(images.shape, np.nan), "from nan to nan"),
        (lambda images: images[0], r"\[8, 8, 3\]: expected \[N, H, W, 3\]"),
        (lambda images: [], "there are no images"),
        (lambda images: [images[0], images[1, :4]], "not one array"),
        (lambda images: images.astype(str), "type <U3"),
    ],
)
def test_other_pixels_are_refused_with_what_was_found(encoder, images, wrong, message):
    images[0, 0, 0] = 0, 255, 255
    with pytest.raises(UserError, match=message):
        uncertainty(encoder, wrong(images))


def test_other_models_are_refused_with_what_was_found(images):
    inputs = keras.Input((8, 8, 3))
    features = keras.layers.GlobalAveragePooling2D()(inputs)
    for model in (
        keras.Model(inputs, features),
        keras.Sequential([inputs, keras.layers.GlobalAveragePooling2D()]),
    ):
        with pytest.raises(UserError, match="returns no dictionary: expected features"):
            uncertainty(model, images)
    with pytest.raises(UserError, match="returns features: expected features"):
        uncertainty(keras.Model(inputs, {"features": features}), images)
    with pytest.raises(UserError, match="no encoder"):
        uncertainty([], images)


def test_a_model_without_dropout_has_no_dropout_variance(images):
    with pytest.raises(ValueError, match="with dropout"):
        uncertainty(build(1), images, score=("dropout",))


def test_high_always_means_uncertain():
    values = np.array([1.0, 2.0])
    assert np.argmax(SCORES["kappa"].uncertainty(values)) == 0
    assert np.argmax(SCORES["ensemble"].uncertainty(values)) == 1
