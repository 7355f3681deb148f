import threading

import numpy as np
import pytest
from helpers.tfds_sets import image_features, prepare
from PIL import Image

from tfvmf.data import load_source
from tfvmf.data.corruptions import CORRUPTIONS, corrupt
from tfvmf.data.corruptions.corrupted import Corrupted, open_corrupted
from tfvmf.errors import UserError

PARTS = [("fog", 1, 0, 2), ("fog", 2, 0, 2), ("snow", 1, 0, 2)]


def test_the_next_part_is_made_while_one_is_used():
    started = {part: threading.Event() for part in PARTS}

    def read(*part):
        started[part].set()
        return np.full(2, PARTS.index(part))

    seen = []
    for part, images in Corrupted("made here", read).read_ahead(PARTS):
        seen.append((part, int(images[0])))
        following = PARTS[PARTS.index(part) + 1 :]
        if following:
            assert started[following[0]].wait(timeout=10)
            assert not any(started[later].is_set() for later in following[1:])
    assert seen == [(part, number) for number, part in enumerate(PARTS)]


def test_nothing_to_read():
    assert list(Corrupted("made here", lambda *part: np.zeros(2)).read_ahead([])) == []


def test_errors_come_when_their_part_is_due():
    def read(name, *_):
        if name == "snow":
            raise UserError("no snow")
        return np.zeros(2)

    parts = Corrupted("made here", read).read_ahead(PARTS)
    assert next(parts)[0] == PARTS[0]
    assert next(parts)[0] == PARTS[1]
    with pytest.raises(UserError, match="no snow"):
        next(parts)


def enlarged(images, size):
    """By Pillow alone."""
    large = [Image.fromarray(i).resize((size, size), Image.Resampling.BICUBIC) for i in images]
    return np.stack([np.asarray(image) for image in large])


@pytest.fixture
def pixels(rng):
    return rng.integers(0, 256, (12, 16, 16, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["npz", "tfds"])
@pytest.mark.parametrize("name", ["gaussian_noise", "pixelate", "frost"])
def test_images_are_corrupted_at_their_native_size_and_then_enlarged(kind, name, pixels, tmp_path):
    if kind == "npz":
        np.savez(tmp_path / "a.npz", x_test=pixels)
        source = load_source(f"npz:{tmp_path}/a.npz", "test", image_size=48)
    else:
        prepare(tmp_path, {"test": [{"image": image} for image in pixels]}, image_features())
        source = load_source("tiny", "test", data_dir=tmp_path, image_size=48)
    assert source.native_size == 16
    expected = enlarged(corrupt(pixels, name, 4), 48)
    np.testing.assert_array_equal(open_corrupted(source).read(name, 4, 0, 12), expected)
    some = source.subset(np.array([7, 2, 9]))
    corrupted = open_corrupted(some)
    np.testing.assert_array_equal(corrupted.read(name, 4, 1, 3), expected[[2, 9]])
    assert "at 16 x 16 pixels" in corrupted.described
    np.testing.assert_array_equal(some.native().images(), pixels[[7, 2, 9]])


def test_native_digits_have_8_pixels_and_17_levels():
    large = load_source("digits", "test", image_size=24)
    native = large.native()
    assert native.image_shape == (8, 8, 3)
    assert native.native() is native
    assert len(np.unique(native.images())) == 17
    np.testing.assert_array_equal(enlarged(native.images(), 24), large.images())


def test_photographs_of_any_size_are_corrupted_at_the_size_of_the_source(tmp_path, rng):
    for side in (20, 30, 40):
        image = rng.integers(0, 256, (side, side + 9, 3), dtype=np.uint8)
        Image.fromarray(image).save(tmp_path / f"{side}.png")
    source = load_source(f"folder:{tmp_path}", "all", image_size=24)
    assert source.native() is source
    expected = corrupt(source.images(), "fog", 2)
    np.testing.assert_array_equal(open_corrupted(source).read("fog", 2, 0, 3), expected)


@pytest.fixture
def official(tmp_path):
    """A directory as the archive unpacks: row r of each file is the number r."""
    rows = np.broadcast_to(np.arange(60, dtype=np.uint8)[:, None, None, None], (60, 8, 8, 3))
    for name in CORRUPTIONS:
        np.save(tmp_path / f"{name}.npy", rows)
    return tmp_path


@pytest.fixture
def source(pixels, tmp_path):
    np.savez(tmp_path / "a.npz", x_test=pixels)
    return load_source(f"npz:{tmp_path}/a.npz", "test", image_size=24)


def test_official_files_are_read_and_resized(official, source):
    read = open_corrupted(source.subset(np.array([5, 3])), directory=official).read("snow", 4, 0, 2)
    assert read.shape == (2, 24, 24, 3)
    np.testing.assert_array_equal(read[:, 0, 0, 0], [36 + 5, 36 + 3])


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((60, 8, 8, 3), np.float32),
        np.zeros((60, 8, 8), np.uint8),
        np.zeros((60, 3, 8, 8), np.uint8),
        np.zeros((61, 8, 8, 3), np.uint8),
    ],
)
def test_files_of_another_form_are_refused(official, source, rows):
    np.save(official / "snow.npy", rows)
    with pytest.raises(UserError, match=r"snow\.npy holds .*12 images, uint8 \[60, H, H, 3\]"):
        open_corrupted(source, directory=official)


def test_missing_and_broken_files_are_named(official, source):
    path = official / "snow.npy"
    whole = path.read_bytes()
    for content in (whole[:-100], whole[:20], b"", b"not an array"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"snow\.npy is not a complete \.npy file"):
            open_corrupted(source, directory=official)
    np.save(path, np.array([{"a": 1}] * 5, dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"snow\.npy is not a complete \.npy file"):
        open_corrupted(source, directory=official)
    path.unlink()
    with pytest.raises(UserError, match=r"snow\.npy is missing"):
        open_corrupted(source, directory=official)
