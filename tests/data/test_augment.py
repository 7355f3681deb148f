import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfvmf.counter_random import example_seeds
from tfvmf.data.augment import Augmentation

OFF = {"crop_min": 1.0, "flip_probability": 0.0, "jitter_probability": 0.0, "gray_probability": 0.0}
EVERYTHING = {"blur_probability": 0.5, "noise_sigma_max": 0.25, "noise_probability": 0.7}


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(256, size=(40, 32, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def seeds():
    return example_seeds(0, 3, tf.range(40), 0)


def boxes_of(augmentation, count=20_000, height=32, width=32):
    drawn = augmentation.draw(example_seeds(0, 0, tf.range(count), 0), height, width)
    return drawn["boxes"].numpy().astype(np.float64).T


def op_types(augmentation, size=32):
    graph = tf.function(augmentation).get_concrete_function(
        tf.TensorSpec([8, size, size, 3], tf.uint8), tf.TensorSpec([8, 2], tf.int32)
    )
    return {operation.type for operation in graph.graph.get_operations()}


def test_defaults_are_the_papers():
    fields = Augmentation().get_config()
    assert (fields["crop_min"], fields["crop_max"]) == (0.2, 1.0)
    assert fields["brightness"] == fields["contrast"] == fields["saturation"] == 0.3
    assert fields["noise_sigma_max"] == fields["blur_probability"] == 0.0


@pytest.mark.parametrize("size", [32, 17])
@pytest.mark.parametrize("settings", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_a_view_does_not_depend_on_the_rest_of_the_batch(images, seeds, settings, size):
    """N replicas compute what one would, to a rounding error: kernels differ with the batch."""
    signature = [tf.TensorSpec([None, 32, 32, 3], tf.uint8), tf.TensorSpec([None, 2], tf.int32)]
    graph = tf.function(Augmentation(size=size, **settings), input_signature=signature)
    whole = graph(tf.constant(images), seeds).numpy()
    for start, stop in ((0, 20), (20, 40), (3, 4), (5, 12)):
        part = graph(tf.constant(images[start:stop]), seeds[start:stop])
        np.testing.assert_allclose(part, whole[start:stop], atol=1e-6)
    backwards = graph(tf.constant(images[::-1]), seeds[::-1])
    np.testing.assert_allclose(backwards[::-1], whole, atol=1e-6)


def test_the_same_seed_gives_the_same_view_and_another_another(images, seeds):
    augmentation = Augmentation(**EVERYTHING)
    first = augmentation(images, seeds).numpy()
    np.testing.assert_array_equal(augmentation(images, seeds), first)
    other = augmentation(images, example_seeds(0, 3, tf.range(40), 1)).numpy()
    assert np.abs(other - first).mean(axis=(1, 2, 3)).min() > 0.01


@pytest.mark.parametrize("shape", [(32, 32), (20, 45), (64, 64), (1, 1), (3, 200)])
def test_any_shape_of_image_makes_a_view_in_graph_and_eagerly(shape):
    images = np.random.default_rng(1).integers(256, size=(6, *shape, 3), dtype=np.uint8)
    seeds = example_seeds(0, 0, tf.range(6), 0)
    augmentation = Augmentation(size=24, **EVERYTHING)
    signature = [tf.TensorSpec([None, None, None, 3], tf.uint8), tf.TensorSpec([None, 2], tf.int32)]
    graph = tf.function(augmentation, input_signature=signature)
    views = graph(tf.constant(images), seeds)
    assert views.dtype == tf.float32
    assert views.shape == [6, 24, 24, 3]
    assert graph.get_concrete_function().output_shapes.as_list() == [None, 24, 24, 3]
    # the graph optimizer reorders sums: the last bit of a position (of up to 200 pixels) differs
    np.testing.assert_allclose(views, augmentation(images, seeds), atol=5e-5)


@pytest.mark.parametrize("settings", [{}, EVERYTHING, {"hue": 0.5, "contrast": 3.0}])
@pytest.mark.parametrize("color", [(0, 0, 0), (255, 255, 255), (255, 0, 0), (7, 7, 7)])
def test_views_of_constant_images_are_finite_and_in_range(settings, color):
    images = np.broadcast_to(np.array(color, np.uint8), (64, 32, 32, 3))
    views = Augmentation(**settings)(images, example_seeds(0, 0, tf.range(64), 0)).numpy()
    assert np.isfinite(views).all()
    assert views.min() >= 0
    assert views.max() <= 1


def test_uint8_and_floating_images_are_the_same(images, seeds):
    scaled = tf.constant(images / 255.0, tf.float32)
    views = Augmentation()(images, seeds)
    np.testing.assert_allclose(Augmentation()(scaled, seeds), views, atol=2e-5)


def test_everything_off_is_the_image(images, seeds):
    np.testing.assert_allclose(Augmentation(**OFF)(images, seeds), images / 255.0, atol=1e-7)


def test_flip_alone_mirrors(images, seeds):
    views = Augmentation(**{**OFF, "flip_probability": 1.0})(images, seeds)
    np.testing.assert_allclose(views, images[:, :, ::-1] / 255.0, atol=1e-6)


def test_operations_that_are_off_are_not_in_the_graph():
    resize, hue, noise = "BatchMatMulV2", "HSVToRGB", "Cos"
    assert not {resize, hue, noise, "Floor"} & op_types(Augmentation(**OFF))
    assert hue in op_types(Augmentation())
    assert hue not in op_types(Augmentation(hue=0.0))
    assert hue not in op_types(Augmentation(jitter_probability=0.0))
    assert resize in op_types(Augmentation(**OFF), size=48)
    assert noise in op_types(Augmentation(noise_sigma_max=0.1))
    assert noise not in op_types(Augmentation(noise_sigma_max=0.1, noise_probability=0.0))


def test_only_what_is_on_is_drawn_and_one_does_not_change_another(seeds):
    everything = Augmentation(**EVERYTHING).draw(seeds, 32, 32)
    settings = {
        "boxes": {"crop_min": 0.2, "flip_probability": 0.5},
        "gray": {"gray_probability": 0.2},
        "blur": {"blur_probability": 0.5},
        "noise": {"noise_sigma_max": 0.25, "noise_probability": 0.7},
    }
    for name, on in settings.items():
        alone = Augmentation(**{**OFF, **on}).draw(seeds, 32, 32)
        assert list(alone) == [name]
        np.testing.assert_array_equal(alone[name], everything[name])
    without = Augmentation(contrast=0.0, **EVERYTHING).draw(seeds, 32, 32)
    assert set(everything) - set(without) == {"contrast"}
    np.testing.assert_array_equal(without["hue"], everything["hue"])


def test_crops_have_uniform_area_and_log_uniform_ratio():
    top, left, bottom, right = boxes_of(Augmentation(flip_probability=0.0))
    height, width = bottom - top, right - left
    area, ratio = height * width / 32**2, width / height
    assert scipy.stats.kstest(area, "uniform", (0.2, 0.8)).pvalue > 1e-4
    assert ratio.min() >= 0.75 - 1e-6
    assert ratio.max() <= 4 / 3 + 1e-6
    fits = area < 0.75  # below, every ratio of the range fits into a square
    position = (np.log(ratio[fits]) - np.log(0.75)) / np.log(16 / 9)
    assert scipy.stats.kstest(position, "uniform").pvalue > 1e-4
    # above, torchvision's rejection leaves it uniform over the part that fits
    reach = -np.log(area[~fits])
    position = (np.log(ratio[~fits]) + reach) / (2 * reach)
    assert scipy.stats.kstest(position, "uniform").pvalue > 1e-4
    for start, length in ((top, height), (left, width)):
        assert scipy.stats.kstest(start / (32 - length), "uniform").pvalue > 1e-4


def test_parameters_are_independent_of_each_other():
    seeds = example_seeds(0, 0, tf.range(20_000), 0)
    augmentation = Augmentation(jitter_probability=1.0, **EVERYTHING)
    drawn = augmentation.draw(seeds, 32, 32)
    top, first, bottom, last = drawn.pop("boxes").numpy().T
    height, width, left = bottom - top, np.abs(last - first), np.minimum(first, last)
    places = [height * width, width / height, top / (32 - height), left / (32 - width)]
    rows = np.stack([*places, first < last, *(column.numpy() for column in drawn.values())])
    correlations = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
    assert np.abs(correlations).max() < 4.5 / np.sqrt(20_000)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 45), (3, 200), (1, 1)])
def test_crops_lie_within_the_image(height, width):
    top, left, bottom, right = boxes_of(Augmentation(), 2000, height, width)
    first, last = np.minimum(left, right), np.maximum(left, right)
    assert top.min() >= 0
    assert first.min() >= 0
    assert bottom.max() <= height + 1e-4
    assert last.max() <= width + 1e-4
    area = (bottom - top) * (last - first) / (height * width)
    assert area.min() > 0.2 - 1e-4
    assert abs(np.mean(right < left) - 0.5) < 0.05


def test_probabilities_and_strengths():
    seeds = example_seeds(0, 0, tf.range(20_000), 0)
    drawn = {k: v.numpy() for k, v in Augmentation(**EVERYTHING).draw(seeds, 32, 32).items()}
    shares = {"brightness": (1.0, 0.8), "hue": (0.0, 0.8), "gray": (0.0, 0.2)}
    shares |= {"blur": (0.0, 0.5), "noise": (0.0, 0.7)}
    for name, (neutral, probability) in shares.items():
        assert abs(np.mean(drawn[name] != neutral) - probability) < 0.015, name
    jittered = drawn["hue"] != 0
    assert (drawn["contrast"][~jittered] == 1).all()
    ranges = {"brightness": (0.7, 1.3), "contrast": (0.7, 1.3), "saturation": (0.7, 1.3)}
    for name, (low, high) in (ranges | {"hue": (-0.1, 0.1)}).items():
        position = (drawn[name][jittered] - low) / (high - low)
        assert scipy.stats.kstest(position, "uniform").pvalue > 1e-4, name
    assert 0.1 <= drawn["blur"][drawn["blur"] > 0].min() < drawn["blur"].max() <= 2.0
    assert 0.24 < drawn["noise"].max() <= 0.25
    strong = Augmentation(brightness=2.0).draw(seeds, 32, 32)["brightness"].numpy()
    assert 0 <= strong.min() < 0.01
    assert 2.99 < strong.max() <= 3.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", 0),
        ("crop_min", 0.0),
        ("crop_min", 1.1),
        ("crop_max", 1.5),
        ("ratio_min", -1.0),
        ("ratio_max", 0.5),
        ("flip_probability", 1.01),
        ("brightness", -0.1),
        ("contrast", float("nan")),
        ("saturation", float("inf")),
        ("hue", 0.6),
        ("jitter_probability", -0.5),
        ("gray_probability", 2.0),
        ("blur_probability", -1.0),
        ("blur_sigma_min", 0.0),
        ("blur_sigma_max", 0.05),
        ("noise_sigma_max", -0.25),
        ("noise_probability", 1.5),
    ],
)
def test_a_bad_field_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*got"):
        Augmentation(**{name: value})


def test_wrong_shapes_are_refused(images, seeds):
    with pytest.raises(ValueError, match="images must be"):
        Augmentation()(images[..., :1], seeds)
    with pytest.raises(ValueError, match="seeds must be"):
        Augmentation()(images, seeds[:, 0])


def test_it_is_a_layer_for_models_and_for_datasets(images):
    """Its seed says what it draws; a model that is not training only resizes."""
    layer = Augmentation(size=24, seed=5)
    again = Augmentation.from_config(layer.get_config())
    first, second = layer(images).numpy(), layer(images).numpy()
    np.testing.assert_array_equal(again(images), first)
    assert np.abs(second - first).max() > 0.1
    dataset = tf.data.Dataset.from_tensor_slices(images).batch(len(images)).repeat(2)
    mapped = list(dataset.map(Augmentation(size=24, seed=5)))
    np.testing.assert_array_equal(mapped[0], first)
    np.testing.assert_array_equal(mapped[1], second)
    model = keras.Sequential([keras.Input((32, 32, 3), dtype="uint8"), layer])
    still = model.predict(images, verbose=0)
    expected = Augmentation(**{**OFF, "size": 24})(images)
    np.testing.assert_allclose(still, expected, atol=1e-6)
    assert layer.changed(size=9).get_config() == {**layer.get_config(), "size": 9}
