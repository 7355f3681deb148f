import numpy as np
import pytest
from PIL import Image

from tfvmf.data import load_source, pipeline
from tfvmf.errors import UserError


@pytest.fixture(scope="module")
def source():
    return load_source("digits", "train", image_size=8)


def collect(source, **changes):
    arguments = {"batch_size": 100, "seed": 3, "stop_step": 30, **changes}
    read = pipeline.image_reader(source)
    dataset = pipeline.training_batches(read, size=source.size, **arguments)
    batches = list(dataset.as_numpy_iterator())
    return np.stack([b["image"] for b in batches]), np.stack([b["label"] for b in batches])


def keys(images):
    return [image.tobytes() for image in images.reshape(-1, *images.shape[2:])]


def test_an_epoch_shows_every_image_at_most_once_and_the_next_another_order(source):
    images, labels = collect(source)
    assert images.shape == (30, 100, 8, 8, 3)
    steps = pipeline.steps_per_epoch(source.size, 100, name=source.name)
    assert steps == 13
    known = dict(zip(keys(source.images()[None]), source.labels, strict=True))
    unique = len(set(keys(source.images()[None])))
    first, second = images[:steps], images[steps : 2 * steps]
    assert len(set(keys(first))) >= 1300 - (source.size - unique)
    assert not np.array_equal(first, second)
    for image, label in zip(keys(images[:2]), labels[:2].ravel(), strict=True):
        assert known[image] == label


def test_the_order_is_a_function_of_seed_and_step(source):
    images, _ = collect(source)
    for start in (1, 13, 20):
        resumed, _ = collect(source, start_step=start)
        np.testing.assert_array_equal(resumed, images[start:])
    other, _ = collect(source, seed=4)
    assert not np.array_equal(other, images)


def test_replicas_share_the_batch_of_one(source):
    whole, _ = collect(source)
    quarters = [
        collect(source, replicas=4, first_replica=first, local_replicas=2)[0] for first in (0, 2)
    ]
    # Each pipeline delivers its replicas' shares in turn.
    shares = [part.reshape(30, 2, 25, 8, 8, 3) for part in quarters]
    merged = np.concatenate(shares, axis=1).reshape(whole.shape)
    np.testing.assert_array_equal(merged, whole)


def test_a_source_on_disk_gives_what_one_in_memory_gives(source, monkeypatch):
    expected, _ = collect(source, stop_step=3)
    monkeypatch.setattr(type(source), "array", None)
    images, _ = collect(source, stop_step=3)
    np.testing.assert_array_equal(images, expected)


def test_without_labels_the_label_is_minus_one(source, monkeypatch):
    monkeypatch.setattr(source, "labels", None)
    assert set(collect(source, stop_step=2)[1].ravel()) == {-1}


def test_a_batch_larger_than_the_data_is_refused(source):
    with pytest.raises(UserError, match="at most 1397"):
        pipeline.steps_per_epoch(source.size, 2000, name=source.name)


def test_a_batch_that_cannot_be_shared_is_refused(source):
    with pytest.raises(UserError, match="multiple of 3"):
        collect(source, replicas=3)


def test_a_source_as_a_dataset(source):
    plain = source.as_dataset(100)
    assert plain.cardinality() == 14
    assert plain.element_spec.dtype == "uint8"
    np.testing.assert_array_equal(np.concatenate([*plain.as_numpy_iterator()]), source.images())
    shuffled = source.as_dataset(100, seed=1, labels=True, drop_remainder=True)
    assert shuffled.cardinality() == 13
    assert shuffled.element_spec[0].shape == (100, 8, 8, 3)
    known = dict(zip(keys(source.images()[None]), source.labels, strict=True))
    epochs = [list(shuffled.as_numpy_iterator()) for _ in range(2)]
    for images, labels in epochs[0]:
        assert [known[key] for key in keys(images[None])] == labels.tolist()
    assert not np.array_equal(epochs[0][0][0], epochs[1][0][0])  # a new order
    again = next(source.as_dataset(100, seed=1).as_numpy_iterator())
    np.testing.assert_array_equal(again, epochs[0][0][0])


def test_a_streamed_subset_as_a_dataset(tmp_path):
    for number in range(5):
        Image.new("RGB", (8, 8), (40 * number,) * 3).save(tmp_path / f"{number}.png")
    source = load_source(tmp_path, "all", image_size=8, memory_limit=0).subset(np.array([4, 1, 3]))
    (first, second) = source.as_dataset(2).as_numpy_iterator()
    assert [*first[:, 0, 0, 0], *second[:, 0, 0, 0]] == [160, 40, 120]
    with pytest.raises(UserError, match="has no labels"):
        source.as_dataset(2, labels=True)
