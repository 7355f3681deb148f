"""A table from nothing: interrupted, continued, and made again without any work."""

import csv
import itertools
import os
import signal

import matplotlib.image
import numpy as np
import pytest
import scipy.stats
from absl import flags
from helpers.tiny_budget import tiny_workspace

from tfvmf import evaluation, training
from tfvmf.data.corruptions import CORRUPTIONS
from tfvmf.posthoc import kappa
from tfvmf.programs import cli
from tfvmf.programs import reproduce as program
from tfvmf.reproduction import execute, experiments, measure
from tfvmf.reproduction.experiments import EXPERIMENTS, Experiment, Task
from tfvmf.reproduction.plan import make_plan
from tfvmf.reproduction.reports import Results
from tfvmf.training import loop

TABLE = EXPERIMENTS["table4"]


def stopped_after(step):
    """`make_train_step` with a SIGTERM during that step."""
    make = loop.make_train_step

    def stopping(*arguments, **options):
        train_step, steps = make(*arguments, **options), itertools.count(1)

        def counted(batches):
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGTERM)
            return train_step(batches)

        return counted

    return stopping


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A workspace in which table4 was stopped, then finished; the plan in between; the outputs.

    Of the four dimensions one: each takes ten seconds to build its graph.
    """
    workspace = tiny_workspace(tmp_path_factory.mktemp("tiny"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(experiments.VARIED, "model.dimension", (64,))
        with patch.context() as inner:
            inner.setattr(loop, "make_train_step", stopped_after(3))
            with pytest.raises(training.Interrupted, match="after step 3"):
                execute.reproduce("table4", workspace)
        between = make_plan(workspace, TABLE)
        (written,) = execute.reproduce("table4", workspace)
        yield workspace, between, written.paths


def test_an_interrupted_run_continues(made):
    workspace, between, _ = made
    assert [run.step for run in between.trainings] == [3]
    assert "continues from step 3" in "\n".join(between.lines())
    lines = training.read_metrics(workspace.run_directory("simclr_vmf"))
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4]
    after = make_plan(workspace, TABLE)
    assert after.trainings[0].done
    assert after.seconds == 0


def test_other_experiments_reuse_the_run(made):
    workspace, _, _ = made
    plan = make_plan(workspace, EXPERIMENTS["table3"])
    finished = [run.label for run in plan.trainings if run.done]
    assert finished == ["simclr_vmf"]
    done = [item.done for item in plan.measurements]
    assert done == [True] + [False] * (len(done) - 1)


def test_the_table_is_the_mean_of_what_was_measured(made, run):
    workspace, _, (page, table, latex, picture) = made
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["dimension"] for row in rows] == ["64"]
    assert [float(row["paper"]) for row in rows] == [-0.768]
    assert {(row["budget"], row["epochs"], row["images"]) for row in rows} == {("tiny", "1", "20")}
    kept = make_plan(workspace, TABLE).measurements[0].read()
    clean = run.embedder(run.test.images(0, 20))["concentration"].mean()
    assert [values[0] for values in kept["mean_score"].values()] == pytest.approx([clean] * 18)
    spearman = [scipy.stats.spearmanr(range(6), v).statistic for v in kept["mean_score"].values()]
    assert float(rows[0]["tfvmf"]) == pytest.approx(np.mean(spearman), abs=1e-5)
    text = page.read_text()
    assert text.startswith("# Table 4")
    assert "(budget tiny)" in text.splitlines()[0]
    for words in ("1000 epochs of ResNet-50", "CIFAR-10-C protocol, generated", "20 test images"):
        assert words in text
    assert "& $-0.768$ &" in latex.read_text()
    assert matplotlib.image.imread(picture).std() > 0.01


def test_a_second_call_reuses_everything(made, monkeypatch, capsys):
    workspace, _, written = made
    before = [path.read_bytes() for path in written[:2]]
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    monkeypatch.setitem(measure.MEASURES, "corruption", lambda *_: pytest.fail("measured again"))
    assert execute.reproduce("table4", workspace)[0].paths == written
    assert [path.read_bytes() for path in written[:2]] == before
    printed = capsys.readouterr().out
    assert printed.count("done, reused") == 2
    assert "Total: 0 s, estimated." in printed


def test_the_program_prints_the_page_and_names_the_files(made, monkeypatch, capsys):
    workspace, _, written = made
    monkeypatch.setitem(experiments.BUDGETS, "tiny", workspace.budget)
    values = flags.FlagValues()
    cli.define(program, values, [])
    values(["", "--experiment=table4", "--budget=tiny", f"--workdir={workspace.directory}"])
    program.main(values)
    printed = capsys.readouterr().out
    assert "dimension" in printed
    assert max(map(len, printed.splitlines()[4:-1])) <= 80
    assert printed.splitlines()[-1] == "written: " + ", ".join(map(str, written))


def test_other_images_are_measured_again(made):
    workspace, _, _ = made
    more = tiny_workspace(workspace.directory, max_images=21)
    plan = make_plan(more, TABLE)
    assert all(run.done for run in plan.trainings)
    assert not any(item.done for item in plan.measurements)


OPTIONS = evaluation.Options(max_images=20)


@pytest.fixture(scope="module")
def run(made):
    """The trained simclr_vmf."""
    workspace, _, _ = made
    return evaluation.subject_from_run(workspace.run_directory("simclr_vmf")).sample(20)


def test_along_training_every_checkpoint_is_measured(made, monkeypatch):
    workspace, _, _ = made
    along = Experiment(
        "along", "", lambda _: [Task("simclr_vmf", "accuracy", every_checkpoint=True)]
    )
    # Not at step 3, where it was stopped.
    assert [item.step for item in make_plan(workspace, along).measurements] == [2, 4]
    monkeypatch.setitem(measure.MEASURES, "accuracy", lambda run, _: {"step": run.facts["step"]})
    plan = make_plan(workspace, along)
    execute.measure_missing(plan.measurements)
    found = Results(plan.measurements).along("simclr_vmf", "accuracy")
    assert found == [(0.5, {"step": 2}), (1.0, {"step": 4})]


def test_a_head_is_fitted_and_measured_beside_controls(made, monkeypatch):
    workspace, _, _ = made
    monkeypatch.setattr(kappa, "_STEPS", 2)
    monkeypatch.setenv("TFVMF_CACHE", str(workspace.root / "cache"))
    for images in workspace.budget.sets[1:]:
        measure.write_stand_in(images.name, workspace.stand_in(images), size=8)
    kinds = {"simclr_vmf-kappa": ("corruption", "failure", "ood"), "simclr_vmf": ("controls",)}
    tasks = [Task(run, kind) for run in kinds for kind in kinds[run]]
    experiment = Experiment("heads", "", lambda _: tasks)
    monkeypatch.setattr(execute, "named", lambda _: [experiment])
    written = []
    monkeypatch.setattr(
        execute.reports, "write", lambda *arguments: written.append(arguments[-1][0])
    )
    execute.reproduce("heads", workspace)
    (results,) = written
    judged = results("simclr_vmf-kappa", "corruption")
    assert set(judged["scores"]) == {"familiarity", "confidence"}
    for found in (judged, *judged["scores"].values()):
        assert found["interval"][0] <= found["mean_per_image"] <= found["interval"][1]
        assert set(found["auroc"]) == set(CORRUPTIONS)
    controls = results("simclr_vmf", "controls")["scores"]
    assert set(controls) == {"feature_norm", "agreement", "softmax"}
    further = {"kappa", "feature_norm", "familiarity", "confidence", "agreement", "softmax"}
    assert set(results("simclr_vmf-kappa", "failure")["scores"]) == further
    pairs = results("simclr_vmf-kappa", "ood")["auroc"]
    assert len(pairs) == 2
    assert all({*further, "ssd", "f_ssl"} <= set(found) for found in pairs)
    # Nothing is fitted or measured again.
    assert make_plan(workspace, experiment).seconds == 0


def test_accuracy_beats_chance(run):
    found = measure.accuracy(run, OPTIONS)
    assert found["images"] == 20
    assert found["knn"] > 0.1
    assert found["linear"] > 0.1


def test_failure_groups_hold_all_images(run):
    found = measure.failure(run, OPTIONS)
    kappa = run.embedder(run.test.images(0, 20))["concentration"]
    groups = found["kappa_correct"] + found["kappa_wrong"]
    assert sorted(groups) == pytest.approx(sorted(kappa.tolist()), abs=1e-5)
    assert found["correct"] + found["wrong"] == 20


def test_examples_are_in_the_order_of_kappa(run):
    found = measure.examples(run, OPTIONS)
    kappa = run.embedder(run.test.images(0, 20))["concentration"]
    assert found["most"]["kappa"][0] == pytest.approx(kappa.max(), abs=1e-5)
    assert found["least"]["kappa"][0] == pytest.approx(kappa.min(), abs=1e-5)
    for entry in found["corrupted"].values():  # of the same image
        images = measure.read_images(entry)
        assert images.shape == (6, 8, 8, 3)
        assert entry["kappa"] == pytest.approx(run.embedder(images)["concentration"], rel=1e-4)
    assert len({entry["kappa"][0] for entry in found["corrupted"].values()}) == 1


def test_the_spread_is_over_clean_and_corrupted_images(run):
    found = measure.spread(run, OPTIONS)
    assert found["kappa"] == sorted(found["kappa"], reverse=True)
    assert set(found["conditions"]) <= {"clean", *CORRUPTIONS}
    again = run.embedder(measure.read_images(found))["concentration"]
    assert found["kappa"] == pytest.approx(again.tolist(), rel=1e-4)
