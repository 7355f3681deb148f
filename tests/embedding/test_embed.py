import itertools
import os
import pathlib
import signal
import subprocess
import sys
import weakref
from unittest import mock

import numpy as np
import pytest
import scipy.stats
from helpers.arithmetic import NAMES, Arithmetic, level_of
from helpers.untrained import make_run
from PIL import Image

import tfvmf
from tfvmf import embedding, models
from tfvmf.data import contact_sheet, load_source
from tfvmf.embedding import local, table
from tfvmf.errors import UserError
from tfvmf.files import lock

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def model(tmp_path, monkeypatch):
    path = tmp_path / "model"
    path.write_text("weights")
    arithmetic = Arithmetic(path)
    monkeypatch.setattr(local, "load", arithmetic)
    return arithmetic


@pytest.fixture
def folder(tmp_path):
    """Two classes of gray squares, 24 in all, from 10 to 240; two files more that are broken."""
    root = tmp_path / "pictures"
    for number in range(24):
        place = root / ("night" if number < 12 else "-day")
        place.mkdir(parents=True, exist_ok=True)
        level = 10 * (1 + number * 7 % 24)  # in no order
        Image.new("RGB", (9, 9), (level,) * 3).save(place / NAMES[number % 12])
    noise = np.random.default_rng(0).integers(256, size=(9, 9, 3), dtype=np.uint8)
    Image.fromarray(noise).save(root / "night" / "cut.png")
    (root / "night" / "cut.png").write_bytes((root / "night" / "cut.png").read_bytes()[:150])
    (root / "night" / "text.jpg").write_text("no image")
    return root


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(local, "PART_ROWS", 5)
    monkeypatch.setattr(table, "ROWS", 7)


@pytest.mark.parametrize("kind", [".parquet", ".npz", ".csv"])
def test_a_row_for_each_file(kind, model, folder, tmp_path):
    output = tmp_path / f"out{kind}"
    done = embedding.embed(model.path, folder, output, batch_size=3)
    read = embedding.read_table(output)
    files = sorted(f"{folder}/{label}/{name}" for label in ("night", "-day") for name in NAMES)
    files = sorted([*files, f"{folder}/night/cut.png", f"{folder}/night/text.jpg"])
    assert list(read["file"]) == files  # of the file system's names, each
    assert list(read["label"]) == [file.split("/")[-2] for file in files]
    errors = dict(zip(read["file"], read["error"], strict=True))
    assert "broken image" in errors.pop(f"{folder}/night/cut.png")
    assert "not an image" in errors.pop(f"{folder}/night/text.jpg")
    assert set(errors.values()) == {""}
    good = read["error"] == ""
    levels = np.array([level_of(file) for file in read["file"][good]], np.float32)
    np.testing.assert_allclose(read["concentration"][good], levels / 7, rtol=1e-6)
    np.testing.assert_array_equal(read["accept"][good], levels > 35)
    assert np.isnan(read["concentration"][~good]).all()
    if kind != ".csv":
        vectors = np.repeat(levels[:, None] / 3, 12, axis=1)
        np.testing.assert_allclose(read["features"][good], vectors, rtol=1e-6)
    rejected = int((levels <= 35).sum())
    assert (done.images, done.broken, done.rejected) == (26, 2, rejected)
    assert (done.lowest, done.highest) == pytest.approx((10 / 7, 240 / 7))
    assert model.seen == 24
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", output.name, "pictures"]


def test_sorted_rows_and_a_sheet(model, folder, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        contact_sheet, "write_sheet", lambda blocks, path, title: drawn.append((blocks, path))
    )
    monkeypatch.setattr(local, "DRAWN", 4)
    output = tmp_path / "out.parquet"
    done = embedding.embed(model.path, folder, output, sort="concentration")
    read = embedding.read_table(output)
    np.testing.assert_allclose(read["concentration"][:24] * 7, np.arange(10, 250, 10), rtol=1e-6)
    assert all(read["error"][24:])  # the broken ones are last
    assert [level_of(file) for file in read["file"][:24]] == list(range(10, 250, 10))
    ((least, most), path) = drawn[0]
    assert [least.heading, most.heading] == ["least certain first", "most certain first"]
    least, most = least.pictures, most.pictures
    assert least[0].note == "concentration 1.43"
    assert path == done.sheet == tmp_path / "out.png"
    assert [picture.file for picture in least] == list(read["file"][:4])
    assert [picture.file for picture in most] == list(read["file"][20:24][::-1])
    assert [picture.pixels[0, 0, 0] for picture in least + most] == [
        10,
        20,
        30,
        40,
        240,
        230,
        220,
        210,
    ]
    drawn.clear()
    embedding.embed(model.path, folder / "-day", output, sort="concentration")
    assert [len(block.pictures) for block in drawn[0][0]] == [4, 4]
    monkeypatch.setattr(local, "DRAWN", 50)
    embedding.embed(model.path, folder, output, sort="concentration")
    assert [len(block.pictures) for block in drawn[1][0]] == [12, 12]  # no image is on both sides


def test_a_model_without_kappa_has_no_order(model, folder, tmp_path):
    model.flat = True
    done = embedding.embed(model.path, folder, tmp_path / "out.csv", sort="concentration")
    assert done.sheet is None
    assert not (tmp_path / "out.png").exists()
    files = embedding.read_table(done.output)["file"]
    assert list(files) == sorted(files)


def test_one_file_and_only_broken_ones(model, folder, tmp_path):
    done = embedding.embed(model.path, folder / "night" / "a,b.png", tmp_path / "a.csv")
    read = embedding.read_table(done.output)
    assert list(read["file"]) == [str(folder / "night" / "a,b.png")]
    assert "label" not in read.columns
    broken = folder / "night" / "text.jpg"
    done = embedding.embed(model.path, broken, tmp_path / "b.npz", sort="concentration")
    assert (done.images, done.broken, done.sheet) == (1, 1, None)
    assert embedding.read_table(done.output)["features"].shape == (1, 12)


def test_a_name_that_is_no_text(model, tmp_path):
    place = tmp_path / "photos"
    place.mkdir()
    for name in (b"caf\xe9.png", b"cut\xe9.png"):
        path = os.fsdecode(os.fsencode(place) + b"/" + name)
        Image.new("RGB", (9, 9), "gray").save(path)
    with open(path, "wb") as file:
        file.write(b"no image")
    for kind in (".parquet", ".npz", ".csv"):
        done = embedding.embed(model.path, place, tmp_path / f"out{kind}", sort="concentration")
        read = embedding.read_table(done.output)
        names = [f"{place}/{name}" for name in ("caf\\udce9.png", "cut\\udce9.png")]
        assert list(read["file"]) == names
        assert [bool(error) for error in read["error"]] == [False, True]
        assert done.sheet.exists()


def test_a_source_without_files(model, tmp_path):
    done = embedding.embed(model.path, "digits", tmp_path / "out.parquet", split="test")
    read, source = embedding.read_table(done.output), load_source("digits", "test", image_size=8)
    assert list(read["file"][:2]) == ["digits/test:0", "digits/test:1"]
    assert list(read["label"]) == [str(label) for label in source.labels]
    kappa = source.images().mean(axis=(1, 2, 3)) / 7
    np.testing.assert_allclose(read["concentration"], kappa, rtol=1e-5)


def test_a_real_run(tmp_path):
    workdir = make_run(tmp_path / "run")
    done = embedding.embed(workdir, "digits", tmp_path / "out.parquet", split="test")
    read = embedding.read_table(done.output)
    images = load_source("digits", "test", image_size=16).images()
    for name, value in tfvmf.load(workdir).embed(images).items():
        np.testing.assert_allclose(read[name], value, rtol=1e-4, atol=1e-5)
    assert done.rejected is None
    assert read.columns == (
        *("file", "error", "label", "features", "mean_direction", "concentration"),
    )


def test_levels_of_a_run_are_a_column(tmp_path):
    workdir = make_run(tmp_path / "run")
    output = tmp_path / "out.npz"
    done = embedding.embed(workdir, "digits", output, split="test", with_levels=True)
    read = embedding.read_table(done.output)
    images = load_source("digits", "test", image_size=16).images()
    network = models.with_levels(tfvmf.load(workdir).encoder)
    expected = network(images / np.float32(255), training=False)
    for name in ("levels", "mean_direction", "concentration"):
        np.testing.assert_allclose(read[name], expected[name], rtol=1e-3, atol=1e-4)
    (tmp_path / "file.keras").touch()
    with pytest.raises(UserError, match=r"levels: .* is not a run directory"):
        embedding.embed(tmp_path / "file.keras", "digits", output, with_levels=True)


KILLED = """
import os, signal, sys
sys.path[:0] = {path!r}
from helpers.arithmetic import Arithmetic
from tfvmf import embedding
from tfvmf.embedding import local
local.PART_ROWS = 5
class Killed(Arithmetic):
    def serve(self, images):
        if self.seen > 11:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().serve(images)
local.load = Killed({model!r})
embedding.embed({model!r}, {folder!r}, {output!r}, batch_size=2)
"""


def test_after_a_kill_the_same_command_continues(model, folder, tmp_path):
    output = tmp_path / "out.parquet"
    text = KILLED.format(
        path=[str(ROOT), str(ROOT / "tests")],
        model=str(model.path),
        folder=str(folder),
        output=str(output),
    )
    killed = subprocess.run([sys.executable, "-c", text], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not output.exists()
    parts = sorted(path.name for path in (tmp_path / "out.parquet.parts").glob("*.arrow"))
    assert parts == ["00000000.arrow", "00000001.arrow"]  # only finished ones
    done = embedding.embed(model.path, str(folder), output, batch_size=2)
    assert model.seen == 14  # 24 without the 10 of the parts
    whole = embedding.embed(model.path, str(folder), tmp_path / "whole.parquet", batch_size=2)
    assert output.read_bytes() == whole.output.read_bytes()
    assert (done.images, done.broken, done.rejected) == (whole.images, whole.broken, whole.rejected)
    assert not (tmp_path / "out.parquet.parts").exists()


def stop_joining(*arguments):
    """Embeds, and is stopped when all parts are there."""
    stopped = mock.patch.object(table, "write_table", side_effect=KeyboardInterrupt)
    with stopped, pytest.raises(KeyboardInterrupt):
        embedding.embed(*arguments)


def test_stopped_at_the_end_nothing_is_embedded_twice(model, folder, tmp_path):
    output = tmp_path / "out.npz"
    output.write_text("what was there")
    stop_joining(model.path, folder, output)
    assert output.read_text() == "what was there"
    seen = model.seen
    embedding.embed(model.path, folder, output, sort="concentration", batch_size=3)
    assert model.seen == seen
    assert len(embedding.read_table(output)) == 26


def test_parts_of_something_else_are_refused(model, folder, tmp_path):
    output = tmp_path / "out.npz"
    arguments = (model.path, folder, output)
    stop_joining(*arguments)
    with pytest.raises(UserError, match=r"data \(.*pictures -> .*night\), images \(26 -> 14\)"):
        embedding.embed(model.path, folder / "night", output)
    with pytest.raises(UserError, match=r"split \(all -> test\)"):
        embedding.embed(*arguments, split="test")
    changed = folder / "night" / "a,b.png"
    content = changed.read_bytes()
    Image.new("RGB", (9, 9), "red").save(changed)
    with pytest.raises(UserError, match=r"model: contents \(\w+ -> \w+\); choose another output"):
        embedding.embed(*arguments)
    changed.write_bytes(content)
    model.path.write_text("other weights")
    with pytest.raises(UserError, match=r"model: model \(\w+ -> \w+\), contents"):
        embedding.embed(*arguments)
    assert len(list((tmp_path / "out.npz.parts").glob("*.arrow"))) == 6  # nothing is lost
    seen = model.seen
    embedding.embed(*arguments, restart=True)
    assert model.seen == seen + 24


def test_at_most_one_part_is_held(model, folder, tmp_path, monkeypatch):
    alive, peak, number = set(), [0], itertools.count()
    to_arrow = table.to_arrow

    def counted(schema, texts, outputs):
        rows = to_arrow(schema, texts, outputs)
        key = next(number)
        alive.add(key)
        weakref.finalize(rows, alive.discard, key)
        peak[0] = max(peak[0], len(alive))
        return rows

    monkeypatch.setattr(table, "to_arrow", counted)
    embedding.embed(model.path, folder, tmp_path / "out.parquet", batch_size=1)
    assert next(number) == 26
    assert peak[0] <= local.PART_ROWS + 1


def test_mistakes_cost_no_model(model, folder, tmp_path, monkeypatch):
    loads = []
    monkeypatch.setattr(local, "load", loads.append)
    (tmp_path / "taken.csv").mkdir()
    (tmp_path / "out.npz.parts").write_text("a file")
    for data, output, message in [
        (folder, "out.txt", "expected a name that ends in .parquet, .npz, .csv"),
        (folder, "no/such/folder/out.npz", "existing folder"),
        (folder, "taken.csv", "output="),
        (folder, "out.npz", r"output=.*out\.npz: .*out\.npz\.parts cannot be written"),
        ("/no/such/folder", "out.csv", "unknown source; there is no such file or folder"),
        ("folder:/no/such/folder", "out.csv", "no such folder"),
        (tmp_path / "taken.csv", "out.csv", "no images"),
    ]:
        with pytest.raises(UserError, match=message):
            embedding.embed(model.path, data, tmp_path / output)
    with pytest.raises(UserError, match="sort=kappa"):
        embedding.embed(model.path, folder, tmp_path / "out.csv", sort="kappa")
    assert not loads
    parts = tmp_path / "out.csv.parts"
    with lock(parts), pytest.raises(UserError, match=r"output=.*out\.csv: .*in use by process"):
        embedding.embed(model.path, folder, tmp_path / "out.csv")
    assert not loads


def test_drift_is_told(model, folder, tmp_path):
    drift = embedding.embed(model.path, folder, tmp_path / "out.npz").drift
    good = embedding.read_table(tmp_path / "out.npz")
    confidence = good["confidence"][good["error"] == ""]
    assert drift.p_value == pytest.approx(scipy.stats.kstest(confidence, "uniform").pvalue)
    assert drift.below == pytest.approx(3 / 24)
    assert drift.alpha is None
    broken = embedding.embed(model.path, folder / "night" / "text.jpg", tmp_path / "out.csv")
    assert broken.drift is None


def ranked(scores, calibration):
    """Conformal p-values of scores, and the card of a model that was calibrated so."""
    m = len(calibration)
    p = (1 + (calibration <= scores[:, None]).sum(axis=1)) / (m + 1)
    return p.astype(np.float32), {"images": 2 * m, "ranks": m, "alpha": 0.05}


def test_drift_is_the_two_sample_test_of_the_scores_themselves(rng):
    """Ranks among the calibration images are all that the test needs."""
    for images, shift in ((1, 0.0), (30, -0.4), (3000, 0.02), (3000, -0.2)):
        calibration, scores = rng.normal(size=150), rng.normal(shift, size=images)
        confidence, card = ranked(scores, calibration)
        drift = local.measure_drift(confidence, confidence > 0.05, card)
        expected = scipy.stats.ks_2samp(scores, calibration)
        assert drift.p_value == pytest.approx(expected.pvalue, rel=1e-6)
    old = {"images": 150, "reject_below": 0.05}  # of version 0.1, which ranked all of them
    again = local.measure_drift(confidence, confidence > 0.05, old)
    assert (again.p_value, again.alpha) == (drift.p_value, 0.05)


@pytest.mark.parametrize("images", [50, 5000])
def test_drift_has_few_false_alarms_and_sees_a_shift(images, rng):
    """Also where the batch is much larger than the calibration set."""
    calm, shifted = [], []
    for _ in range(150):
        calibration = rng.normal(size=200)
        for shift, found in ((0.0, calm), (-1.0, shifted)):
            confidence, card = ranked(rng.normal(loc=shift, size=images), calibration)
            found.append(local.measure_drift(confidence, confidence > 0.05, card))
    p = np.array([drift.p_value for drift in calm])
    assert np.mean(p < local.DRIFT) <= 0.04
    assert 0.02 <= np.mean(p < 0.1) <= 0.18  # a p-value that means what it says
    assert np.mean([drift.p_value < local.DRIFT for drift in shifted]) >= 0.95
    assert np.mean([drift.below for drift in calm]) == pytest.approx(0.05, abs=0.015)
    assert "do NOT look like" in str(shifted[0])
    assert str(shifted[0]).endswith("expected 5.0%")
    surer, card = ranked(rng.normal(loc=2.0, size=5000), rng.normal(size=200))
    training = str(local.measure_drift(surer, surer > 0.05, card))
    assert "do NOT look like" in training
    assert training.endswith("expected 5.0% (so few is usual for training images)")
    assert str(calm[0]).endswith("expected 5.0%")


def test_a_model_that_fails_leaves_nothing(folder, tmp_path):
    with pytest.raises(UserError, match="/no/such/model"):
        embedding.embed("/no/such/model", folder, tmp_path / "out.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]
