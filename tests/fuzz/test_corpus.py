"""Files that have done harm do none: refused in one line, or read, soon and in little memory."""

import time

import numpy as np
import pytest
import tensorflow as tf
from fuzz import corpus
from fuzz.hunt import hunt

from tfvmf.data import sources
from tfvmf.data.images import read_image
from tfvmf.errors import UserError
from tfvmf.serving.decode import decode

# The beginning of each is an image.
READ = {
    "png that is longer than its header",
    "gif of 100,000 frames",
    "tiff whose directory is its next",
    "tiff with odd tags",
}
SERVED = {
    "png that is longer than its header",
    "png with a bomb of text",
    "png with a bomb of a profile",
    "jpeg of 190,000 blocks",
}


def tried(name, load, **refusals):
    """Whether a file is read and not refused."""
    read = []
    assert hunt(name, lambda _: read.append(load()), count=1, seed=0, **refusals) == []
    return bool(read)


@pytest.fixture(scope="module")
def images():
    return corpus.images()


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of odd TIFF files
def test_hostile_images(images):
    for name, content in images.items():
        done = tried(name, lambda content=content: read_image(content, 16))
        assert not done or name in READ, name


def test_files_that_are_none(tmp_path):
    for name, path in corpus.special_files(tmp_path).items():
        assert not tried(name, lambda path=path: read_image(path, 16)), name


def test_hostile_images_in_a_request(images):
    spec = [tf.TensorSpec([None], tf.string)]
    decoder = tf.function(lambda contents: decode(contents, 16), input_signature=spec)
    refusals = (tf.errors.InvalidArgumentError,)
    for name, content in images.items():
        done = tried(name, lambda content=content: decoder([content]), refusals=refusals)
        assert not done or name in SERVED, name


def test_hostile_arrays(tmp_path):
    path = tmp_path / "arrays.npz"
    for name, content in corpus.archives().items():
        path.write_bytes(content)
        assert not tried(name, lambda: sources.load(f"npz:{path}", "train", image_size=16)), name


def test_the_archives_are_read_where_they_are_harmless(tmp_path):
    pixels = np.arange(192, dtype=np.uint8).reshape(3, 8, 8)
    content = corpus.archive(x_train=corpus.npy(pixels), y_train=corpus.npy(np.arange(3)))
    (tmp_path / "a.npz").write_bytes(content)
    source = sources.load(f"npz:{tmp_path}/a.npz", "train", image_size=8)
    np.testing.assert_array_equal(source.images()[..., 0], pixels)
    assert source.num_classes == 3


def test_a_hunt_notes_what_must_not_happen(monkeypatch):
    monkeypatch.setattr("fuzz.hunt.SECONDS", 0.25)
    monkeypatch.setattr("fuzz.hunt.MEBIBYTES", 100)

    def case(chance):
        match chance.randrange(5):
            case 0:
                raise UserError("no")
            case 1:
                raise KeyError("a bug")
            case 2:
                np.ones(2**25)  # 256 MiB
            case 3:
                time.sleep(0.3)

    failures = " ".join(hunt("hunted", case, count=20, seed=0))
    for expected in ("KeyError: 'a bug'", "took 0 s", "MiB"):
        assert expected in failures
