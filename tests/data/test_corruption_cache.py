import json

import numpy as np
import pytest
from helpers.disks import full_disk

from tfvmf.data import corruptions
from tfvmf.data.corruptions import cache
from tfvmf.errors import UserError

COUNT = 6
NAMES = ("brightness", "gaussian_noise")


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (COUNT, 16, 16, 3), dtype=np.uint8)


@pytest.fixture
def labels():
    return np.arange(COUNT) % 3


@pytest.fixture
def official(tmp_path):
    """A directory as the archive unpacks: row r holds the number r."""
    rows = np.broadcast_to(np.arange(5 * COUNT, dtype=np.uint8)[:, None, None, None], (30, 8, 8, 3))
    np.save(tmp_path / "glass_blur.npy", rows)
    np.save(tmp_path / "labels.npy", np.tile(np.arange(COUNT), 5).astype(np.uint8))
    return tmp_path


def test_round_trip(tmp_path, images, labels, monkeypatch):
    monkeypatch.setattr(cache, "_CHUNK", 4)
    told = []
    cache.write_cache(tmp_path, images, labels, names=NAMES, seed=3, progress=told.append)
    assert sum(told) == 5 * COUNT * len(NAMES)
    for name in NAMES:
        opened = cache.open_cache(tmp_path, name, expected_images=COUNT)
        assert len(opened(1)) == COUNT
        for severity in corruptions.SEVERITIES:
            expected = corruptions.corrupt(images, name, severity, seed=3)
            np.testing.assert_array_equal(opened(severity), expected)
    np.testing.assert_array_equal(np.load(tmp_path / "labels.npy"), np.tile(labels, 5))
    assert "CIFAR-10-C protocol, generated" in cache.cache_source(tmp_path)
    assert "seed 3" in cache.cache_source(tmp_path)


def test_layout_is_the_official_one(tmp_path, images, labels):
    cache.write_cache(tmp_path / "new" / "place", images, labels, names=["fog"])
    rows = np.load(tmp_path / "new" / "place" / "fog.npy", allow_pickle=False)
    assert rows.shape == (5 * COUNT, 16, 16, 3)
    assert rows.dtype == np.uint8
    np.testing.assert_array_equal(rows[2 * COUNT], corruptions.corrupt(images[:1], "fog", 3)[0])
    written = np.load(tmp_path / "new" / "place" / "labels.npy", allow_pickle=False)
    assert written.dtype == np.uint8
    np.testing.assert_array_equal(written, np.tile(labels, 5))


def test_many_classes(tmp_path, images):
    labels = np.arange(COUNT) * 100
    cache.write_cache(tmp_path, images, labels, names=[])
    np.testing.assert_array_equal(np.load(tmp_path / "labels.npy"), np.tile(labels, 5))


def test_reads_official_files(official):
    opened = cache.open_cache(official, "frosted_glass_blur", expected_images=COUNT)
    assert opened(1).shape == (COUNT, 8, 8, 3)
    np.testing.assert_array_equal(opened(4)[:, 0, 0, 0], np.arange(18, 24))
    assert isinstance(opened(4), np.memmap)
    assert not opened(4).flags.writeable
    assert "generated" not in cache.cache_source(official)
    with pytest.raises(UserError, match="from 1 to 5"):
        opened(0)


def test_complete_files_are_kept(tmp_path, images, labels, monkeypatch):
    cache.write_cache(tmp_path, images, labels, names=NAMES[:1])
    before = (tmp_path / "brightness.npy").stat().st_mtime_ns
    made = []
    real = corruptions.corrupt

    def spy(chunk, name, *args, **kwargs):
        made.append(name)
        return real(chunk, name, *args, **kwargs)

    monkeypatch.setattr(corruptions, "corrupt", spy)
    told = []
    cache.write_cache(tmp_path, images, labels, names=NAMES, progress=told.append)
    assert set(made) == {"gaussian_noise"}
    assert sum(told) == 5 * COUNT * len(NAMES)
    assert (tmp_path / "brightness.npy").stat().st_mtime_ns == before


def test_another_seed_or_other_images_are_made_again(tmp_path, images, labels):
    cache.write_cache(tmp_path, images, labels, names=NAMES, seed=0)
    cache.write_cache(tmp_path, images, labels, names=NAMES[1:], seed=1)
    opened = cache.open_cache(tmp_path, "gaussian_noise", expected_images=COUNT)
    expected = corruptions.corrupt(images, "gaussian_noise", 2, seed=1)
    np.testing.assert_array_equal(opened(2), expected)
    # What belongs to the first seed is not passed off as the second's.
    with pytest.raises(UserError, match=r"brightness\.npy is left from another"):
        cache.open_cache(tmp_path, "brightness", expected_images=COUNT)
    cache.write_cache(tmp_path, images[::-1], labels, names=NAMES[1:], seed=1)
    expected = corruptions.corrupt(images[::-1], "gaussian_noise", 2, seed=1)
    opened = cache.open_cache(tmp_path, "gaussian_noise", expected_images=COUNT)
    np.testing.assert_array_equal(opened(2), expected)


def test_nothing_half_written(tmp_path, images, labels, monkeypatch):
    real = corruptions.corrupt

    def fails_late(chunk, name, severity, *args, **kwargs):
        if severity == 3:
            raise KeyboardInterrupt
        return real(chunk, name, severity, *args, **kwargs)

    monkeypatch.setattr(corruptions, "corrupt", fails_late)
    with pytest.raises(KeyboardInterrupt):
        cache.write_cache(tmp_path, images, labels, names=NAMES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["generated.json", "labels.npy"]
    monkeypatch.undo()
    cache.write_cache(tmp_path, images, labels, names=NAMES)
    assert cache.open_cache(tmp_path, "brightness", expected_images=COUNT)(5).any()


def test_full_disk(tmp_path, images, labels):
    with full_disk(tmp_path / "disk", filled=True):
        with pytest.raises(UserError, match=r"json cannot be written: No space left"):
            cache.write_cache(tmp_path / "disk" / "c", images, labels, names=NAMES)
        assert list((tmp_path / "disk" / "c").iterdir()) == []


def test_never_overwrites_official_files(official, images, labels):
    before = (official / "glass_blur.npy").read_bytes()
    with pytest.raises(UserError, match="choose another directory"):
        cache.write_cache(official, images, labels, names=["glass_blur"])
    assert (official / "glass_blur.npy").read_bytes() == before
    assert not (official / "generated.json").exists()


def test_wrong_number_of_rows(official):
    with pytest.raises(
        UserError, match=r"glass_blur\.npy has 30 rows: .* 10,000 images need 50,000"
    ):
        cache.open_cache(official, "glass_blur", expected_images=10_000)
    np.save(official / "fog.npy", np.zeros((31, 8, 8, 3), np.uint8))
    with pytest.raises(UserError, match=r"fog\.npy has 31 rows: .* 6 images need 30"):
        cache.open_cache(official, "fog", expected_images=COUNT)


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((30, 8, 8, 3), np.float32),
        np.zeros((30, 8, 8), np.uint8),
        np.zeros((30, 3, 8, 8), np.uint8),
    ],
)
def test_wrong_form(tmp_path, rows):
    np.save(tmp_path / "snow.npy", rows)
    with pytest.raises(UserError, match=r"snow\.npy holds .*: it must be uint8 \[5 N, H, H, 3\]"):
        cache.open_cache(tmp_path, "snow", expected_images=COUNT)


def test_missing(tmp_path, official):
    with pytest.raises(UserError, match=r"snow\.npy is missing"):
        cache.open_cache(official, "snow", expected_images=COUNT)
    with pytest.raises(UserError, match="is not a directory"):
        cache.open_cache(tmp_path / "nowhere", "snow", expected_images=COUNT)


def test_broken_files(tmp_path):
    path = tmp_path / "snow.npy"
    np.save(path, np.zeros((30, 8, 8, 3), np.uint8))
    whole = path.read_bytes()
    objects = np.array([{"a": 1}] * 5, dtype=object)
    for content in (whole[:-100], whole[:20], b"", b"not an array"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"snow\.npy is not a complete \.npy file"):
            cache.open_cache(tmp_path, "snow", expected_images=COUNT)
    np.save(path, objects, allow_pickle=True)
    with pytest.raises(UserError, match=r"snow\.npy is not a complete \.npy file"):
        cache.open_cache(tmp_path, "snow", expected_images=COUNT)


def test_broken_manifest(tmp_path, images, labels):
    for content in ("{", "[]", "{}"):
        (tmp_path / "generated.json").write_text(content)
        with pytest.raises(UserError, match=r"generated\.json cannot be read"):
            cache.write_cache(tmp_path, images, labels, names=NAMES)


def test_manifest_says_what_was_made(tmp_path, images, labels):
    cache.write_cache(tmp_path, images, labels, names=NAMES, seed=7)
    manifest = json.loads((tmp_path / "generated.json").read_text())
    assert manifest["source"] == "CIFAR-10-C protocol, generated"
    assert manifest["seed"] == 7
    assert manifest["images"] == COUNT
    assert manifest["frost"] == corruptions.frost_source()
    assert manifest["complete"] == list(NAMES)


def test_wrong_arguments(tmp_path, images, labels):
    with pytest.raises(UserError, match=r"labels are int64 \[5\]: 6 images need integers \[6\]"):
        cache.write_cache(tmp_path / "a", images, labels[:5])
    with pytest.raises(UserError, match="labels are float64"):
        cache.write_cache(tmp_path / "a", images, labels / 2)
    with pytest.raises(UserError, match="no images"):
        cache.write_cache(tmp_path / "a", images[:0], labels[:0])
    with pytest.raises(UserError, match="unknown corruption"):
        cache.write_cache(tmp_path / "a", images, labels, names=["fgo"])
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        cache.write_cache(tmp_path / "file", images, labels)
