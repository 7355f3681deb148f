"""Suites on subjects that were made by hand: a plain Keras model and two sources, no run."""

import json
import pathlib
import subprocess
import sys

import keras
import matplotlib
import numpy as np
import pytest
from helpers.subjects import full_subject, make_subject, plain_encoder
from helpers.untrained import make_run
from keras import layers

from tfvmf import evaluation
from tfvmf.data import load_source
from tfvmf.errors import UserError
from tfvmf.evaluation import Headline, Measured, Options, Suite
from tfvmf.evaluation.suites.curves import term_names
from tfvmf.evaluation.tables import Page, Table

OPTIONS = Options(max_images=15, num_views=2)


@pytest.fixture(scope="module")
def foreign():
    """A source that no name leads to."""
    return load_source("digits", "test", image_size=12)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    return full_subject(tmp_path_factory.mktemp("eval"))


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    path = tmp_path_factory.mktemp("noise") / "noise.npz"
    images = np.random.default_rng(7).integers(0, 256, (20, 12, 12), dtype=np.uint8)
    np.savez(path, x_train=images, x_test=images)
    return f"npz:{path}"


WRITTEN = {
    "curves": {"curves.png"},
    "probe": {"table.md"},
    "failure": {"table.md", "failure.png"},
    "cifar10c": {"table.md", "table.csv", "kappa.png", "examples.png"},
    "projector": {"directions.tsv", "metadata.tsv", "sprite.png", "projector_config.pbtxt"},
    "agreement": {"table.md", "table.csv"},
    "ood": {"table.md", "table.csv"},
}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_suite_measures_a_plain_keras_model(name, subject, noise):
    results = getattr(evaluation, name)(subject, OPTIONS, ood_sources=(noise,))
    directory = pathlib.Path(subject.directory) / name
    assert json.loads((directory / "results.json").read_text()) == results
    assert {path.name for path in directory.iterdir()} >= WRITTEN[name]
    if "table.md" in WRITTEN[name]:
        text = (directory / "table.md").read_text()
        assert "plain" in text.splitlines()[0]
        assert "step" not in text.split("\n|")[0]  # it has none


def test_all_suites_have_a_test():
    assert set(WRITTEN) == set(evaluation.SUITES)


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subject = full_subject(None)
    with_directory = full_subject(tmp_path / "eval")
    for name in ("curves", "probe", "projector"):
        suite = getattr(evaluation, name)
        results = suite(subject, OPTIONS)
        assert not (tmp_path / "eval" / name).exists()
        written = suite(with_directory, OPTIONS)
        written.pop("open", None)  # how to open what was written
        assert results == written
    assert [path.name for path in tmp_path.iterdir()] == ["eval"]


def test_the_numbers_are_those_of_the_model(subject):
    results = evaluation.failure(subject, OPTIONS)
    images = subject.test.images(0, 15) / np.float32(255)
    kappa = subject.encoder(images)["concentration"].numpy()
    assert results["mean_whole"] == pytest.approx(kappa.mean(), rel=1e-5)
    corrupted = evaluation.cifar10c(subject, OPTIONS)
    assert corrupted["mean_score"]["fog"][0] == pytest.approx(kappa.mean(), rel=1e-5)
    assert evaluation.agreement(subject, OPTIONS)["scale"] == "kappa / 2"


def test_sources_may_be_given_instead_of_names(foreign, noise):
    subject = make_subject()  # it can load nothing
    with pytest.raises(UserError, match="pass a source"):
        evaluation.ood(subject, OPTIONS, ood_sources=(noise,))
    foreign.name = "others"
    results = evaluation.ood(subject, OPTIONS, ood_sources=(foreign,))
    # The same images: no score can tell them apart.
    assert results["out"]["others"]["scores"]["f_ssl"]["auroc"] == 0.5
    assert "note" not in results  # it is not known what it was trained on


def test_another_model_with_a_classifier_gives_f_res(noise):
    subject = make_subject(load=lambda name, split: load_source(name, split, image_size=12))
    supervised = make_subject(
        encoder=plain_encoder(seed=1), classifier=keras.Sequential([layers.Dense(10)])
    )
    results = evaluation.ood(subject, OPTIONS, ood_sources=(noise,), supervised=supervised)
    assert list(results["out"][noise]["scores"])[:2] == ["kappa", "f_res"]
    assert "classifier_accuracy" in evaluation.probe(supervised, OPTIONS)
    assert "classifier_accuracy" not in evaluation.probe(subject, OPTIONS)


def test_what_a_subject_lacks_is_not_applicable():
    subject = make_subject()
    with pytest.raises(evaluation.NotApplicable, match="curves"):
        evaluation.curves(subject)
    with pytest.raises(evaluation.NotApplicable, match="predicted_cosine"):
        evaluation.agreement(subject)
    with pytest.raises(evaluation.NotApplicable, match="ood_sources"):
        evaluation.ood(subject)
    with pytest.raises(UserError, match=r"score=agreement.*augmentation"):
        evaluation.failure(subject, max_images=5, scores=("agreement",))
    with pytest.raises(UserError, match="checkpoints"):
        evaluation.along_training(subject)
    with pytest.raises(TypeError, match="imagez"):
        evaluation.probe(subject, imagez=3)
    with pytest.raises(ValueError, match=r"scores='kappa': expected a sequence"):
        evaluation.probe(subject, scores="kappa")


def test_a_model_with_other_outputs_is_refused():
    images = keras.Input((None, None, 3))
    features = layers.GlobalAveragePooling2D()(images)
    with pytest.raises(ValueError, match="expected features, mean_direction, concentration"):
        make_subject(encoder=keras.Model(images, {"features": features}))
    with pytest.raises(ValueError, match="no dictionary"):
        make_subject(encoder=keras.Model(images, features))
    flat = {"features": features, "mean_direction": features, "concentration": features}
    with pytest.raises(ValueError, match=r"expected \[batch\]"):
        make_subject(encoder=keras.Model(images, flat))


class Subclassed(keras.Model):
    """Knows its outputs only when it is called."""

    def __init__(self):
        super().__init__()
        self.inner = plain_encoder()

    def call(self, images):
        return self.inner(images)


def test_a_subclass_of_keras_model_will_do(subject):
    found = evaluation.probe(make_subject(encoder=Subclassed()), OPTIONS)
    assert found["linear_accuracy"] == evaluation.probe(subject, OPTIONS)["linear_accuracy"]


def test_a_run_is_measured_on_data_that_it_did_not_have(tmp_path):
    run = make_run(tmp_path / "run", **{"data.image_size": 12})
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 12, 12, 3), dtype=np.uint8)
    labels = rng.integers(0, 3, 60)
    np.savez(
        tmp_path / "mine.npz",
        x_train=images[:40], y_train=labels[:40], x_test=images[40:], y_test=labels[40:],
    )  # fmt: skip
    subject = evaluation.subject_from_run(
        str(run), data=f"npz:{tmp_path / 'mine.npz'}", directory=str(tmp_path / "out")
    )
    results = evaluation.probe(subject)
    assert (results["train_images"], results["images"]) == (40, 20)
    assert (tmp_path / "out" / "probe" / "table.md").exists()
    assert not (run / "eval").exists()


def test_data_are_opened_when_they_are_needed(tmp_path):
    run = make_run(tmp_path, **{"data.source": "npz:/no/such/file.npz"})
    subject = evaluation.subject_from_run(run)
    assert (subject.test.name, subject.test.split) == ("npz:/no/such/file.npz", "test")
    assert subject.test.image_shape == (16, 16, 3)
    with pytest.raises(UserError, match=r"/no/such/file\.npz"):
        evaluation.probe(subject)


def test_evaluate_runs_all_that_apply_and_writes_the_report(tmp_path, capsys):
    subject = make_subject(tmp_path)
    found = evaluation.evaluate(subject, max_images=8)
    assert list(found) == ["probe", "failure", "cifar10c", "projector"]
    assert (tmp_path / "report.html").exists()
    out = capsys.readouterr().out
    assert "curves: left out" in out
    assert "ood: left out" in out
    assert f"linear_accuracy      {found['probe']['linear_accuracy']:.4f}" in out
    assert f"report: {tmp_path / 'report.html'}" in out


def test_evaluate_by_name_says_what_is_missing(tmp_path, noise, capsys):
    with pytest.raises(evaluation.NotApplicable, match="ood_sources"):
        evaluation.evaluate(make_subject(tmp_path), "probe,ood", max_images=8)
    subject = full_subject(tmp_path)
    found = evaluation.evaluate(subject, "ood", max_images=8, ood_sources=(noise,))
    assert f"{noise}: AUROC of kappa" in capsys.readouterr().out
    assert list(found) == ["ood"]
    assert not (tmp_path / "report.html").exists()


def test_a_new_suite_is_a_function_and_a_line(tmp_path, monkeypatch, capsys):
    """Everything that others know about a suite is what it declares."""

    def measure(subject, options):
        """How bright are the images?"""
        mean = float(subject.test.images(0, options.max_images).mean())
        return Measured({"mean": mean}, {"note.txt": lambda path: path.write_text("<b>")})

    brightness = Suite(
        name="brightness",
        title="Light & <shadow>",
        measure=measure,
        page=lambda results: Page("Bright?", [Table(columns=["mean"], rows=[[results["mean"]]])]),
        table=lambda results: Table(columns=["mean"], rows=[[results["mean"]]]),
        headlines=lambda results: [Headline("mean light", results["mean"], printed=100.0)],
    )
    for name in list(evaluation.SUITES):
        monkeypatch.delitem(evaluation.SUITES, name)
    monkeypatch.setitem(evaluation.SUITES, "brightness", brightness)
    subject = make_subject(tmp_path)
    found = evaluation.evaluate(subject, max_images=8)
    assert list(found) == ["brightness"]
    assert evaluation.brightness is brightness
    assert evaluation.describe_suites() == {"brightness": "How bright are the images?"}
    assert {path.name for path in (tmp_path / "brightness").iterdir()} == {
        "note.txt", "results.json", "table.csv", "table.md",
    }  # fmt: skip
    page = (tmp_path / "report.html").read_text()
    assert f"<b>{found['brightness']['mean']:.3f}</b><span>mean light (paper: 100.000)" in page
    assert "Light &amp; &lt;shadow&gt;</h2>" in page
    assert "<h3>Bright?</h3>" in page
    with pytest.raises(UserError, match="did you mean brightness"):
        evaluation.check_names("brihtness")


def test_curves_draw_every_term_that_was_logged(subject):
    lines = [line for line in subject.metrics if "loss" in line]
    assert term_names(lines) == ["loss", "surprise", "penalty"]


def test_suites_leave_matplotlib_as_they_found_it(subject):
    # Keras itself imports pyplot; nobody here may make figures in it, or choose its backend.
    from matplotlib import pyplot

    before, backend = dict(matplotlib.rcParams), matplotlib.get_backend(auto_select=False)
    evaluation.failure(subject, OPTIONS)
    evaluation.cifar10c(subject, OPTIONS)
    evaluation.curves(subject)
    assert dict(matplotlib.rcParams) == before
    assert matplotlib.get_backend(auto_select=False) == backend
    assert pyplot.get_fignums() == []


def test_importing_changes_nothing_and_tensorflow_comes_late():
    code = """
import sys
import tfvmf.evaluation as e
e.check_names("probe,ood"), e.describe_suites(), e.Options(max_images=3)
print([name for name in ("tensorflow", "keras", "matplotlib", "sklearn") if name in sys.modules])
import matplotlib, tfvmf.evaluation.report
[e.SUITES[name] for name in e.SUITES]
print(matplotlib.get_backend(auto_select=False))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split("\n")[:2] == ["[]", "None"], result.stderr


def test_no_module_uses_pyplot():
    package = pathlib.Path(evaluation.__file__).parents[1]
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import pyplot" not in text, path
        assert "matplotlib.pyplot" not in text, path
        assert "matplotlib.use" not in text, path
