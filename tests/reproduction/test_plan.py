import dataclasses
import json
import re

import pytest
from helpers.tiny_budget import TINY, tiny_workspace

from tfvmf import config, settings
from tfvmf.errors import UserError
from tfvmf.evaluation import paper
from tfvmf.reproduction import execute
from tfvmf.reproduction.experiments import (
    BUDGETS,
    EXPERIMENTS,
    named,
    sources,
    varied_runs,
)
from tfvmf.reproduction.measure import MEASURES
from tfvmf.reproduction.plan import Workspace, duration, make_plan
from tfvmf.training import run_directory

# Runs to train (members of an ensemble and heads counted) and measurements.
SIZES = {
    "table1": (7, 7),
    "table2": (9, 6),
    "table3": (6, 11),
    "table4": (4, 4),
    "table5": (3, 3),
    "pearson": (7, 7),
    "figure1": (1, 1),
    "figure2": (2, 3),
    "figure3": (3, 3),
    "figure4": (3, 10),  # of five lines, each at two checkpoints
}


@pytest.mark.parametrize("name", SIZES)
def test_a_dry_run_prints_the_plan_and_writes_nothing(name, tmp_path, capsys):
    workspace = tiny_workspace(tmp_path / "new")
    assert execute.reproduce(name, workspace, dry_run=True) == []
    plan = make_plan(workspace, EXPERIMENTS[name])
    assert (len(plan.trainings), len(plan.measurements)) == SIZES[name]
    printed = capsys.readouterr().out
    assert "budget tiny" in printed
    counted = [
        sum(int(each or 1) for each in re.findall(rf"(?:(\d+) x)? +{what}", printed))
        for what in ("(?:4 steps|a head): to be trained", "20 images: to be measured")
    ]
    assert tuple(counted) == SIZES[name]
    assert len(printed.splitlines()) < 21
    assert f"Total: {duration(plan.seconds)}, estimated." in printed
    assert not list(tmp_path.iterdir())


def test_all_experiments_are_covered():
    assert set(SIZES) == set(EXPERIMENTS)
    assert named("all") == list(EXPERIMENTS.values())


def test_all_experiments_share_their_runs(tmp_path, capsys):
    workspace = tiny_workspace(tmp_path / "new", seeds=3)
    plan = make_plan(workspace, *named("all"))
    once = make_plan(tiny_workspace(tmp_path), *named("all"))
    names = {run.directory for each in SIZES for run in make_plan(
        tiny_workspace(tmp_path), EXPERIMENTS[each]).trainings}  # fmt: skip
    assert {run.directory for run in once.trainings} == names
    assert len(once.trainings) == len(names)
    assert len(plan.trainings) == 3 * len(names)
    assert plan.seconds == pytest.approx(3 * once.seconds)
    assert {run.config.seed for run in plan.trainings if "simclr_vmf," in run.label} == {0, 1, 2}
    assert len({item.paths[0] for item in plan.measurements}) == len(plan.measurements)
    assert len(list(plan.lines())) == len(list(once.lines()))  # seeds are grouped


def test_further_seeds_repeat_only_the_named_runs(tmp_path):
    repeat = ("simclr_vmf-kappa", "mc_infonce")
    plan = make_plan(tiny_workspace(tmp_path, seeds=3, repeat=repeat), EXPERIMENTS["table1"])
    labels = [run.label for run in plan.trainings]
    further = [label for label in labels if not label.endswith("seed 0")]
    # A head brings the run that it is fitted to.
    assert further == [
        f"{name}, seed {seed}"
        for seed in (1, 2)
        for name in ("mc_infonce", "simclr_vmf", "simclr_vmf-kappa")
    ]
    measured = [item for item in plan.measurements if item.workspace.repetition]
    assert {item.task.run for item in measured} == set(repeat)
    assert {item.task.kind for item in measured} == {"corruption"}
    plan = make_plan(
        tiny_workspace(tmp_path, seeds=3, repeat=("simclr_vmf",)), EXPERIMENTS["table1"]
    )
    measured = [item.task.kind for item in plan.measurements if item.task.run == "simclr_vmf"]
    assert sorted(measured) == ["controls", *["corruption"] * 3]  # controls take long
    everything = make_plan(tiny_workspace(tmp_path, seeds=3), EXPERIMENTS["table1"])
    assert len(everything.trainings) == 3 * SIZES["table1"][0]


def test_a_head_comes_after_its_run(tmp_path):
    workspace = tiny_workspace(tmp_path / "new", results=str(tmp_path / "data"))
    plan = make_plan(workspace, EXPERIMENTS["figure2"])
    run, head = plan.trainings
    assert (run.label, head.label) == ("simclr_vmf", "simclr_vmf-kappa")
    assert (run.model, head.model) == ("", str(run.directory.resolve()))
    assert not any(item.ready for item in plan.measurements)
    # Where all that is measured of the run is known, the head still needs it.
    for item in plan.measurements:
        if item.task.run == run.label:
            item.keep({}, seconds=1.0)
    assert [each.label for each in make_plan(workspace, EXPERIMENTS["figure2"]).trainings] == [
        run.label,
        head.label,
    ]


def test_a_pretrained_encoder_is_another_row(tmp_path):
    (tmp_path / "model.keras").write_text("weights")
    workspace = tiny_workspace(tmp_path, reference=str(tmp_path / "model.keras"))
    plan = make_plan(workspace, EXPERIMENTS["table1"])
    head = plan.trainings[-1]
    assert (head.label, head.model) == ("reference", str(tmp_path / "model.keras"))
    assert head.config.data.image_size == 3 * 8
    assert len(plan.trainings) == SIZES["table1"][0] + 1
    before = workspace.fingerprint("reference")
    (tmp_path / "model.keras").write_text("other weights")
    assert workspace.fingerprint("reference") != before


def test_new_settings_change_no_hash(tmp_path, monkeypatch):
    workspace = tiny_workspace(tmp_path)
    before = workspace.fingerprint("simclr_vmf")
    monkeypatch.setitem(config.SETTINGS, "new.setting", settings.Setting(1.0, "of a later version"))
    assert workspace.fingerprint("simclr_vmf") == before
    assert workspace.fingerprint("simclr_vmf", "supervised-digits") != before


def test_a_budget_for_gpus_does_not_assume_one(tmp_path):
    workspace = Workspace(budget=BUDGETS["paper"], directory=tmp_path)
    *lines, last = make_plan(workspace, EXPERIMENTS["figure4"]).lines()
    assert last.startswith("Total: time unknown, estimated. This budget needs a GPU")
    assert len(lines) == 8  # 103 runs and checkpoints
    # One measured run tells how long it takes.
    place = workspace.run_directory("simclr_vmf")
    facts = {"train_images": 50_000}
    run_directory.write_or_check_config(place, workspace.config("simclr_vmf"), facts)
    line = {"step": 2, "loss": 1.0, "images_per_second": 7.23}
    (place / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    plan = make_plan(workspace, EXPERIMENTS["figure1"])
    (run,) = plan.trainings
    assert run.seconds == pytest.approx(80 * 24 * 3600, rel=0.05)


def test_missing_data_are_found_in_a_dry_run(tmp_path, capsys):
    workspace = Workspace(budget=BUDGETS["cpu"], directory=tmp_path, data_dir="/nonexistent")
    with pytest.raises(UserError, match="data_dir=/nonexistent: there is no such folder"):
        execute.reproduce("table1", workspace, dry_run=True)
    assert "Total:" in capsys.readouterr().out


def test_results_of_the_same_settings_count_as_measured(tmp_path):
    first = tiny_workspace(tmp_path / "first", results=str(tmp_path / "data"))
    (item,) = make_plan(first, EXPERIMENTS["figure1"]).measurements
    item.keep({"kappa": [1.0]}, seconds=1.0)
    again = tiny_workspace(tmp_path / "again", results=str(tmp_path / "data"))
    plan = make_plan(again, EXPERIMENTS["figure1"])
    assert plan.measurements[0].read() == {"kappa": [1.0]}
    assert (plan.trainings, plan.seconds) == ([], 0)  # nothing is trained for what is known
    for other in (
        tiny_workspace(tmp_path / "again"),
        dataclasses.replace(again, seed=1),
        dataclasses.replace(again, max_images=7),
        dataclasses.replace(
            again,
            budget=dataclasses.replace(TINY, changes={**TINY.changes, "optimizer.momentum": 0.5}),
        ),
    ):
        plan = make_plan(other, EXPERIMENTS["figure1"])
        assert not plan.measurements[0].done
        assert len(plan.trainings) == 1


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=list(BUDGETS))
def test_every_budget_plans_every_experiment(budget, tmp_path):
    workspace = Workspace(budget=budget, directory=tmp_path)
    for experiment in EXPERIMENTS.values():
        plan = make_plan(workspace, experiment)
        assert plan.seconds > 0 or budget.name == "paper"
        assert all(item.task.kind in MEASURES for item in plan.measurements)
        for run in plan.trainings:
            kept = run.config.checkpoint.keep
            assert len(run.checkpoint_steps()) < kept  # with room for interruptions
    assert min(budget.num_members, budget.num_passes) > 1


def test_the_digits_take_minutes(tmp_path):
    workspace = Workspace(budget=BUDGETS["digits"], directory=tmp_path)
    for experiment in EXPERIMENTS.values():
        assert make_plan(workspace, experiment).seconds < 6 * 60


def test_experiments_share_runs(tmp_path):
    workspace = Workspace(budget=BUDGETS["paper"], directory=tmp_path)
    places = {
        name: {run.directory for run in make_plan(workspace, EXPERIMENTS[name]).trainings}
        for name in EXPERIMENTS
    }
    own = workspace.run_directory("simclr_vmf")
    assert all(own in directories for directories in places.values())
    assert places["table1"] == places["pearson"]
    # Figure 4's deterministic run is the ensemble's first member.
    assert places["figure4"] < places["table1"]
    configs = {name: workspace.config(name) for name in workspace.runs}
    assert configs["simclr_vmf"].model.backbone == "resnet50"
    assert configs["supervised-mnist"].model.backbone == "resnet18"
    assert set(varied_runs(workspace.budget, "model.dimension")) == set(paper.TABLE_4)
    assert set(varied_runs(workspace.budget, "model.backbone")) == set(paper.TABLE_NETWORKS)


def test_only_what_an_experiment_trains_on_is_downloaded():
    cpu = BUDGETS["cpu"]
    assert sources("table1", cpu) == ["cifar10"]
    assert sources("table2", cpu) == sources("all", cpu) == ["cifar10", "cifar100", "mnist"]
    assert sources("table2", BUDGETS["digits"]) == ["digits"]  # and two stand-ins


def test_a_directory_may_be_a_string(tmp_path):
    named, typed = tiny_workspace(str(tmp_path)), tiny_workspace(tmp_path)
    assert named.run_directory("simclr") == typed.run_directory("simclr")


def test_seconds_follow_what_was_measured(tmp_path):
    experiment, workspace = EXPERIMENTS["table3"], tiny_workspace(tmp_path)
    before = {run.label: run.seconds for run in make_plan(workspace, experiment).trainings}
    assert before["simclr_vmf"] == pytest.approx(4)
    assert before["byol_vmf"] == pytest.approx(4 * 1.3)  # its target sees both views, too
    # BYOL took 2.6 s per step.
    place = workspace.run_directory("byol_vmf")
    run_directory.write_or_check_config(place, workspace.config("byol_vmf"), {"train_images": 1397})
    line = {"step": 2, "loss": 1.0, "images_per_second": 330 / 2.6}
    (place / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    after = make_plan(workspace, experiment)
    seconds = {run.label: run.seconds for run in after.trainings if not run.model}
    assert seconds.pop("byol_vmf") == pytest.approx(4 * 2.6)
    assert list(seconds.values()) == pytest.approx([8] * 4)
    # And a measurement twice as long as the budget says, which is then expected of the others.
    first, *others = after.measurements
    assert first.seconds == pytest.approx(first.passes / 1000)
    first.keep({}, seconds=2 * first.seconds)
    again = make_plan(workspace, experiment).measurements
    assert again[1].seconds == pytest.approx(2 * others[0].seconds)
    # Another run of the same kind is expected to take as long, others as the median.
    other = workspace.run_directory("swav_vmf")
    run_directory.write_or_check_config(other, workspace.config("swav_vmf"), {"train_images": 1397})
    (other / "metrics.jsonl").write_text(json.dumps({**line, "images_per_second": 330.0}) + "\n")
    seconds = {run.label: run.seconds for run in make_plan(workspace, experiment).trainings}
    assert seconds["swav_vmf"] == pytest.approx(4)
    assert seconds["byol_vmf"] == pytest.approx(4 * 2.6)


def test_a_run_of_other_settings_is_refused(tmp_path):
    workspace = tiny_workspace(tmp_path)
    changed = workspace.config("simclr_vmf")
    changed.data.data_dir = "/elsewhere"  # is the same run
    place = workspace.run_directory("simclr_vmf")
    run_directory.write_or_check_config(place, changed, {"train_images": 1397})
    make_plan(workspace, EXPERIMENTS["figure1"])
    with pytest.raises(UserError, match=r"seed \(0 -> 1\); choose another --workdir"):
        make_plan(dataclasses.replace(workspace, seed=1), EXPERIMENTS["figure1"])


def test_a_damaged_measurement_is_named(tmp_path):
    workspace = tiny_workspace(tmp_path)
    kept = workspace.run_directory("simclr_vmf") / "eval" / "reproduce"
    kept.mkdir(parents=True)
    (kept / "spread-4.json").write_text("{")
    with pytest.raises(UserError, match=r"spread-4\.json is damaged"):
        make_plan(workspace, EXPERIMENTS["figure1"])


def test_images_are_limited_by_what_there_is(tmp_path):
    assert tiny_workspace(tmp_path).images == 20
    assert tiny_workspace(tmp_path, max_images=30).images == 30
    assert tiny_workspace(tmp_path, max_images=3000).images == 400


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (45, "45 s"), (210, "4 min"), (11_400, "3 h 10 min")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text
