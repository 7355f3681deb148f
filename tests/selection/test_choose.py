"""`tfvmf select` chooses what NumPy would, says why, and tells mistakes in one line."""

import csv
import os
import re
import shutil
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.commands import run_before_tensorflow
from PIL import Image

from tfvmf import selection
from tfvmf.embedding import embed, read_table, table
from tfvmf.errors import UserError
from tfvmf.selection import choose

ROWS = 120


@pytest.fixture
def content():
    """120 images; 100 to 119 are copies of 0 to 19, three rows cannot be chosen."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(ROWS, 6)).astype(np.float32)
    vectors[100:] = 3 * vectors[:20] + 0.02 * rng.normal(size=(20, 6))
    vectors[50] = np.nan
    scores = {
        "concentration": rng.uniform(0, 5, ROWS).astype(np.float32),
        "familiarity": rng.normal(size=ROWS).astype(np.float32),
        "confidence": rng.uniform(size=ROWS).astype(np.float32),
    }
    names = [f"images/{row:03}.png" for row in range(ROWS)]
    names[7], names[8] = "=HYPERLINK(1)", 'a,"b"\r\nc'
    errors = [""] * ROWS
    errors[60], vectors[61] = "cut off", 0
    return {"file": names, "error": errors, "features": vectors, **scores}


GOOD = np.setdiff1d(np.arange(ROWS), [50, 60, 61])


def write(path, content):
    columns = dict(content)
    for name in {*table.VECTORS} & {*columns}:
        flat = pa.array(columns[name].reshape(-1))
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, columns[name].shape[1])
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def path(content, tmp_path):
    return write(tmp_path / "t.parquet", content)


def unit(content):
    values = content["features"][GOOD].astype(float)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("by", "column"), [("uncertain", "concentration"), ("foreign", "familiarity")]
)
def test_lowest_first(by, column, path, content):
    chosen = selection.select(path, by=by, count=15)
    values = content[column]
    rows = [row for row in np.argsort(values) if content["error"][row] == ""][:15]
    assert chosen.rows.tolist() == rows  # only a score is needed: no vector leaves a row out
    assert list(chosen.columns["file"]) == [content["file"][row] for row in rows]
    np.testing.assert_array_equal(chosen.columns["score"], values[rows])
    assert chosen.columns["reason"][2] == f"{column} {values[rows[2]]:.4g}: 3 of 119"
    assert chosen.notes == ["rows left out: 1 broken, or without a finite score"]
    assert chosen.of == ROWS - 1


def test_duplicates_keep_the_most_certain(path, content):
    chosen = selection.select(path, by="duplicates", threshold=0.99)
    kappa = content["concentration"]
    pairs = {(row, row + 100) for row in range(20)}
    expected = {min(pair, key=lambda row: kappa[row]) for pair in pairs}
    assert set(chosen.rows) == expected
    assert (np.diff(chosen.columns["score"]) <= 0).all()
    assert sorted(chosen.columns["group"]) == list(range(1, 21))
    for row, reason in zip(chosen.rows, chosen.columns["reason"], strict=True):
        other = row + 100 if row < 20 else row - 100
        assert f"to {content['file'][other]}, which is kept" in reason
    both = selection.select(path, by="duplicates", threshold=0.99, count=3)
    assert both.rows.tolist() == chosen.rows[:3].tolist()
    assert "20 duplicates in 20 groups" in both.notes[-1]


@pytest.mark.parametrize("levels", [False, True])
def test_of_a_count_the_copies_that_stand_out_come_first(levels, tmp_path):
    """80 images are alike; there are 10 pairs of copies, and a group of 21."""
    rng = np.random.default_rng(0)
    crowd = 40 + rng.normal(size=(80, 30)) * np.linspace(1, 4, 30)
    others = 20 * rng.normal(size=(420, 30))
    vectors = np.concatenate([crowd, others])
    vectors[490:] = vectors[300:310] + 2 * rng.normal(size=(10, 30))
    vectors[470:490] = vectors[310]
    kappa = rng.uniform(0, 5, 500).astype(np.float32)
    names = [str(row) for row in range(500)]
    content = {"file": names, "error": [""] * 500, "concentration": kappa}
    plain = vectors if not levels else rng.normal(size=(500, 8))  # which knows nothing of copies
    content["features"] = plain.astype(np.float32)
    if levels:
        content["levels"] = vectors.astype(np.float32)
    chosen = selection.select(write(tmp_path / "t.parquet", content), by="duplicates", count=30)
    group = [310, *range(470, 490)]
    expected = {
        min(pair, key=lambda row: kappa[row])
        for pair in zip(range(300, 310), range(490, 500), strict=True)
    }
    assert set(chosen.rows) == expected | {*group} - {max(group, key=lambda row: kappa[row])}
    assert (np.diff(chosen.columns["score"]) <= 0).all()
    assert len(set(chosen.columns["group"])) == 11
    unit = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    for row, score, reason in zip(
        chosen.rows, *(chosen.columns[k] for k in ("score", "reason")), strict=True
    ):
        found = re.fullmatch(
            r"cosine (\S+) \((\S+) nearer than others\) to (\d+), which is kept", reason
        )
        assert float(found[1]) == pytest.approx(unit[row] @ unit[int(found[3])], abs=1e-3)
        assert float(found[2]) == pytest.approx(score, abs=1e-3)
    assert "30 duplicates in 11 groups" in chosen.notes[-1]
    few = selection.select(tmp_path / "t.parquet", by="duplicates", count=5)
    assert set(few.rows) <= set(chosen.rows)
    mixed = selection.select(tmp_path / "t.parquet", by="duplicates:1,uncertain:0.001", count=30)
    assert len({*mixed.rows} & {*chosen.rows}) > 25


def test_groups_have_one_number(tmp_path):
    values = np.repeat(np.eye(3), 4, axis=0)
    np.savez(tmp_path / "t.npz", mean_direction=values)
    chosen = selection.select(tmp_path / "t.npz", by="duplicates", threshold=0.9)
    assert chosen.rows.tolist() == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    assert list(chosen.columns["group"]) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert "the first row of each group of duplicates is kept" in chosen.notes[0]


def test_typical(path, content):
    points = unit(content)
    cosines = np.sort(points @ points.T, axis=1)[:, -11:-1].mean(axis=1)
    chosen = selection.select(path, by="typical", count=12)
    assert chosen.rows.tolist() == GOOD[np.argsort(-cosines)[:12]].tolist()
    limit = float(np.sort(cosines)[-7]) - 1e-6
    assert len(selection.select(path, by="typical", threshold=limit)) == 7


def test_weighted(path, content):
    points = unit(content)
    ranks = np.argsort(np.argsort(-content["concentration"][GOOD])) / (len(GOOD) - 1)
    foreign = np.argsort(np.argsort(-content["familiarity"][GOOD])) / (len(GOOD) - 1)
    chosen = selection.select(path, by="uncertain:1,foreign:0.25", count=9)
    assert chosen.rows.tolist() == GOOD[np.argsort(-(ranks + 0.25 * foreign))[:9]].tolist()
    chosen = selection.select(path, by="diverse:2,uncertain:0.5", count=30)
    scale = 1 - np.mean(points @ points.T)
    mean = points.sum(axis=0) / np.linalg.norm(points.sum(axis=0))
    value, picked = points @ mean + 0.5 * ranks * scale / 2, []
    for _ in range(30):
        value[picked] = -np.inf
        picked.append(int(value.argmax()))
        near = (points @ points[picked].T).max(axis=1)
        value = 2 * (1 - near) / scale + 0.5 * ranks
    assert chosen.rows.tolist() == GOOD[picked].tolist()
    assert chosen.columns["reason"][1].startswith("diverse ")


def test_earlier_selections_are_not_chosen_again(path, content, tmp_path):
    first = selection.select(path, by="diverse", count=10)
    first.write(tmp_path / "first.csv")
    second = selection.select(path, by="diverse", count=10, exclude=[tmp_path / "first.csv"])
    # They count as chosen: both together are one longer selection.
    assert [*first.rows, *second.rows] == selection.select(
        path, by="diverse", count=20
    ).rows.tolist()
    assert "rows left out: 10 of 10 files of earlier selections" in second.notes
    copies = selection.select(path, by="duplicates", threshold=0.99)
    copies.write(tmp_path / "copies.csv")
    rest = selection.select(path, by="diverse", count=97, exclude=[tmp_path / "copies.csv"])
    assert set(rest.rows) == {*GOOD} - {*copies.rows}
    assert rest.columns["reason"][0] == "next to the mean"  # copies do not count as chosen
    least = selection.select(path, by="uncertain", count=109, exclude=[tmp_path / "first.csv"])
    assert not {*least.rows} & {*first.rows}
    with pytest.raises(UserError, match="has 109 rows that can be chosen"):
        selection.select(path, by="uncertain", count=110, exclude=[tmp_path / "first.csv"])


def test_like_a_row(path, content):
    chosen = selection.select(path, like=content["file"][8], count=4)
    cosines = unit(content) @ unit(content)[8]
    assert chosen.rows.tolist() == GOOD[np.argsort(-cosines)[1:5]].tolist()
    assert chosen.rows[0] == 108
    assert len(selection.select(path, like=content["file"][8], threshold=0.99)) == 1
    with pytest.raises(UserError, match=r"like=images/050\.png: no such row"):
        selection.select(path, like="images/050.png", count=1)


def test_csv_is_read_back_and_no_cell_is_a_formula(path, content, tmp_path):
    chosen = selection.select(path, by="uncertain", count=ROWS - 1)
    chosen.write(tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "file",
        "score",
        "concentration",
        "familiarity",
        "confidence",
        "reason",
        "group",
    ]
    names = [row["file"] for row in rows]
    assert "'=HYPERLINK(1)" in names
    assert 'a,"b"\r\nc' in names
    assert choose.read_exclusions([tmp_path / "out.csv"]) == dict.fromkeys(
        chosen.columns["file"], True
    )
    assert float(rows[3]["concentration"]) == pytest.approx(
        chosen.columns["concentration"][3], rel=1e-5
    )


@pytest.mark.parametrize("kind", ["shards", "npz", "foreign npz", "foreign parquet"])
def test_any_table(kind, content, path, tmp_path, monkeypatch):
    monkeypatch.setattr(table, "ROWS", 32)
    expected = selection.select(path, by="diverse", count=20)
    if kind == "shards":
        other = tmp_path / "shards"
        other.mkdir()
        for start in (40, 0, 80):
            write(
                other / f"{start:03}.parquet",
                {k: v[start : start + 40] for k, v in content.items()},
            )
    elif kind == "npz":
        other = tmp_path / "t.npz"
        with zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, values in content.items():
                with archive.open(f"{name}.npy", "w") as file:  # `savez` takes no column `file`
                    np.lib.format.write_array(file, np.asarray(values))
    else:
        content["features"][60] = np.nan
        other = tmp_path / f"t.{kind.split()[1]}"
        only = {"features": content["features"].astype(np.float64)}
        np.savez(other, **only) if other.suffix == ".npz" else write(other, only)
        expected.columns["file"] = expected.rows.astype(str)
    chosen = selection.select(other, by="diverse", count=20)
    assert chosen.rows.tolist() == expected.rows.tolist()
    assert list(chosen.columns["file"]) == list(expected.columns["file"])
    assert list(read_table(other)["file"]) == list(read_table(other)["file"])


def test_foreign_by_a_reference(tmp_path, capsys):
    rng = np.random.default_rng(0)
    known = rng.normal(size=(600, 5)) * [4, 4, 1, 0.1, 0.1]
    strange = rng.normal(size=(20, 5)) * [0.1, 0.1, 1, 4, 4]
    np.savez(tmp_path / "known.npz", features=known[:500])
    np.savez(tmp_path / "t.npz", features=np.concatenate([known[500:], strange]))
    chosen = selection.select(
        tmp_path / "t.npz", by="foreign", count=20, reference=tmp_path / "known.npz"
    )
    assert (chosen.rows >= 100).mean() > 0.9
    assert not chosen.columns["accept"][chosen.rows >= 100].any()
    assert "fitted to 333 rows" in chosen.notes[-1]
    np.savez(tmp_path / "other.npz", features=known[:, :4])
    with pytest.raises(UserError, match=r"its features have 4 numbers, those of .* 5"):
        selection.select(
            tmp_path / "t.npz", by="foreign", count=1, reference=tmp_path / "other.npz"
        )


def test_like_any_picture(tmp_path):
    from helpers.untrained import make_run  # with TensorFlow, which all others do without

    model, folder = make_run(tmp_path / "run"), tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        pixels = np.kron(rng.integers(0, 256, (2, 2, 3)), np.ones((8, 8, 1)))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    shutil.copy(folder / "3.png", tmp_path / "other.png")
    embed(model, folder, tmp_path / "t.parquet")
    like = str(tmp_path / "other.png")
    chosen = selection.select(tmp_path / "t.parquet", like=like, model=model, count=2)
    assert chosen.rows[0] == 3
    assert chosen.columns["score"][0] == pytest.approx(1, abs=1e-5)
    np.savez(tmp_path / "t.npz", mean_direction=np.eye(3))
    with pytest.raises(UserError, match=r"its mean_direction have 8 numbers, those of .* 3"):
        selection.select(tmp_path / "t.npz", like=like, model=model, count=2)


def test_files_are_copied_or_linked(tmp_path):
    (tmp_path / "a").mkdir()
    names = [str(tmp_path / "a" / f"{number}.png") for number in range(12)]
    for number, name in enumerate(names):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(name)
    values = {"concentration": np.arange(12.0)[::-1].copy()}
    path = write(tmp_path / "t.parquet", {"file": names, "error": [""] * 12, **values})
    chosen = selection.select(path, by="uncertain", count=10)
    chosen.gather(tmp_path / "copies")
    chosen.gather(tmp_path / "links", link=True)
    for folder in ("copies", "links"):
        found = sorted((tmp_path / folder).iterdir())
        assert [path.name for path in found] == [f"{n:02}_{12 - n}.png" for n in range(1, 11)]
        assert found[0].read_bytes() == (tmp_path / "a" / "11.png").read_bytes()
        assert found[0].is_symlink() == (folder == "links")
    with pytest.raises(UserError, match="links is not an empty folder"):
        chosen.gather(tmp_path / "links")
    os.unlink(names[5])
    with pytest.raises(UserError, match=r"5\.png \(row 5 of the table\) is not a file"):
        chosen.gather(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_mistakes_are_one_line_before_tensorflow(path, content, tmp_path):
    np.savez(tmp_path / "plain.npz", features=content["features"])
    write(tmp_path / "scores.parquet", {k: v for k, v in content.items() if k != "features"})
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    mistakes = {
        "--count=5": "expected either --by (uncertain, ",
        "--by=uncertain --like=x --count=5": "expected either --by (uncertain, ",
        "--by=uncertian --count=5": "--by=uncertian: 'uncertian' is unknown: use some of uncertain",
        "--by=diverse:-1 --count=5": "the weight '-1' is not a number above 0",
        "--by=diverse,diverse --count=5": "'diverse' is named twice",
        "--by=uncertain": "--count is missing",
        "--by=duplicates --threshold=1.5": "--threshold=1.5: expected a cosine, from -1 to 1",
        "--by=duplicates --threshold=nan": "--threshold=nan: expected a cosine",
        "--by=uncertain --threshold=0.5": "give --count for --by=uncertain",
        "--by=uncertain --count=5 --model=x": "--model=x: only used to embed the picture of --like",
        "--by=uncertain --count=500": "--count=500: t.parquet has 119 rows that can be chosen",
        "--by=uncertain --count=5 --exclude=none.csv": "--exclude=none.csv cannot be read as CSV",
        "--by=uncertain --count=5 --exclude=bad.csv": "--exclude=bad.csv has no column file",
        "--by=uncertain --count=5 --output=x.txt": "--output=x.txt: expected a name that",
        "--by=uncertain --count=5 --copy_to=full": "full is not an empty folder",
        "--by=uncertain --count=5 --copy_to=new": "is not a file: nothing is copied",
        "--like=none.png --count=5": "--like=none.png: no such row",
        "--table=none.parquet --by=uncertain --count=5": "none.parquet: there is no such file",
        "--table=plain.npz --by=uncertain --count=5": "no column concentration, which --by=",
        "--table=plain.npz --by=foreign --count=5": "or --reference=TABLE to fit it to",
        "--table=scores.parquet --by=diverse --count=5": "no column features or mean_direction",
    }
    commands = [
        ["select", *([] if "--table" in words else ["t.parquet"]), *words.split()]
        for words in mistakes
    ]
    answers = run_before_tensorflow(
        [*commands, ["select", "t.parquet", "--by=typical", "--count=2"]], tmp_path
    )
    for message, (code, out, errors) in zip(mistakes.values(), answers, strict=False):
        assert (code, out) == (2, ""), (message, errors)
        assert message in errors
        assert errors.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == [
        "bad.csv",
        "full",
        "plain.npz",
        "scores.parquet",
        "t.parquet",
    ]
    code, out, errors = answers[-1]
    assert (code, out.count("\n")) == (0, 3), errors
    assert "selected 2 of 117 images" in errors


def test_all_rows_broken_is_one_line(tmp_path):
    np.savez(tmp_path / "t.npz", features=np.full((9, 3), np.nan))
    with pytest.raises(UserError, match="has 0 rows that can be chosen; rows left out: 9 broken"):
        selection.select(tmp_path / "t.npz", by="diverse", threshold=0.5)


def test_vectors_stay_on_disk(tmp_path, monkeypatch):
    """Memory for what is not the vectors: a block of cosines, some rows, names."""
    import tracemalloc

    rows, width = 16_000, 512
    monkeypatch.setattr(choose.strategies, "_CELLS", 1 << 18)
    monkeypatch.setattr(table, "ROWS", 512)
    values = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    np.savez(tmp_path / "t.npz", features=values)
    tracemalloc.start()
    try:
        selection.select(tmp_path / "t.npz", by="diverse", count=10)
        selection.select(tmp_path / "t.npz", like="7", count=10)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < values.nbytes / 2
