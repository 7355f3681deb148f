import functools
import json
import pathlib
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.arithmetic import Arithmetic
from PIL import Image

from tfvmf import embedding
from tfvmf.embedding import images as found_images
from tfvmf.embedding import local, table
from tfvmf.errors import UserError

IMAGES = 23
embed_shard = functools.partial(embedding.embed, shard="0/1")


@pytest.fixture
def model(tmp_path, monkeypatch):
    path = tmp_path / "model"
    path.write_text("weights")
    arithmetic = Arithmetic(path)
    monkeypatch.setattr(local, "load", arithmetic)
    monkeypatch.setattr(local, "LEAST_ROWS", 4)
    return arithmetic


@pytest.fixture
def folder(tmp_path):
    for number in range(IMAGES):
        place = tmp_path / "pictures" / ("day" if number % 3 else "night")
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (10 * number,) * 3).save(place / f"{number:02}.png")
    (place / "07.png").write_text("no image")
    return tmp_path / "pictures"


def same(first, second):
    assert first.columns == second.columns
    for name in first.columns:
        if name in table.TEXTS:
            assert list(first[name]) == list(second[name])
        else:
            np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize("shares", [1, 2, 3, 16])
def test_any_number_of_shards_gives_the_rows_of_the_local_program(shares, model, folder, tmp_path):
    whole = embedding.embed(model.path, folder, tmp_path / "out.parquet", batch_size=3)
    seen, model.seen = model.seen, 0
    output = tmp_path / "shards"
    order = list(range(shares))[::-1]
    done = [
        embed_shard(model.path, folder, output, shard=f"{k}/{shares}", batch_size=3) for k in order
    ]
    assert model.seen == seen  # each image once
    same(embedding.read_table(output), embedding.read_table(whole.output))
    for name in ("images", "broken", "rejected"):
        assert sum(getattr(each, name) for each in done) == getattr(whole, name)
    assert min(each.lowest for each in done if each.images) == whole.lowest
    assert max(each.highest for each in done if each.images) == whole.highest
    assert sum(path.suffix == ".parquet" for path in output.iterdir()) == 6


def test_the_same_command_continues_also_with_other_shards(model, folder, tmp_path):
    output = tmp_path / "shards"
    embed_shard(model.path, folder, output, shard="1/3")
    before = {path: path.stat().st_mtime_ns for path in output.glob("*.parquet")}
    assert [path.name for path in sorted(before)] == ["00000002.parquet", "00000003.parquet"]
    model.seen = 0
    done = embed_shard(model.path, folder, output)
    assert model.seen == IMAGES - 1 - 8  # without the broken one and those of two files
    assert (done.images, done.broken) == (IMAGES, 1)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    model.seen = 0
    assert embed_shard(model.path, folder, output) == done
    assert model.seen == 0


def test_killed_in_a_file_leaves_no_half_of_it(model, folder, tmp_path):
    serve = model.serve

    def stop(images):
        if model.seen >= 10:
            raise KeyboardInterrupt
        return serve(images)

    output, model.serve = tmp_path / "shards", stop
    with pytest.raises(KeyboardInterrupt):
        embed_shard(model.path, folder, output, batch_size=2)
    assert sorted(p.name for p in output.iterdir()) == [
        *("00000000.parquet", "00000001.parquet", "job.json")
    ]
    model.serve = serve
    embed_shard(model.path, folder, output, batch_size=2)
    whole = embedding.embed(model.path, folder, tmp_path / "out.parquet", batch_size=2)
    same(embedding.read_table(output), embedding.read_table(whole.output))


def test_a_directory_of_another_job_is_refused_with_the_difference(model, folder, tmp_path):
    output = tmp_path / "shards"
    embed_shard(model.path, folder, output, shard="0/3")
    with pytest.raises(UserError, match=r"output=.*another job: data \(.*pictures -> .*day\), "):
        embed_shard(model.path, folder / "day", output)
    with pytest.raises(UserError, match=r"another job: max_pixels \(\d+ -> 99\); choose another"):
        embed_shard(model.path, folder, output, max_pixels=99)
    model.path.write_text("other weights")
    with pytest.raises(UserError, match=r"another job: model \(\w+ -> \w+\); choose another"):
        embed_shard(model.path, folder, output)
    (output / "job.json").write_text("[")
    with pytest.raises(UserError, match=r"job.json is missing or damaged"):
        embed_shard(model.path, folder, output)
    (output / "job.json").unlink()
    with pytest.raises(UserError, match=r"holds Parquet files without a job\.json"):
        embed_shard(model.path, folder, output)
    assert len(list(output.glob("*.parquet"))) == 2


def test_the_first_of_two_jobs_keeps_the_directory(tmp_path, monkeypatch):
    output = tmp_path / "shards"
    local._claim(output, {"data": "a"}, output, restart=False)
    monkeypatch.setattr(pathlib.Path, "exists", lambda path: False)  # as both saw it
    with pytest.raises(UserError, match=r"data \(a -> b\)"):
        local._claim(output, {"data": "b"}, output, restart=False)
    assert json.loads((output / "job.json").read_text()) == {"data": "a"}
    assert [path.name for path in output.iterdir()] == ["job.json"]


def test_a_full_disk_is_one_line_and_leaves_nothing(model, folder, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(table, "write_table", full)
    message = r"00000000.parquet cannot be written: No space left on device: make room"
    with pytest.raises(UserError, match=message):
        embed_shard(model.path, folder, tmp_path / "shards")
    assert [path.name for path in (tmp_path / "shards").iterdir()] == ["job.json"]


def test_mistakes_cost_no_model(model, folder, tmp_path, monkeypatch):
    loads = []
    monkeypatch.setattr(local, "load", loads.append)
    (tmp_path / "file").write_text("")
    for output, options, message in [
        ("out.parquet", {}, "output=.*expected a directory"),
        ("file", {}, "output=.*expected a directory"),
        ("no/such/place", {}, "output=.*expected a directory"),
        ("out", {"shard": "3"}, "shard=3: expected K/N"),
        ("out", {"shard": "16/16"}, "shard=16/16: expected K/N with K from 0 to N - 1"),
        ("out", {"shard": "-1/3"}, "shard=-1/3: expected"),
        ("out", {"engine": "spark"}, "engine=spark: .*one of local, ray"),
    ]:
        with pytest.raises(UserError, match=message):
            embed_shard(model.path, folder, tmp_path / output, **options)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "tfvmf.embedding.on_ray", raising=False)
    with pytest.raises(UserError, match=r"Ray is not installed: pip install 'tfvmf\[ray\]'"):
        embed_shard(model.path, folder, tmp_path / "out", engine="ray")
    assert not loads
    assert not (tmp_path / "out").exists()


def test_files_are_neither_many_nor_large():
    for count in (1, 255, 256, 257, 5000, 10**6, 3 * 10**6, 10**8):
        parts = local.file_rows(count)
        assert sum(map(len, parts)) == count
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert max(map(len, parts)) <= 8192
        assert len(parts) <= max(4096, -(-count // 8192))


# What is found for Ray, without Ray.


def write_parquet(path, rows, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": pa.array([b"x"] * rows, pa.binary()), **columns}), path)


def test_places(folder, tmp_path):
    plain = found_images.find_images(str(folder), "all", 99)
    uri = found_images.find_images(f"folder:{folder.as_uri()}", "all", 99)
    assert uri.paths == [pathlib.Path(path).as_uri() for path in plain.paths]
    assert uri.labels == plain.labels
    assert set(plain.labels) == {"day", "night"}
    (tmp_path / "list.txt").write_text(f"{plain.paths[2]}\r\n\n{uri.paths[0]}\n")
    listed = found_images.find_images(f"files:{tmp_path}/list.txt", "all", 99)
    assert (listed.paths, listed.labels) == ([plain.paths[2], uri.paths[0]], None)
    write_parquet(tmp_path / "p" / "b.parquet", 10, label=[1] * 10)
    write_parquet(tmp_path / "p" / "a" / "c.parquet", 10, label=[1] * 10)
    write_parquet(tmp_path / "p" / ".hidden" / "c.parquet", 10)
    records = found_images.find_images(f"parquet:{tmp_path}/p", "all", 99)
    assert records.uris == [f"{tmp_path}/p/a/c.parquet", f"{tmp_path}/p/b.parquet"]
    assert records.columns == ["image", "label"]
    assert list(map(len, records.units)) == [10, 10]
    records = found_images.find_images(f"parquet:{tmp_path.as_uri()}/p", "all", 99)
    assert records.uris[1] == f"{tmp_path.as_uri()}/p/b.parquet"


def test_mistakes_in_places(tmp_path):
    pq.write_table(pa.table({"photo": pa.array([b"x"]), "n": [1]}), tmp_path / "x.parquet")
    (tmp_path / "broken.parquet").write_text("none")
    (tmp_path / "x.tfrecord").write_text("none")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.txt").write_text("\n")
    for data, column, message in [
        ("parquet:{}/x.parquet", "", "no images in image or bytes or .*columns of bytes: photo"),
        ("parquet:{}/x.parquet", "n", "column=n: .* has no images in n; .* photo"),
        ("parquet:{}/broken.parquet", "", "broken.parquet cannot be read: Parquet file size"),
        ("parquet:{}/none", "", "there is no such file or folder"),
        ("parquet:", "", "there is no such file or folder"),
        ("parquet:{}/empty", "", "no such files in this folder"),
        ("tfrecord:{}/x.tfrecord", "", "its first record is not a tf.train.Example"),
        ("files:{}/none.txt", "", "cannot be read: .*No such file"),
        ("files:{}/empty.txt", "", "no images in this list"),
        ("folder:{}/empty", "", "no images in this folder"),
        ("folder:file://{}/empty", "", "no such files in this folder"),
        ("folder:none://{}", "", "cannot be read: Unrecognized filesystem type"),
        ("digits", "", "digits: engine=ray reads folder:, files:, parquet: and tfrecord: only"),
        ("folder:{}", "x", "column=x: .* has no columns"),
    ]:
        with pytest.raises(UserError, match=message):
            found_images.find_images(data.format(tmp_path), "all", 99, column=column)
    with pytest.raises(UserError, match=r"split=test: .* has no splits"):
        found_images.find_images(f"parquet:{tmp_path}", "test", 99)


def test_rows_are_numbered_in_their_file(tmp_path):
    sizes = [3, 0, 4, 0]
    for number, size in enumerate(sizes):
        write_parquet(tmp_path / f"{number}.parquet", size)
    records = found_images.find_images(f"parquet:{tmp_path}", "all", 99)
    paths = [path for path, size in zip(records.uris, sizes, strict=True) for _ in range(size)]
    rows = pa.table({"file": paths, "error": [""] * 7})
    for cut in (1, 2, 5, 7):
        blocks = (rows[start : start + cut] for start in range(0, 7, cut))
        found = {unit: [] for unit in range(4)}
        for unit, block in records.by_unit(dict(enumerate(records.units)), blocks, rows[:0]):
            found[unit] += block["file"].to_pylist()
        assert found == {
            unit: [f"{tmp_path}/{unit}.parquet:{row}" for row in range(size)]
            for unit, size in enumerate(sizes)
        }


def test_rows_that_are_lost_or_doubled_are_noticed(folder):
    images = found_images.find_images(str(folder), "all", 99)
    units = dict(enumerate([range(0, 10), range(10, 23)]))
    rows = pa.table({"file": images.names})
    for cut in (1, 7, 23):
        blocks = [rows[start : start + cut] for start in range(0, 23, cut)]
        parts = [
            (unit, len(block)) for unit, block in images.by_unit(units, iter(blocks), rows[:0])
        ]
        assert sum(size for unit, size in parts if unit == 0) == 10
        assert sum(size for _, size in parts) == 23
        with pytest.raises(RuntimeError):  # one is lost
            list(images.by_unit(units, iter(blocks[:-1]), rows[:0]))
    with pytest.raises(RuntimeError, match="another row"):
        list(images.by_unit(units, iter([rows[:7], rows[:16]]), rows[:0]))
    with pytest.raises(RuntimeError, match="more rows"):
        list(images.by_unit(units, iter([rows, rows[-1:]]), rows[:0]))
