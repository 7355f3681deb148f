import os

import numpy as np
import pytest
from PIL import Image

from tfvmf.data import folder
from tfvmf.data.folder import FolderSource
from tfvmf.data.sources import load
from tfvmf.errors import UserError


def paint(path, value, size=(20, 12)):
    """Writes an image of one gray value, so that it can be told from the others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)


def values(source):
    return source.images()[:, 0, 0, 0].tolist()


@pytest.fixture
def flat(tmp_path):
    for number in range(60):
        paint(tmp_path / f"{number:03d}.png", number, size=(9 + number, 40 - number // 2))
    return tmp_path


def test_flat_folder_is_unlabeled_and_split_without_overlap(flat):
    train, test = load(f"folder:{flat}", "train"), load(f"folder:{flat}", "test")
    assert train.labels is None
    assert train.num_classes == 0
    assert train.image_shape == (32, 32, 3)
    assert sorted(values(train) + values(test)) == list(range(60))
    assert values(train) == sorted(values(train))
    assert 0 < test.size < train.size
    assert values(load(f"folder:{flat}", "all")) == list(range(60))


def test_streamed_and_in_memory_are_the_same(flat):
    memory = load(f"folder:{flat}", image_size=16)
    stream = load(f"folder:{flat}", image_size=16, memory_limit=0)
    assert memory.array is not None
    assert isinstance(stream, FolderSource)
    assert stream.array is None
    assert stream.size == memory.size
    np.testing.assert_array_equal(stream.images(), memory.array)
    np.testing.assert_array_equal(stream.images(3, 9), memory.array[3:9])
    indices = np.array([5, 0, 5, stream.size - 1])
    np.testing.assert_array_equal(stream.take(indices), memory.array[indices])
    with pytest.raises(IndexError):
        stream.take(np.array([stream.size]))


def test_the_limit_is_on_the_decoded_bytes(flat):
    decoded = 60 * 16 * 16 * 3
    assert load(f"folder:{flat}", "all", image_size=16, memory_limit=decoded).array is not None
    assert load(f"folder:{flat}", "all", image_size=16, memory_limit=decoded - 1).array is None


def test_class_folders_are_labels_in_the_order_of_their_names(tmp_path):
    for label, name in enumerate(["ant", "bee", "cat"]):
        for number in range(10):
            paint(tmp_path / name / "deeper" / f"{number}.jpg", 80 * label)
    everything = load(f"folder:{tmp_path}", "all")
    assert everything.class_names == ["ant", "bee", "cat"]
    assert everything.num_classes == 3
    assert everything.labels.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    np.testing.assert_allclose(values(everything), 80 * everything.labels, atol=2)
    for split in ("train", "test"):
        assert load(f"folder:{tmp_path}", split).num_classes == 3


def test_split_folders_share_their_classes(tmp_path):
    for name, value in {"train/a": 10, "train/c": 30, "val/b": 20, "val/c": 31}.items():
        paint(tmp_path / name / "x.png", value)
    train, test = load(f"folder:{tmp_path}", "train"), load(f"folder:{tmp_path}", "test")
    assert train.class_names == test.class_names == ["a", "b", "c"]
    assert (values(train), train.labels.tolist()) == ([10, 30], [0, 2])
    assert (values(test), test.labels.tolist()) == ([20, 31], [1, 2])
    assert load(f"folder:{tmp_path}", "val").labels.tolist() == [1, 2]
    assert load(f"folder:{tmp_path}", "all").labels.tolist() == [0, 2, 1, 2]
    with pytest.raises(UserError, match="train, val"):
        load(f"folder:{tmp_path}", "extra")


def test_unlabeled_training_images_beside_labeled_test_images(tmp_path):
    paint(tmp_path / "train" / "images" / "1.png", 1)
    paint(tmp_path / "test" / "a" / "2.png", 2)
    paint(tmp_path / "test" / "b" / "3.png", 3)
    assert load(f"folder:{tmp_path}", "train").labels is None
    assert load(f"folder:{tmp_path}", "test").class_names == ["a", "b"]


def test_one_folder_or_loose_images_make_no_classes(tmp_path):
    paint(tmp_path / "images" / "1.png", 1)
    assert load(f"folder:{tmp_path}", "all").labels is None
    paint(tmp_path / "others" / "2.png", 2)
    assert load(f"folder:{tmp_path}", "all").num_classes == 2
    paint(tmp_path / "3.png", 3)
    assert load(f"folder:{tmp_path}", "all").labels is None


def test_other_files_hidden_files_and_circles_are_left_out(tmp_path):
    paint(tmp_path / "data" / "1.PNG", 1)
    paint(tmp_path / "data" / ".hidden.png", 2)
    paint(tmp_path / "data" / ".thumbnails" / "3.png", 3)
    paint(tmp_path / "data" / "__MACOSX" / "4.png", 4)
    paint(tmp_path / "linked" / "5.png", 5)
    (tmp_path / "data" / "notes.txt").write_text("no image")
    os.symlink(tmp_path / "linked", tmp_path / "data" / "more")
    os.symlink(tmp_path / "data", tmp_path / "data" / "circle")
    assert values(load(f"folder:{tmp_path / 'data'}", "all")) == [1, 5]


def test_one_image_trains_and_says_that_it_cannot_test(tmp_path):
    paint(tmp_path / "a" / "1.png", 1)
    sizes, messages = [], []
    for split in ("train", "test"):
        try:
            sizes.append(load(f"folder:{tmp_path}", split).size)
        except UserError as error:
            messages.append(str(error))
    assert sizes == [1]
    assert "holds no images" in messages[0]


@pytest.mark.parametrize("limit", [2**31, 0], ids=["in memory", "streamed"])
def test_broken_images_are_named_at_once(flat, limit):
    (flat / "011.png").write_bytes(b"no image at all")
    complete = (flat / "012.png").read_bytes()
    (flat / "012.png").write_bytes(complete[: len(complete) // 2])
    with pytest.raises(UserError, match=r"011\.png: .* \(and 1 more like it\)"):
        load(f"folder:{flat}", "all", memory_limit=limit)
    (flat / "011.png").unlink()
    with pytest.raises(UserError, match=r"012\.png"):
        load(f"folder:{flat}", "all", memory_limit=limit)


@pytest.mark.parametrize("limit", [2**31, 0], ids=["in memory", "streamed"])
def test_broken_files_are_left_out_and_named(flat, limit):
    whole = load(f"folder:{flat}", "all", memory_limit=limit).images()
    for name in ("011.png", "040.png"):
        content = (flat / name).read_bytes()
        damaged = bytearray(content)
        damaged[len(content) // 2] ^= 0xFF  # header and end are as they were
        (flat / name).write_bytes(damaged)
    (flat / "012.png").write_text("no image")
    source = load(f"folder:{flat}", "all", memory_limit=limit, skip_broken=True)
    good = [number for number in range(60) if number not in (11, 12, 40)]
    np.testing.assert_array_equal(source.images(), whole[good])
    assert source.files == [str(flat / f"{number:03d}.png") for number in good]
    assert list(source.broken) == [str(flat / name) for name in ("011.png", "012.png", "040.png")]
    assert source.broken[str(flat / "012.png")].startswith("not an image")
    assert "broken image" in source.broken[str(flat / "040.png")]
    for path in flat.iterdir():
        path.write_text("")
    with pytest.raises(UserError, match=r"all 60 images are broken, such as .*000\.png: not an"):
        load(f"folder:{flat}", "all", memory_limit=limit, skip_broken=True)


def test_files_that_have_not_changed_are_not_checked_again(flat, monkeypatch):
    (flat / "012.png").write_text("no image")
    read = []
    real = folder.read_image
    monkeypatch.setattr(
        folder, "read_image", lambda path, *a, **k: (read.append(path), real(path, *a, **k))
    )
    options = {"memory_limit": 0, "skip_broken": True}
    first = load(f"folder:{flat}", "all", **options)
    assert len(read) == 60
    again = load(f"folder:{flat}", "all", **options)
    assert len(read) == 60
    assert again.broken == first.broken
    assert again.files == first.files
    paint(flat / "012.png", 12)
    assert load(f"folder:{flat}", "all", **options).broken == {}
    assert len(read) == 120


def test_capitals_do_not_matter_in_the_names_of_splits(tmp_path):
    for name, value in {"Train/a": 10, "Train/B": 30, "VAL/a": 20, "VAL/B": 31}.items():
        paint(tmp_path / name / "x.png", value)
    train, test = load(f"folder:{tmp_path}", "train"), load(f"folder:{tmp_path}", "test")
    assert train.class_names == test.class_names == ["B", "a"]
    assert values(train) == [30, 10]
    assert values(test) == values(load(f"folder:{tmp_path}", "val")) == [31, 20]
    assert not train.divided
    paint(tmp_path / "TEST" / "a" / "x.png", 40)
    assert values(load(f"folder:{tmp_path}", "test")) == [40]


def test_only_what_is_divided_here_says_so(flat):
    assert load(f"folder:{flat}", "train").divided
    assert load(f"folder:{flat}", "test").divided
    assert not load(f"folder:{flat}", "all").divided


def test_a_home_folder(flat, monkeypatch):
    monkeypatch.setenv("HOME", str(flat.parent))
    assert load(f"folder:~/{flat.name}", "all").size == 60


@pytest.mark.parametrize("limit", [2**31, 0], ids=["in memory", "streamed"])
def test_images_are_named_by_their_files(flat, limit):
    source = load(f"folder:{flat}", "all", memory_limit=limit)
    assert source.file(30) == source.files[30] == str(flat / "030.png")
    assert source.subset(np.array([30, 2])).files == [source.file(30), source.file(2)]


def test_an_image_that_breaks_later_is_named(flat):
    source = load(f"folder:{flat}", "all", memory_limit=0)
    (flat / "030.png").unlink()
    with pytest.raises(UserError, match=r"030\.png"):
        source.take(np.array([29, 30]))


@pytest.mark.parametrize("limit", [2**31, 0], ids=["in memory", "streamed"])
def test_a_fifo_is_named_and_not_waited_for(flat, limit):
    os.mkfifo(flat / "zzz.png")
    with pytest.raises(UserError, match=r"zzz\.png: not a regular file"):
        load(f"folder:{flat}", "all", memory_limit=limit)


@pytest.mark.parametrize("limit", [2**31, 0], ids=["in memory", "streamed"])
def test_images_of_more_than_max_pixels_are_counted(flat, limit):
    pixels = sorted((9 + number) * (40 - number // 2) for number in range(60))
    options = {"memory_limit": limit, "image_size": 8}
    assert load(f"folder:{flat}", "all", max_pixels=pixels[-1], **options).size == 60
    more = sum(each > 700 for each in pixels) - 1
    with pytest.raises(UserError, match=rf"max_pixels=700: .* \(and {more} more"):
        load(f"folder:{flat}", "all", max_pixels=700, **options)


def test_bad_folders(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path}: no images"):
        load(f"folder:{tmp_path}")
    with pytest.raises(UserError, match="no such folder"):
        load(f"folder:{tmp_path}/nowhere")
    with pytest.raises(UserError, match="no such folder"):
        load("folder:")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not a folder"):
        load(f"folder:{tmp_path}/file")
    paint(tmp_path / "train" / "1.png", 1)
    with pytest.raises(UserError, match="add test/"):
        load(f"folder:{tmp_path}", "test")
