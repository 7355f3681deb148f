"""Models that come with the package, and tools/ship.py, which makes them."""

import json
import pathlib
import shutil
import time

import numpy as np
import pytest

import tfvmf
from tfvmf import evaluation, files, posthoc, programs, serving
from tfvmf.errors import UserError
from tools import ship

ROOT = pathlib.Path(__file__).parents[2]
KEYS = {
    *("description", "data", "commands", "commit", "seed", "time", "bytes", "bits", "agreement"),
    *("results", "failures"),
}
TOLD = {"commands": ["tfvmf train"], "commit": "abc", "time": "1 minute", "failures": ["Letters."]}


@pytest.fixture
def shipped(exported, tmp_path, monkeypatch):
    """`tiny` in a package of its own; and the run that it was made of."""
    run = tmp_path / "run"
    shutil.copytree(exported.workdir, run)
    evaluation.probe(evaluation.subject_from_run(run))
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "package")
    monkeypatch.setattr(ship, "PAGE", tmp_path / "models.md")
    monkeypatch.chdir(tmp_path)
    ship.ship(run, "tiny", told=TOLD)
    ship.write_page()
    return run


def test_a_run_is_shipped_and_answers_as_before(shipped, digits, tmp_path):
    model, run = tfvmf.load("tiny"), tfvmf.load(shipped)
    ours, theirs = model.embed(digits), run.embed(digits)
    assert ours.keys() == theirs.keys() >= {"accept", "class", "class_probability"}
    for name in ("features", "mean_direction", "concentration", "class_probability"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=5e-3, atol=2e-3, err_msg=name)
    assert (ours["accept"] == theirs["accept"]).mean() > 0.98
    assert (ours["class"] == theirs["class"]).mean() > 0.99
    assert model.card.keys() >= KEYS
    assert model.card["data"]["images"] == 1397
    assert model.card["failures"][0] == "Letters."
    assert model.card["results"]["probe"]["numbers"]["accuracy of a linear probe"] > 0.3
    here = files.SHIPPED / "tiny"
    assert str(tmp_path) not in "".join(path.read_text() for path in here.glob("*.json"))
    page = ship.PAGE.read_text()
    assert "## `tiny`" in page
    assert "| labels used | none for the encoder" in page
    assert "- Letters." in page


def test_it_is_a_model_where_a_run_is_one(shipped, tmp_path, capsys):
    before = files.fingerprint(files.SHIPPED)
    assert programs.main(["export", "tiny", "--output=models", "--with_probe"]) == 0
    assert serving.read_card(tmp_path / "models" / "1")["classes"]["names"] == list("0123456789")
    assert programs.main(["evaluate", "tiny", "--suite=probe", "--max_images=100"]) == 0
    assert (tmp_path / "runs/tiny/eval/sample100/probe/results.json").is_file()
    flags = ["--epochs=1", "--cache_views=2", "--config.model.hidden=8"]
    assert programs.main(["fit-kappa", "tiny", *flags]) == 0
    assert posthoc.load(tmp_path / "runs" / "tiny-kappa") is not None
    assert programs.main(["embed", "tiny", "digits", "--output=out.csv"]) == 0
    assert "class_probability" in (tmp_path / "out.csv").read_text().splitlines()[0]
    assert files.fingerprint(files.SHIPPED) == before  # a package is not written to
    assert programs.main(["export", "tinny", "--output=models"]) == 2
    assert "tinny is not a run directory" in capsys.readouterr().err


def test_what_would_answer_otherwise_or_is_too_large_is_not_shipped(shipped, monkeypatch):
    before = files.fingerprint(files.SHIPPED)
    with monkeypatch.context() as changed:
        changed.setattr(ship, "AGREE", -1.0)
        with pytest.raises(UserError, match="outputs differ by"):
            ship.ship(shipped, "tiny", told=TOLD)
    monkeypatch.setattr(ship, "LIMIT", 1000)
    with pytest.raises(UserError, match="bytes: at most 1,000"):
        ship.ship(shipped, "tiny", told=TOLD)
    assert files.fingerprint(files.SHIPPED) == before


@pytest.mark.parametrize("name", serving.shipped_models())
def test_what_the_package_ships(name):
    place = files.SHIPPED / name
    assert sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) <= ship.LIMIT
    start = time.process_time()
    model = tfvmf.load(name)
    assert time.process_time() - start < 5.0  # measured: docs/models.md; this is for accidents
    card = model.card
    assert card.keys() >= KEYS
    assert not [key for key in KEYS if card[key] in (None, "", [], {})]
    assert {"probe", "cifar10c"} <= card["results"].keys()
    assert json.loads((place / "card.json").read_text()).items() <= card.items()
    page = (ROOT / "docs" / "models.md").read_text()
    assert (place / ship.SECTION).read_text() in page
    with np.load(ROOT / "examples" / "cifar10_test_300.npz") as archive:
        images, labels = archive["images"], archive["labels"]
    outputs = model.embed(images, progress=False)
    assert 0.0 <= np.mean(~outputs["accept"]) < 0.12
    noise = np.random.default_rng(0).integers(0, 256, images.shape, dtype=np.uint8)
    foreign = model.embed(noise, progress=False)
    assert np.mean(foreign["accept"]) < 0.05
    names = np.array(card["classes"]["names"])
    assert (outputs["class"] == names[labels]).mean() > 0.75
