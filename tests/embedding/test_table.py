import csv
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfvmf import embedding
from tfvmf.embedding import table
from tfvmf.errors import UserError

ROWS = 11


@pytest.fixture
def content():
    """Texts and outputs of eleven images, of which two are broken, and the table of them."""
    rng = np.random.default_rng(0)
    names = [
        *("a", "=b", "'=b", "''=b", "-1", "'-1", '+c,"d"\r\n', "\n", " ", "図", "e" * 300),
    ]
    errors = ["", "", "=HYPERLINK(1)", "", "", "", "", "", "", "", "cut, off"]
    outputs = {
        "features": rng.normal(size=(9, 3)),
        "mean_direction": rng.normal(size=(9, 2)),
        "concentration": rng.uniform(0, 9, 9) ** 9,
        "familiarity": rng.normal(size=9) * 1e-9,
        "class_probability": rng.uniform(size=9),
    }
    outputs = {name: value.astype(np.float32) for name, value in outputs.items()}
    outputs["accept"] = rng.integers(2, size=9).astype(bool)
    outputs["class"] = np.array([f"class {number}" for number in range(9)], object)
    texts = {"file": names, "error": errors, "label": names[::-1]}
    schema = table.table_schema(outputs, labels=True)
    return texts, outputs, table.to_arrow(schema, texts, outputs)


def write(path, rows, blocks=4):
    """Writes a table in blocks of some rows."""

    def some(names):
        chosen = rows.select(list(names))
        for start in range(0, len(rows), blocks):
            yield chosen.slice(start, blocks)

    with path.open("wb") as file:
        table.write_table(file, path.suffix, rows.schema, len(rows), some)
    return path


@pytest.mark.parametrize("kind", [".parquet", ".npz", ".csv"])
def test_what_is_written_is_read(kind, content, tmp_path, monkeypatch):
    texts, outputs, rows = content
    read = embedding.read_table(write(tmp_path / f"t{kind}", rows))
    expected = [name for name in embedding.COLUMNS if name in (*texts, *outputs)]
    if kind == ".csv":
        expected = [name for name in expected if name not in ("features", "mean_direction")]
    assert list(read.columns) == expected
    assert len(read) == ROWS
    good = np.array([not error for error in texts["error"]])
    for name in expected:
        if name in texts:
            assert list(read[name]) == texts[name]
            continue
        assert len(read[name]) == ROWS
        np.testing.assert_array_equal(read[name][good], outputs[name])  # all bits
        broken = read[name][~good]
        if name == "accept":
            assert not broken.any()
        elif name == "class":
            assert list(broken) == ["", ""]
        else:
            assert np.isnan(broken).all()
    monkeypatch.setattr(table, "ROWS", 3)
    parts = list(embedding.read_table(read.path).parts("file", "accept"))
    assert max(len(part["file"]) for part in parts) <= 3
    assert [name for part in parts for name in part["file"]] == texts["file"]
    assert set(parts[0]) == {"file", "accept"}


def test_the_same_rows_give_the_same_bits_and_numpy_reads_them(content, tmp_path):
    _, outputs, rows = content
    first, second = (write(tmp_path / f"{name}.npz", rows).read_bytes() for name in "ab")
    assert first == second
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        assert archive["features"].shape == (ROWS, 3)
        assert archive["accept"].dtype == bool
        np.testing.assert_array_equal(archive["concentration"][0], outputs["concentration"][0])


def test_no_cell_is_a_formula(content, tmp_path):
    with write(tmp_path / "t.csv", content[2]).open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell.lstrip().startswith(("=", "+", "@"))]
    assert all(float(cell) < 0 for cell in cells if cell.startswith("-"))  # only numbers


def test_a_directory_of_parquet_files_is_one_table(content, tmp_path):
    _, _, rows = content
    (tmp_path / "shards").mkdir()
    pq.write_table(rows.slice(6), tmp_path / "shards" / "part-1.parquet")
    pq.write_table(rows.slice(0, 6), tmp_path / "shards" / "part-0.parquet")
    read = embedding.read_table(str(tmp_path / "shards"))
    whole = embedding.read_table(write(tmp_path / "t.parquet", rows))
    assert len(read) == ROWS
    for name in read.columns:
        np.testing.assert_array_equal(read[name], whole[name])
    pq.write_table(rows.drop_columns("features"), tmp_path / "shards" / "part-2.parquet")
    with pytest.raises(UserError, match=r"part-2\.parquet has other columns"):
        embedding.read_table(tmp_path / "shards")


def test_other_tools_may_write_one(content, tmp_path):
    _, outputs, rows = content
    wide = rows.set_column(0, "file", rows["file"].cast(pa.large_string()))
    lists = pa.array(rows["features"].to_pylist(), pa.list_(pa.float64()))
    wide = wide.set_column(3, "features", lists).append_column("mine", pa.array(range(ROWS)))
    pq.write_table(wide, tmp_path / "t.parquet")
    read = embedding.read_table(tmp_path / "t.parquet")
    assert "mine" not in read.columns
    np.testing.assert_array_equal(read["features"][:2], outputs["features"][:2])


def test_what_is_no_table_is_one_line(content, tmp_path):
    good = write(tmp_path / "good.parquet", content[2])
    for kind in (".parquet", ".npz", ".csv"):
        path = write(tmp_path / f"t{kind}", content[2])
        for damaged in (path.read_bytes()[:150], b"", b"\xff\x00 nonsense"):
            path.write_bytes(damaged)
            with pytest.raises(UserError, match=f"t{kind}"):
                _ = embedding.read_table(path)["file"]
        path.unlink()
        with pytest.raises(UserError, match="there is no such file"):
            embedding.read_table(path)
    np.savez(tmp_path / "t.npz", **{"error": [""], "label": np.array([{}])})
    with zipfile.ZipFile(tmp_path / "t.npz", "a") as archive:
        archive.writestr("file.npy", archive.read("error.npy"))
    with pytest.raises(UserError, match="damaged"):  # never unpickled
        _ = embedding.read_table(tmp_path / "t.npz")["label"]
    with pytest.raises(UserError, match="no column confidence: it has file, error"):
        _ = embedding.read_table(good)["confidence"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no \.parquet files"):
        embedding.read_table(tmp_path / "empty")
