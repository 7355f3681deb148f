import concurrent.futures
import io
import os
import shutil
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from helpers.tfds_sets import image_features, prepare
from PIL import Image

from tfvmf import data
from tfvmf.data import cache
from tfvmf.data.sources import load
from tfvmf.errors import UserError


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFVMF_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def images(rng):
    return rng.integers(0, 256, (12, 16, 16, 3), dtype=np.uint8)


@pytest.fixture(params=["tfrecord", "array_record"])
def shuffled(request, tmp_path, images, rng):
    """Ten training and two test images with ids, stored out of their order."""
    import tensorflow_datasets as tfds

    features = image_features(
        label=tfds.features.ClassLabel(names=["a", "b", "c"]),
        id=tfds.features.Text(),
        coarse_label=tfds.features.ClassLabel(num_classes=2),
    )
    examples = [
        {"image": image, "label": number % 3, "coarse_label": 0, "id": f"train_{number}"}
        for number, image in enumerate(images)
    ]
    train = [examples[number] for number in rng.permutation(10)]
    data_dir = tmp_path / "tfds"
    split = {"train": train, "test": examples[10:]}
    prepare(data_dir, split, features, file_format=request.param)
    return str(data_dir)


def test_ids_restore_the_official_order(shuffled, images):
    source = load("tiny", "train", data_dir=shuffled, image_size=16)
    np.testing.assert_array_equal(source.array, images[:10])
    assert source.labels.tolist() == [number % 3 for number in range(10)]
    assert source.class_names == ["a", "b", "c"]
    assert source.name == "tiny"
    assert load("tiny:1.0.0", "test", data_dir=shuffled).size == 2
    assert load("tfds:tiny", "test", data_dir=shuffled).size == 2


def test_split_expressions(shuffled, images):
    parts = [load("tiny", s, data_dir=shuffled) for s in ("train[:7]", "train[7:]", "train[50%:]")]
    assert [part.size for part in parts] == [7, 3, 5]
    rows = {row.tobytes() for part in parts[:2] for row in part.array}
    assert rows == {row.tobytes() for row in load("tiny", "train", data_dir=shuffled).array}
    both = load("tiny", "train+test", data_dir=shuffled, image_size=16)
    # train_10 comes after train_9: by number, not by letter.
    np.testing.assert_array_equal(both.array, images)


def test_the_cache_gives_what_memory_gives(shuffled):
    memory = load("tiny", "train", data_dir=shuffled, image_size=24)
    cached = load("tiny", "train", data_dir=shuffled, image_size=24, memory_limit=0)
    assert cached.array is None
    np.testing.assert_array_equal(cached.images(), memory.array)
    np.testing.assert_array_equal(cached.images(2, 5), memory.array[2:5])
    indices = np.array([9, 0, 0, 4])
    batch = cached.take(indices)
    assert type(batch) is np.ndarray
    np.testing.assert_array_equal(batch, memory.array[indices])
    np.testing.assert_array_equal(cached.labels, memory.labels)
    assert cached.class_names == memory.class_names


def test_the_cache_is_built_once_and_again_when_damaged(shuffled, monkeypatch):
    def read(**options):
        return load("tiny", "train", data_dir=shuffled, memory_limit=0, **options).images()

    first = read()
    built = list(cache.cache_dir().glob("*/images.npy"))
    assert len(built) == 1
    stamp = built[0].stat().st_mtime_ns
    np.testing.assert_array_equal(read(), first)
    assert built[0].stat().st_mtime_ns == stamp
    built[0].write_bytes(built[0].read_bytes()[:-1])
    np.testing.assert_array_equal(read(), first)
    (built[0].parent / "columns.npz").unlink()
    np.testing.assert_array_equal(read(), first)
    read(image_size=8)
    assert len(list(cache.cache_dir().glob("*/images.npy"))) == 2
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=0))
    with pytest.raises(UserError, match="TFVMF_CACHE"):
        read(image_size=9)


def test_caches_that_nobody_used_for_a_month_are_removed(tmp_path):
    def want(name):
        chunks = [np.zeros((2, 8, 8, 3), np.uint8)]
        cache.load_or_build({"name": name}, (2, 8, 8, 3), chunks=lambda: chunks, columns=dict)

    for name in ("old", "used", "older"):
        want(name)
    mine = cache.cache_dir() / "mine"  # not a cache by its name
    mine.mkdir()
    np.save(mine / "images.npy", np.zeros(3))
    for file in [*cache.cache_dir().glob("*/*"), *cache.cache_dir().glob("*")]:
        os.utime(file, (0, 0))
    want("used")  # again
    want("new")
    found = sorted(path.name.split("-")[0] for path in cache.cache_dir().iterdir() if path.is_dir())
    assert found == ["mine", "new", "used"]


def test_those_who_want_the_same_cache_wait_for_the_first():
    built = []

    def chunks():
        built.append(1)
        time.sleep(0.2)
        yield np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)

    def want(_):
        shape = (2, 8, 8, 3)
        return cache.load_or_build({"name": "x"}, shape, chunks=chunks, columns=dict)[0].sum()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(want, range(4)))) == 1
    assert len(built) == 1


def test_a_cache_that_could_not_be_finished_leaves_nothing_behind():
    def chunks():
        yield np.zeros((1, 8, 8, 3), np.uint8)
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left on device: make room, or set TFVMF_CACHE"):
        cache.load_or_build({"name": "x"}, (2, 8, 8, 3), chunks=chunks, columns=dict)
    assert [path.suffix for path in cache.cache_dir().iterdir()] == [".lock"]


def test_gray_images_of_any_size_without_labels(tmp_path):
    examples = [{"image": np.full((9 + n, 30 - n, 1), 20 * n, np.uint8)} for n in range(6)]
    prepare(tmp_path, {"train": examples}, image_features(shape=(None, None, 1)))
    source = load("tiny", data_dir=str(tmp_path))
    assert source.image_shape == (32, 32, 3)
    assert source.labels is None
    # Without ids the order is that in which they are stored.
    np.testing.assert_array_equal(
        source.array, np.arange(6).reshape(6, 1, 1, 1) * 20 + 0 * source.array
    )


def test_secret_labels_are_no_labels(tmp_path, images):
    import tensorflow_datasets as tfds

    features = image_features(label=tfds.features.ClassLabel(num_classes=3))
    secret = [{"image": image, "label": -1} for image in images]
    mixed = [{"image": image, "label": -1 + n} for n, image in enumerate(images[:2])]
    prepare(tmp_path, {"test": secret, "mixed": mixed}, features)
    assert load("tiny", "test", data_dir=str(tmp_path)).labels is None
    with pytest.raises(UserError, match="-1 to 0"):
        load("tiny", "mixed", data_dir=str(tmp_path))


def test_configs_and_versions(tmp_path, images):
    for number, version in enumerate(["1.0.0", "1.2.0"]):
        example = {"image": np.full((16, 16, 3), number, np.uint8)}
        prepare(tmp_path, {"train": [example]}, image_features(), version=version)
    assert load("tiny", data_dir=str(tmp_path)).array.max() == 1
    assert load("tiny:1.0.0", data_dir=str(tmp_path)).array.max() == 0
    with pytest.raises(UserError, match=r"1\.0\.0, 1\.2\.0"):
        load("tiny:3.0.0", data_dir=str(tmp_path))
    prepare(tmp_path, {"train": [{"image": images[0]}]}, image_features(), name="other/small")
    assert load("other/small", data_dir=str(tmp_path), image_size=16).size == 1


def test_data_sets_that_are_not_there(tmp_path):
    with pytest.raises(
        UserError, match=r"cifar10: not prepared in .*: add --download .*download=True"
    ):
        load("cifar10", data_dir=tmp_path)
    with pytest.raises(UserError, match="did you mean cifar10"):
        load("ciphar10", data_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"data_dir=.*nowhere"):
        load("cifar10", data_dir=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="not the name"):
        load("tfds:no name", data_dir=str(tmp_path))


def test_unknown_and_empty_splits(shuffled):
    with pytest.raises(UserError, match="unknown split 'trian'; it has train, test"):
        load("tiny", "trian", data_dir=shuffled)
    with pytest.raises(UserError, match="holds no images"):
        load("tiny", "train[:0]", data_dir=shuffled)


def test_data_sets_without_an_image(tmp_path):
    import tensorflow_datasets as tfds

    prepare(tmp_path, {"train": [{"text": "no image"}]}, {"text": tfds.features.Text()})
    with pytest.raises(UserError, match=r"feature 'image'.*it has text"):
        load("tiny", data_dir=str(tmp_path))


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_damaged_files_are_named(tmp_path, images, file_format):
    examples = [{"image": image} for image in images]
    path = prepare(tmp_path, {"train": examples}, image_features(), file_format=file_format)
    shards = sorted(path.glob("tiny-train*"))
    complete = shards[1].read_bytes()
    shards[1].write_bytes(complete[: len(complete) // 2])
    with pytest.raises(UserError, match=shards[1].name):
        load("tiny", data_dir=str(tmp_path))
    shards[1].unlink()
    with pytest.raises(UserError, match=shards[1].name):
        load("tiny", data_dir=str(tmp_path))


def flip(path, place, bit=3):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("part", ["length", "checksum of the length", "data", "checksum of data"])
@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_is_named_by_file_and_record(tmp_path, images, part, bit):
    path = prepare(tmp_path, {"train": [{"image": i} for i in images]}, image_features())
    shard = sorted(path.glob("tiny-train*"))[1]
    # A record is its length (8 bytes), a checksum (4), the data, a checksum (4). The third one:
    content, start = shard.read_bytes(), 0
    for _ in range(2):
        start += 16 + int.from_bytes(content[start : start + 8], "little")
    length = int.from_bytes(content[start : start + 8], "little")
    offset = {
        "length": 1,
        "checksum of the length": 8,
        "data": 12 + length // 2,
        "checksum of data": 12 + length + 3,
    }
    load("tiny", data_dir=tmp_path)
    flip(shard, start + offset[part], bit)
    with pytest.raises(UserError, match=rf"{shard.name}: record 2 of 4 is damaged"):
        load("tiny", data_dir=tmp_path)


def test_a_flipped_bit_before_the_part_that_is_read_is_found_too(tmp_path, images):
    path = prepare(tmp_path, {"train": [{"image": i} for i in images]}, image_features())
    flip(sorted(path.glob("tiny-train*"))[0], 100)
    assert load("tiny", "train[4:]", data_dir=tmp_path).size == 8  # in another file
    with pytest.raises(UserError, match="record 0 of 4"):
        load("tiny", "train[2:]", data_dir=tmp_path)


def test_a_file_that_ends_between_two_records(tmp_path, images):
    path = prepare(tmp_path, {"train": [{"image": i} for i in images]}, image_features())
    shard = sorted(path.glob("tiny-train*"))[2]
    content = shard.read_bytes()
    shard.write_bytes(content[: 16 + int.from_bytes(content[:8], "little")])
    with pytest.raises(UserError, match=rf"{shard.name}: cut off after record 1 of 4"):
        load("tiny", data_dir=tmp_path)
    shard.write_bytes(b"")
    with pytest.raises(UserError, match=rf"{shard.name}: cut off after record 0 of 4"):
        load("tiny", data_dir=tmp_path)


def test_reading_runs_nothing_in_tensorflow_and_warns_of_nothing(tmp_path, images):
    prepare(tmp_path, {"train": [{"image": i} for i in images]}, image_features())
    # Devices can be set up as long as nothing has run.
    code = f"""
import tfvmf.data
assert tfvmf.data.load_source("tiny", data_dir={str(tmp_path)!r}).size == 12
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr


def test_a_broken_image_is_named_by_its_record(tmp_path, rng):
    # A right record around a broken PNG: only the decoder can tell.
    broken = [io.BytesIO(encoded_png(rng)) for _ in range(6)]
    broken[4] = io.BytesIO(broken[4].getvalue()[:60] + bytes(20) + broken[4].getvalue()[80:])
    prepare(tmp_path, {"train": [{"image": file} for file in broken]}, image_features())
    with pytest.raises(UserError, match=r"tiny \(train\), record 4"):
        load("tiny", data_dir=tmp_path)


def encoded_png(rng):
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def local_set():
    """A data set that TFDS knows and prepares, whose 'download' is a generator here."""
    import tensorflow_datasets as tfds

    class TfvmfLocalSet(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        broken = False

        def _info(self):
            features = image_features(label=tfds.features.ClassLabel(names=["a", "b"]))
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, dl_manager):
            if self.broken:
                raise OSError("no network\nat all")
            return {"train": self._generate_examples(6), "test": self._generate_examples(2)}

        def _generate_examples(self, count):
            for number in range(count):
                yield number, {"image": np.full((16, 16, 3), number, np.uint8), "label": number % 2}

    return TfvmfLocalSet


def test_download_prepares_what_is_not_there(local_set, tmp_path, monkeypatch):
    data_dir = tmp_path / "not" / "yet"
    with pytest.raises(UserError, match=r"data_dir=.*no such folder"):
        load("tfvmf_local_set", data_dir=data_dir)
    data_dir.mkdir(parents=True)
    with pytest.raises(UserError, match=r"tfvmf_local_set: not prepared in .*--download"):
        load("tfvmf_local_set", data_dir=data_dir)
    data_dir.rmdir()
    source = load("tfvmf_local_set", data_dir=data_dir, download=True)
    assert sorted(source.array[:, 0, 0, 0]) == list(range(6))
    np.testing.assert_array_equal(source.labels, source.array[:, 0, 0, 0] % 2)
    assert source.class_names == ["a", "b"]
    # Now it is there: nothing is downloaded, with or without the option.
    monkeypatch.setattr(local_set, "broken", True)
    assert load("tfvmf_local_set", "test", data_dir=str(data_dir)).size == 2
    assert load("tfvmf_local_set", "test", data_dir=str(data_dir), download=True).size == 2
    data.download("tfvmf_local_set", data_dir=data_dir)
    data.download("digits")  # has nothing to download


def test_a_download_that_fails_is_one_line(local_set, tmp_path, monkeypatch):
    monkeypatch.setattr(local_set, "broken", True)
    with pytest.raises(UserError, match="cannot be downloaded and prepared: no network at all"):
        data.download("tfvmf_local_set", data_dir=tmp_path)
