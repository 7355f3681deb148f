import subprocess
import sys

import numpy as np
import pytest

from tfvmf.data.base import SPLITS, Request, choose_split, sample_indices
from tfvmf.data.sources import SOURCES, ArraySource, load
from tfvmf.errors import UserError


@pytest.fixture(scope="module")
def digits():
    return {split: load("digits", split) for split in SPLITS}


def test_digits_have_the_contract_of_a_source(digits):
    for split, size in {"train": 1397, "test": 400, "all": 1797}.items():
        source = digits[split]
        assert source.name == "digits"
        assert source.split == split
        assert source.size == len(source) == size
        assert source.image_shape == (32, 32, 3)
        assert source.array is not None
        assert source.array.dtype == np.uint8
        assert source.array.shape == (size, 32, 32, 3)
        assert source.labels.dtype == np.int32
        assert source.labels.shape == (size,)
        assert source.num_classes == len(source.class_names) == 10
        assert f"{size} images" in repr(source)


def test_digits_split_is_a_partition_in_which_every_class_is_well_represented(digits):
    together = np.concatenate([digits["train"].array, digits["test"].array]).reshape(1797, -1)
    everything = digits["all"].array.reshape(1797, -1)
    # As multisets of images the two parts add up to the whole, whatever the order.
    rows = [sorted(row.tobytes() for row in images) for images in (together, everything)]
    assert rows[0] == rows[1]
    share = np.bincount(digits["test"].labels) / np.bincount(digits["all"].labels)
    assert share.min() > 0.15
    assert share.max() < 0.3


def test_digits_are_the_original_pixels_scaled_up(digits):
    from sklearn.datasets import load_digits

    original = load_digits()
    np.testing.assert_array_equal(digits["all"].labels, original.target)
    # The mean over each 4x4 block undoes the scaling, but for what a smooth filter smears.
    blocks = digits["all"].array[..., 0].reshape(-1, 8, 4, 8, 4).mean((2, 4)) * (16 / 255)
    per_image = np.corrcoef(blocks.reshape(1797, -1), original.images.reshape(1797, -1))
    assert np.diagonal(per_image, 1797).min() > 0.95
    channels = digits["all"].array
    assert (channels[..., :1] == channels).all()


def test_a_fingerprint_tells_data_apart(digits):
    source, request = digits["all"], Request(spec="mine", target="mine")

    def made(images=source.array, labels=source.labels):
        return ArraySource(request, images.copy(), labels=labels, num_classes=10).fingerprint()

    turned, moved = source.array[:, ::-1], np.roll(source.labels, 1)
    first = np.where(np.arange(1797) == 0, (source.labels + 1) % 10, source.labels)
    found = [made(), made(turned), made(labels=moved), made(labels=first), made(labels=None)]
    assert len({*found}) == len(found)
    assert made() == found[0] == load("digits", "all").fingerprint()


def test_images_and_take_agree_with_the_array(digits):
    source = digits["test"]
    indices = np.array([399, 0, 7, 7])
    np.testing.assert_array_equal(source.take(indices), source.array[indices])
    np.testing.assert_array_equal(source.images(390), source.array[390:])
    np.testing.assert_array_equal(source.images(5, 9), source.array[5:9])
    np.testing.assert_array_equal(source.images(), source.array)
    assert len(source.images(395, 1000)) == 5
    with pytest.raises(IndexError):
        source.take(np.array([400]))
    with pytest.raises(ValueError, match="read-only"):
        source.array[0] = 0


def labeled(labels):
    """A source of images that show their index."""
    images = np.arange(len(labels), dtype=np.uint8)[:, None, None, None]
    return ArraySource(
        Request(spec="mine", target="mine", split="test", image_size=8),
        np.broadcast_to(images, (len(labels), 8, 8, 3)).copy(),
        labels=np.asarray(labels),
        num_classes=int(np.max(labels)) + 1,
    )


def test_a_subset_is_a_source(digits):
    source, chosen = digits["test"], np.array([399, 0, 7])
    subset = source.subset(chosen)
    np.testing.assert_array_equal(subset.array, source.array[chosen])
    np.testing.assert_array_equal(subset.images(1, 3), source.array[[0, 7]])
    np.testing.assert_array_equal(subset.take(np.array([2, 2])), source.array[[7, 7]])
    np.testing.assert_array_equal(subset.labels, source.labels[chosen])
    assert (subset.name, subset.split, len(subset)) == ("digits", "test", 3)
    assert (subset.class_names, subset.num_classes) == (source.class_names, 10)
    assert subset.array is not None
    assert subset.subset(np.array([2])).whole_size == source.whole_size == 400
    # An image keeps its name, in a subset of a subset too.
    assert subset.subset(np.array([2])).file(0) == source.file(7) == "digits/test:7"
    assert subset.fingerprint() != source.fingerprint()
    for wrong in ([], [1, 1], [[1]]):
        with pytest.raises(ValueError, match="each only once"):
            source.subset(np.array(wrong))
    for wrong in ([-1], [400]):
        with pytest.raises(IndexError, match="no images"):
            source.subset(np.array(wrong))


def test_a_sample_has_every_class_in_proportion():
    source = labeled(np.repeat([0, 1, 2, 4], [97, 60, 40, 3]))  # sorted, as folders are
    for count in (4, 7, 20, 100, 199):
        sample = sample_indices(source, count, seed=3)
        assert len(sample) == len({*sample}) == count
        assert (np.diff(sample) > 0).all()
        share = np.bincount(source.labels[sample], minlength=5)[[0, 1, 2, 4]]
        exact = count * np.array([97, 60, 40, 3]) / 200
        assert (np.abs(share - exact) <= 1.5).all()  # one goes to a class that would have none
        assert (share >= 1).all()
    np.testing.assert_array_equal(sample_indices(source, 20), sample_indices(source, 20))
    assert (sample_indices(source, 20, seed=1) != sample_indices(source, 20, seed=2)).any()
    np.testing.assert_array_equal(sample_indices(source, 1000), np.arange(200))
    with pytest.raises(ValueError, match="expected at least 1"):
        sample_indices(source, 0)


def test_a_sample_smaller_than_the_classes_is_not_of_the_first_ones():
    source = labeled(np.repeat(np.arange(20), 10))
    drawn = [sample_indices(source, 5, seed=seed) for seed in range(40)]
    assert {*source.labels[np.concatenate(drawn)]} == {*range(20)}
    assert all(len({*source.labels[indices]}) == 5 for indices in drawn)


def test_image_size_is_free_from_8_on():
    assert load("digits", "test", image_size=8).image_shape == (8, 8, 3)
    for size in (7, 0, -32, 32.0, "32", True):
        with pytest.raises(UserError, match="image_size"):
            load("digits", "test", image_size=size)
    with pytest.raises(UserError, match="memory_limit"):
        load("digits", memory_limit=-1)


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ("foldr:/data", "'folder:/data'"),
        ("digit", "digits"),
        ("images.npz", "'npz:images.npz'"),
        ("what is this", "known are digits"),
        ("", "known are digits"),
        ("digits:8", "write 'digits'"),
    ],
)
def test_unknown_spec_says_what_was_meant(spec, advice, tmp_path):
    with pytest.raises(UserError) as error:
        load(spec, data_dir=str(tmp_path))
    assert advice in str(error.value)
    assert "\n" not in str(error.value)


def test_a_path_without_a_scheme_is_recognized(tmp_path):
    with pytest.raises(UserError, match=f"did you mean 'folder:{tmp_path}'"):
        load(str(tmp_path))


def test_a_path_object_is_a_folder_or_an_npz_file(tmp_path):
    np.savez(tmp_path / "few.npz", images=np.zeros((20, 8, 8, 3), np.uint8))
    assert load(tmp_path / "few.npz", "all").name == f"npz:{tmp_path / 'few.npz'}"
    with pytest.raises(UserError, match="no images in this folder"):
        load(tmp_path)


def test_unknown_split_lists_the_known_ones():
    with pytest.raises(UserError, match=r"'validation'; it has train, test, all"):
        load("digits", "validation")


def test_a_new_source_is_one_registry_line(monkeypatch):
    def constant(request):
        value = int(request.target)
        return ArraySource(request, np.full((5, 8, 8, 3), value, np.uint8))

    monkeypatch.setitem(SOURCES, "constant", constant)
    source = load("constant:7", "anything")
    assert (source.array == 7).all()
    assert source.labels is None
    assert source.num_classes == 0


def test_hash_split_depends_on_the_name_alone():
    names = [f"image{number}" for number in range(5000)]
    test = {names[index] for index in choose_split(names, "test")}
    train = {names[index] for index in choose_split(names, "train")}
    assert not test & train
    assert test | train == set(names)
    assert 0.08 < len(test) / len(names) < 0.12
    # Half of the names, backwards: each stays on its side.
    some = names[:2500][::-1]
    assert {some[index] for index in choose_split(some, "test")} == test & set(some)


def test_hash_split_of_two_leaves_no_side_empty():
    for start in range(50):
        names = [str(start), str(start + 1)]
        assert len(choose_split(names, "train")) == len(choose_split(names, "test")) == 1


def test_labels_must_fit_the_images(monkeypatch):
    def broken(request):
        images = np.zeros((4, 8, 8, 3), np.uint8)
        labels = np.array(
            {"few": [0, 1], "high": [0, 1, 2, 3], "low": [0, -1, 0, 0]}[request.target]
        )
        return ArraySource(request, images, labels=labels, class_names=["a", "b"])

    monkeypatch.setitem(SOURCES, "broken", broken)
    for target, message in {"few": "4 images", "high": "0 to 3", "low": "-1 to 0"}.items():
        with pytest.raises(UserError, match=message):
            load(f"broken:{target}")


def test_sources_import_without_tensorflow():
    # A program sets up devices after it has read its flags, and --help must be quick.
    code = (
        "import sys, tfvmf.data.sources;"
        "sys.exit(bool({'tensorflow', 'tensorflow_datasets', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
