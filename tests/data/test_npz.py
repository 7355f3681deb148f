import io
import zipfile

import numpy as np
import pytest

from tfvmf.data.sources import load
from tfvmf.errors import UserError


@pytest.fixture
def save(tmp_path):
    def write(**arrays):
        path = tmp_path / "data.npz"
        np.savez_compressed(path, **arrays)
        return f"npz:{path}"

    return write


@pytest.fixture
def images(rng):
    return rng.integers(0, 256, (50, 16, 16, 3), dtype=np.uint8)


def test_arrays_of_a_split_come_back_as_they_are(save, images):
    labels = np.arange(50) % 7
    spec = save(x_train=images[:40], y_train=labels[:40], x_test=images[40:], y_test=labels[40:])
    train, test = load(spec, "train", image_size=16), load(spec, "test", image_size=16)
    np.testing.assert_array_equal(train.array, images[:40])
    np.testing.assert_array_equal(test.array, images[40:])
    np.testing.assert_array_equal(test.labels, labels[40:])
    assert train.num_classes == test.num_classes == 7
    assert train.class_names is None


def test_classes_are_those_of_both_splits(save, images):
    spec = save(
        train_images=images[:2], train_labels=[[0], [1]], test_images=images[:1], test_labels=[[4]]
    )
    assert load(spec, "train").num_classes == 5
    assert load(spec, "train").labels.tolist() == [0, 1]


def test_images_without_a_split_are_split_by_index(save, images):
    spec = save(images=images, labels=np.arange(50))
    parts = [load(spec, split, image_size=16) for split in ("train", "test")]
    assert sorted(np.concatenate([part.labels for part in parts])) == list(range(50))
    for part in parts:
        np.testing.assert_array_equal(part.array, images[part.labels])
    np.testing.assert_array_equal(load(spec, "all", image_size=16).array, images)


def test_unlabeled_and_the_short_keys(save, images):
    assert load(save(x=images)).labels is None
    assert load(save(x=images, y=np.zeros(50, np.uint8)), "all").num_classes == 1


@pytest.mark.parametrize("shape", [(5, 16, 16), (5, 16, 16, 1)])
def test_gray_becomes_rgb(save, images, shape):
    gray = images[:5, :, :, 0].reshape(shape)
    array = load(save(images=gray), "all", image_size=16).array
    np.testing.assert_array_equal(array, gray.reshape(5, 16, 16, 1).repeat(3, -1))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_from_0_to_1_are_scaled(save, images, dtype):
    array = load(save(images=(images / 255).astype(dtype)), "all", image_size=16).array
    np.testing.assert_allclose(array, images, atol=1 if dtype is np.float16 else 0)


def test_other_integers_and_booleans(save, images):
    np.testing.assert_array_equal(
        load(save(images=images.astype(np.int64)), "all", image_size=16).array, images
    )
    assert set(np.unique(load(save(images=images > 127), "all", image_size=16).array)) == {0, 255}


def test_any_size_is_resized(save):
    constant = np.full((3, 5, 90, 3), 99, np.uint8)
    source = load(save(images=constant), "all")
    assert source.array.shape == (3, 32, 32, 3)
    assert (source.array == 99).all()


def test_class_names(save, images):
    labels = np.array(["dog", "cat"] * 25)
    source = load(save(images=images, labels=labels), "all")
    assert source.class_names == ["cat", "dog"]
    assert source.labels[:2].tolist() == [1, 0]
    numbered = save(images=images, labels=np.arange(50) % 2, class_names=["cat", "dog", "emu"])
    source = load(numbered, "all")
    assert source.class_names == ["cat", "dog", "emu"]
    assert source.num_classes == 3


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": np.zeros((2, 8, 8))}, r"'pictures'.*'images'"),
        ({"images": np.full((2, 8, 8), np.nan)}, "'images'.*finite"),
        ({"images": np.full((2, 8, 8), np.inf)}, "'images'.*finite"),
        ({"images": np.full((2, 8, 8), 2.0)}, "'images'.*from 0 to 1"),
        ({"images": np.full((2, 8, 8), -1)}, "'images'.*from 0 to 255"),
        ({"images": np.full((2, 8, 8), 256)}, "'images'.*from 0 to 255"),
        ({"images": np.zeros((2, 3, 8, 8))}, r"\[2, 3, 8, 8\]"),
        ({"images": np.zeros((2, 8, 8, 4))}, r"\[2, 8, 8, 4\]"),
        ({"images": np.zeros((8, 8))}, r"\[8, 8\]"),
        ({"images": np.zeros((0, 8, 8))}, "no images"),
        ({"images": np.zeros((2, 0, 8))}, "no images"),
        ({"images": np.array([["a"]])}, "shape"),
        ({"images": np.zeros((2, 8, 8), complex)}, "complex"),
        ({"images": np.array([None, {}], object)}, "Python objects"),
        ({"images": np.zeros((2, 8, 8)), "labels": [0]}, "1 labels for 2 images"),
        ({"images": np.zeros((2, 8, 8)), "labels": [0, -1]}, "-1"),
        ({"images": np.zeros((2, 8, 8)), "labels": [0.5, 1]}, "'labels'.*float64"),
        ({"images": np.zeros((2, 8, 8)), "labels": [[0, 1], [1, 0]]}, r"'labels'.*\[2, 2\]"),
        ({"images": np.zeros((2, 8, 8)), "labels": np.array([None, 1], object)}, "Python objects"),
        ({"images": np.zeros((2, 8, 8)), "labels": [0, 1], "class_names": ["a"]}, "class_names"),
        ({"images": np.zeros((2, 8, 8)), "labels": [0, 2**31 - 2]}, "2,147,483,647 classes"),
        ({"images": np.zeros((2, 8, 8)), "labels": np.array([2**64 - 1] * 2)}, "at most 1,000,000"),
        (
            {"images": np.zeros((2, 8, 8)), "labels": np.array([b"a", b"\xff"])},
            "'labels'.*not text",
        ),
        ({"images": np.zeros((2, 8, 8)), "labels": ["a", "\ud800"]}, "'labels'.*not text"),
        (
            {"x_all": np.zeros((1, 8, 8)), "y_all": ["a"], "y_train": [1]},
            "partly numbers and partly names",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_by_key(save, arrays, message):
    spec = save(**arrays)
    with pytest.raises(UserError, match=message) as error:
        load(spec, "all", image_size=8)
    assert "data.npz" in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_split_lists_what_is_there(save, images):
    with pytest.raises(UserError, match=r"split 'test'.*x_train.*'x_test'"):
        load(save(x_train=images), "test")


def test_too_large_is_refused_before_it_is_read(save, images):
    with pytest.raises(UserError, match="memory_limit"):
        load(save(images=images), "all", image_size=16, memory_limit=images.nbytes - 1)
    assert (
        load(save(images=images), "all", image_size=16, memory_limit=images.nbytes).array
        is not None
    )


def member(shape, dtype="<i8", content=b""):
    """An array's file whose header may say anything."""
    file = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + content


@pytest.mark.parametrize(
    ("key", "content", "message"),
    [
        ("labels", member((2**33,)), "'labels' .*0 bytes do not fit"),
        ("labels", member((2,), content=bytes(2**20)), "'labels' .*bytes do not fit"),
        ("labels", member((-2,)), "'labels' .*do not fit"),
        (
            "labels",
            member((2**17,), content=bytes(2**20)),
            "holds 131072 labels for 2 images",
        ),
        ("labels", member((10**400,)), "'labels' .*do not fit"),
        ("images", member((2, 2**20, 2**20), "|u1"), "'images' .*do not fit"),
        ("images", member((2, 8, 8), "|O", bytes(64)), "Python objects"),
        ("class_names", member((2**17,), "|S1", bytes(2**17)), None),
        ("class_names", member((2**20,), "|S1", bytes(2**20)), "1,048,576 classes"),
    ],
)
def test_headers_are_checked_before_data_are_read(tmp_path, monkeypatch, key, content, message):
    arrays = {"images": np.zeros((2, 8, 8), np.uint8), "labels": np.array([0, 1])}
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            if name != key:
                with archive.open(f"{name}.npy", "w") as file:
                    np.save(file, array)
        archive.writestr(f"{key}.npy", content)
        # NumPy itself would take this one, when asked for the key.
        archive.writestr(key, member((2**33,)))
    if message is None:
        assert load(f"npz:{path}", "all").num_classes == 2**17
        return
    if key == "labels":
        monkeypatch.setattr(np.lib.format, "read_array", None)
    with pytest.raises(UserError, match=message) as error:
        load(f"npz:{path}", "all")
    assert "data.npz" in str(error.value)
    assert "\n" not in str(error.value)


def test_names_are_refused_when_they_would_take_the_memory(save, images):
    spec = save(images=images[:2], labels=np.array(["a", "b" * 10_000]))
    with pytest.raises(UserError, match=r"'labels' .*U10000.* too long"):
        load(spec, "all", memory_limit=2**20)


def test_images_of_more_than_max_pixels_are_refused(save, images):
    assert load(save(images=images), "all", max_pixels=256).size == 50
    with pytest.raises(UserError, match=r"'images' .*16 x 16 pixels.*max_pixels=255"):
        load(save(images=images), "all", max_pixels=255)


def test_files_that_are_no_archives(tmp_path, save, images):
    with pytest.raises(UserError, match="no such file"):
        load(f"npz:{tmp_path}/nothing.npz")
    np.save(tmp_path / "a.npy", images)
    with pytest.raises(UserError, match=r"a\.npy"):
        load(f"npz:{tmp_path}/a.npy")
    path = tmp_path / "data.npz"
    save(images=images)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"data\.npz: 'images'"):
        load(f"npz:{path}")
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"data\.npz"):
        load(f"npz:{path}")
