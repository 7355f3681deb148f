"""Suites on subjects that were made by hand: a plain Keras model and two sources, no run."""

import json
import pathlib
import re
import subprocess
import sys
import types

import keras
import matplotlib
import numpy as np
import pytest
from helpers.subjects import full_subject, make_subject, plain_encoder
from helpers.untrained import make_run
from keras import layers

from tfvmf import evaluation
from tfvmf.data import load_source
from tfvmf.data.corruptions.corrupted import Corrupted
from tfvmf.errors import UserError
from tfvmf.evaluation import Headline, Measured, Options, Suite
from tfvmf.evaluation.suites.cifar10c import choose_example, headlines
from tfvmf.evaluation.suites.cifar10c import verdict as corruption_verdict
from tfvmf.evaluation.suites.curves import term_names
from tfvmf.evaluation.suites.probe import verdict as probe_verdict
from tfvmf.evaluation.tables import Table

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
    "images": {"sprite.png", "table.csv", "table.md"},
    "curves": {"curves.png"},
    "probe": {"table.md", "table.csv"},
    "failure": {"table.md", "table.csv", "failure.png"},
    "decision": {"table.md", "table.csv", "decision.png"},
    "cifar10c": {"table.md", "table.csv", "kappa.png", "examples.png"},
    "projector": {"directions.tsv", "metadata.tsv", "sprite.png", "projector_config.pbtxt"},
    "agreement": {"table.md", "table.csv"},
    "ood": {"table.md", "table.csv"},
}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_suite_measures_a_plain_keras_model(name, subject, noise):
    results = getattr(evaluation, name)(subject, OPTIONS, ood_sources=(noise,))
    directory = pathlib.Path(subject.directory) / "sample15" / name
    suite = evaluation.SUITES[name]
    assert len(results["page"]["headlines"]) <= 5
    assert results["verdict"]
    assert "\n" not in results["verdict"]
    if suite.uses_images:
        assert (results["images"], results["of_images"]) == (15, 400)
    assert json.loads((directory / "results.json").read_text()) == results
    assert {path.name for path in directory.iterdir()} >= WRITTEN[name]
    if "table.md" in WRITTEN[name]:
        text = (directory / "table.md").read_text()
        assert "plain" in text.splitlines()[0]
        assert "step" not in text.split("\n|")[0]  # it has none


def test_all_suites_have_a_test():
    # test_suites has the one that needs a run with checkpoints.
    assert set(WRITTEN) | {"along_training"} == set(evaluation.SUITES)


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subject = full_subject(None)
    with_directory = full_subject(tmp_path / "eval")
    for name in ("curves", "probe", "projector"):
        suite = getattr(evaluation, name)
        results = suite(subject, OPTIONS)
        assert not (tmp_path / "eval" / "sample15" / name).exists()
        written = suite(with_directory, OPTIONS)
        written.pop("open", None)  # how to open what was written
        assert results == written
    assert [path.name for path in tmp_path.iterdir()] == ["eval"]


def test_the_numbers_are_those_of_the_model(subject):
    results = evaluation.failure(subject, OPTIONS)
    images = subject.sample(15).test.images() / np.float32(255)
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
    # The same sample of images: no score can tell them apart.
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
    with pytest.raises(
        evaluation.NotApplicable, match=r"decision needs a calibrated run: .*reserve"
    ):
        evaluation.decision(subject)
    with pytest.raises(
        UserError, match="score=confidence: the score confidence needs a calibrated"
    ):
        evaluation.cifar10c(subject, scores=("confidence",))
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
    assert list(found) == ["images", "probe", "failure", "cifar10c", "projector"]
    out = capsys.readouterr().out
    assert "curves: left out" in out
    assert "ood: left out" in out
    number = f"{found['probe']['linear_accuracy']:.3f}"
    assert re.search(rf"^  accuracy of a linear probe +{number}$", out, re.M)
    assert re.search(
        r"^cifar10c \(a sample of 8 of 400 images\): kappa falls under \d+ of 18", out, re.M
    )
    assert f"report: {tmp_path / 'sample8' / 'report.html'}" in out
    assert (tmp_path / "sample8" / "report.html").exists()
    lines = out.split("report:")[0].splitlines()  # a command to paste is as long as it is
    assert max(len(line) for line in lines if "open it with" not in line) <= 100


def test_evaluate_by_name_says_what_is_missing(tmp_path, noise, capsys):
    with pytest.raises(evaluation.NotApplicable, match="ood_sources"):
        evaluation.evaluate(make_subject(tmp_path), "probe,ood", max_images=8)
    subject = full_subject(tmp_path)
    found = evaluation.evaluate(subject, "ood", max_images=8, ood_sources=(noise,))
    out = capsys.readouterr().out
    assert "of 1 sets" in out
    assert "noise.npz, kappa" in out
    assert list(found) == ["ood"]
    assert (tmp_path / "sample8" / "report.html").exists()


def test_a_new_suite_is_a_function_and_a_line(tmp_path, monkeypatch, capsys):
    """Everything that others know about a suite is what it declares."""

    def measure(subject, options):
        assert subject.test.size == options.max_images
        mean = subject.test.images().mean()
        return Measured(
            verdict="bright <enough>",
            results={"mean": mean, "row": np.arange(3, dtype=np.float32)},
            headlines=[Headline("mean light", mean, printed=100.0, note="of few")],
            blocks=["Bright?", Table(columns=["mean"], rows=[[mean]])],
            files={"note.txt": lambda path: path.write_text("<b>")},
        )

    module = types.ModuleType("tfvmf.evaluation.suites.brightness")
    module.measure = measure
    monkeypatch.setitem(sys.modules, module.__name__, module)
    brightness = Suite("brightness", "Light & <shadow>", "how bright are the images?")
    for name in reversed(list(evaluation.SUITES)):  # so that they come back in their order
        monkeypatch.delitem(evaluation.SUITES, name)
    monkeypatch.setitem(evaluation.SUITES, "brightness", brightness)
    subject = make_subject(tmp_path)
    found = evaluation.evaluate(subject, max_images=8)
    assert list(found) == ["brightness"]
    assert evaluation.brightness is brightness
    assert found["brightness"]["row"] == [0.0, 1.0, 2.0]
    assert {path.name for path in (tmp_path / "sample8" / "brightness").iterdir()} == {
        "note.txt", "results.json", "table.csv", "table.md",
    }  # fmt: skip
    page = (tmp_path / "sample8" / "report.html").read_text()
    mean = f"{found['brightness']['mean']:.3f}"
    assert f"<b>{mean}</b><span>mean light (paper: 100.000; of few)" in page
    assert f"mean light     {mean}  (paper: 100.000; of few)" in capsys.readouterr().out
    assert "Light &amp; &lt;shadow&gt;</h2>" in page
    assert page.count("bright &lt;enough&gt;") == 3
    assert "<p>Bright?</p>" in page
    with pytest.raises(UserError, match="did you mean brightness"):
        evaluation.check_names("brihtness")


def test_a_sample_is_the_same_for_all_suites_and_has_every_class(tmp_path):
    """A folder with classes is in their order: its first images are of the first ones."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (90, 12, 12, 3), dtype=np.uint8)
    labels = np.repeat([0, 1, 2], 30)
    np.savez(
        tmp_path / "sorted.npz",
        x_train=images, y_train=labels, x_test=images[::-1], y_test=labels,
    )  # fmt: skip
    train, test = (
        load_source(f"npz:{tmp_path / 'sorted.npz'}", split, image_size=12)
        for split in ("train", "test")
    )
    subject = make_subject(tmp_path / "eval", train=train, test=test)
    sample = subject.sample(12)
    assert np.bincount(sample.test.labels).tolist() == [4, 4, 4]
    assert subject.sample(12) is sample.sample(12) is sample
    assert subject.sample(0) is subject.sample(90) is subject
    assert sample.embed(train) is subject.embed(train)  # computed once
    whole, few = evaluation.probe(subject), evaluation.probe(subject, max_images=12)
    assert (whole["images"], few["images"], few["of_images"]) == (90, 12, 90)
    written = json.loads((tmp_path / "eval" / "probe" / "results.json").read_text())
    assert written == whole  # which the sample has not overwritten


def test_a_random_network_is_told_so():
    control = {"images": 400, "features": 0.8, "pixels": 0.95}
    assert "untrained network" in probe_verdict(0.8, 0.1, 400, control)
    good = probe_verdict(0.975, 0.1, 400, control | {"features": 0.975})
    assert good == "k-NN 0.975: the features know the classes"
    assert "know nothing" in probe_verdict(0.12, 0.1, 400, control | {"pixels": 0.1})


def test_plus_is_right_for_an_uncertainty():
    names = [f"corruption_{number}" for number in range(18)]
    results = {
        "score": "ensemble variance",
        "expected_sign": 1,
        "spearman": {name: 0.5 if number < 12 else -0.5 for number, name in enumerate(names)},
        "mean_spearman": 0.17, "mean_per_image": 0.1, "mean_auroc": 0.6,
    }  # fmt: skip
    assert corruption_verdict(results) == "ensemble variance rises under 12 of 18 corruptions"
    first, worst, *_ = headlines(results)
    assert "plus is right" in first.words
    assert first.printed == pytest.approx(-0.827, abs=1e-3)  # the paper's own ensembles
    assert worst.value == -0.5


def test_the_example_stands_for_the_mean():
    rng = np.random.default_rng(0)
    trend = -np.arange(6.0)[:, None]
    scores = np.insert(trend + rng.normal(size=(2, 6, 40)), 7, trend[:, 0] + 30, axis=2)
    assert choose_example(scores) == 7  # it falls exactly as the mean does, from another level


def test_corrupted_images_are_measured_once_for_all_suites(subject, monkeypatch):
    options = Options(max_images=7, num_views=2)
    found = evaluation.agreement(subject, options)
    monkeypatch.setattr(Corrupted, "read_ahead", lambda *_: pytest.fail("measured again"))
    again = evaluation.cifar10c(subject, options)
    assert again["spearman"] == found["spearman"]["kappa"]


def test_members_are_drawn_over_one_another(tmp_path):
    lines = [line for line in full_subject().metrics if "loss" in line]
    subject = make_subject(
        tmp_path, metrics=[{"member": number, **line} for number in range(3) for line in lines]
    )
    results = evaluation.curves(subject)
    assert results["members"] == 3
    assert results["verdict"].startswith("3 members, 3 epochs; the loss fell")
    assert (tmp_path / "curves" / "curves.png").exists()


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
import importlib, sys
import tfvmf.evaluation as e
e.check_names("probe,ood"), e.Options(max_images=3)
print([name for name in ("tensorflow", "keras", "matplotlib", "sklearn") if name in sys.modules])
import matplotlib, tfvmf.evaluation.report
[importlib.import_module(f"tfvmf.evaluation.suites.{name}") for name in e.SUITES]
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
