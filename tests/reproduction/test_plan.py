import dataclasses
import json
import math

import keras
import pytest
from helpers.tiny_budget import TINY, tiny_workspace

from tfvmf.errors import UserError
from tfvmf.evaluation import paper
from tfvmf.models.resnet import ARCHITECTURES, build_backbone
from tfvmf.reproduction import execute
from tfvmf.reproduction.experiments import (
    BUDGETS,
    EXPERIMENTS,
    dimension_runs,
    network_runs,
    sources,
)
from tfvmf.reproduction.measure import MEASURES
from tfvmf.reproduction.plan import Estimator, Workspace, duration, make_plan
from tfvmf.training import run_directory

# Runs to train, members of an ensemble counted, and measurements.
SIZES = {
    "table1": (5, 4),
    "table2": (6, 3),
    "table3": (4, 4),
    "table4": (4, 4),
    "table5": (3, 3),
    "pearson": (5, 4),
    "figure1": (1, 1),
    "figure2": (1, 2),
    "figure3": (3, 3),
    "figure4": (3, 10),  # of five lines, each at two checkpoints
}


@pytest.mark.parametrize("name", SIZES)
def test_a_dry_run_prints_the_plan_and_writes_nothing(name, tmp_path, capsys):
    workspace = tiny_workspace(tmp_path / "new")
    assert execute.reproduce(name, workspace, dry_run=True) == []
    plan = make_plan(EXPERIMENTS[name], workspace)
    assert (len(plan.trainings), len(plan.measurements)) == SIZES[name]
    printed = capsys.readouterr().out
    assert "budget tiny" in printed
    assert printed.count("4 steps: to be trained") == SIZES[name][0]
    assert printed.count("20 images: to be measured") == SIZES[name][1]
    assert f"Total: {duration(plan.seconds)}." in printed
    assert not list(tmp_path.iterdir())


def test_all_experiments_are_covered():
    assert set(SIZES) == set(EXPERIMENTS)


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=list(BUDGETS))
def test_every_budget_plans_every_experiment(budget, tmp_path):
    workspace = Workspace(budget=budget, directory=tmp_path)
    for experiment in EXPERIMENTS.values():
        plan = make_plan(experiment, workspace)
        assert plan.seconds > 0
        assert all(item.task.kind in MEASURES for item in plan.measurements)
        for run in plan.trainings:
            kept = run.config.checkpoint.keep
            assert len(run.checkpoint_steps()) < kept  # with room for interruptions
    assert min(budget.num_members, budget.num_passes) > 1


def test_the_digits_take_minutes(tmp_path):
    workspace = Workspace(budget=BUDGETS["digits"], directory=tmp_path)
    for experiment in EXPERIMENTS.values():
        assert make_plan(experiment, workspace).seconds < 6 * 60


def test_experiments_share_runs(tmp_path):
    workspace = Workspace(budget=BUDGETS["paper"], directory=tmp_path)
    places = {
        name: {run.directory for run in make_plan(EXPERIMENTS[name], workspace).trainings}
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
    assert set(dimension_runs(workspace.budget)) == set(paper.TABLE_4)
    assert set(network_runs(workspace.budget)) == set(paper.TABLE_NETWORKS)


def test_only_what_an_experiment_trains_on_is_downloaded():
    cpu = BUDGETS["cpu"]
    assert sources(EXPERIMENTS["table1"], cpu) == ["cifar10"]
    assert sources(EXPERIMENTS["table2"], cpu) == ["cifar10", "cifar100", "mnist"]
    assert sources(EXPERIMENTS["table2"], BUDGETS["digits"]) == ["digits"]  # and two stand-ins


def test_a_directory_may_be_a_string(tmp_path):
    named, typed = tiny_workspace(str(tmp_path)), tiny_workspace(tmp_path)
    assert named.run_directory("simclr") == typed.run_directory("simclr")


def test_seconds_follow_what_was_measured(tmp_path):
    experiment, workspace = EXPERIMENTS["table3"], tiny_workspace(tmp_path)
    before = {run.label: run for run in make_plan(experiment, workspace).trainings}
    assert before["simclr_vmf"].seconds == pytest.approx(10 + 4)
    assert before["byol_vmf"].seconds == pytest.approx(10 + 4 * 1.3)
    assert before["byol_vmf"].pace == "estimated from times of the test"
    # BYOL took 2.6 s per step: twice what was expected.
    place = workspace.run_directory("byol_vmf")
    run_directory.write_or_check_config(place, workspace.config("byol_vmf"), {"train_images": 1397})
    line = {"step": 2, "loss": 1.0, "images_per_second": 349 / 2.6}
    (place / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    after = {run.label: run for run in make_plan(experiment, workspace).trainings}
    assert after["byol_vmf"].seconds == pytest.approx(2 * 10 + 4 * 2.6)
    assert after["byol_vmf"].pace == "measured pace of this run"
    assert after["swav_vmf"].seconds == pytest.approx(2 * (10 + 4))
    assert "estimated from the pace of other runs" in after["swav_vmf"].pace


def test_a_larger_network_costs_more():
    plain, large = TINY.base_config(), TINY.base_config()
    plain.model.backbone, large.model.backbone = "resnet18", "resnet50"
    estimator = Estimator(TINY)
    assert estimator.step_cost(large) / estimator.step_cost(plain) == pytest.approx(2.3)
    slow, quick = (estimator.measure(config, 1000) for config in (large, plain))
    assert slow - 1 == pytest.approx(2.3 * (quick - 1))


def test_the_cost_of_a_backbone_is_the_number_of_its_multiplications():
    counts = {}
    for name in ARCHITECTURES:
        backbone = build_backbone(name, width=8)
        outputs = {layer.name: layer.output for layer in backbone.layers}
        shapes = keras.Model(backbone.inputs, outputs).compute_output_shape((1, 32, 32, 3))
        counts[name] = sum(
            math.prod(shapes[layer.name][1:3]) * math.prod(layer.kernel.shape)
            for layer in backbone.layers
            if hasattr(layer, "kernel")
        )
    for name, architecture in ARCHITECTURES.items():
        expected = counts[name] / counts["resnet18"]
        assert architecture.relative_cost == pytest.approx(expected, rel=0.03)


def test_a_run_of_other_settings_is_refused(tmp_path):
    workspace = tiny_workspace(tmp_path)
    config = workspace.config("simclr_vmf")
    config.data.data_dir = "/elsewhere"  # is the same run
    place = workspace.run_directory("simclr_vmf")
    run_directory.write_or_check_config(place, config, {"train_images": 1397})
    make_plan(EXPERIMENTS["figure1"], workspace)
    with pytest.raises(UserError, match=r"seed \(0 -> 1\); choose another --workdir"):
        make_plan(EXPERIMENTS["figure1"], dataclasses.replace(workspace, seed=1))


def test_a_damaged_measurement_is_named(tmp_path):
    workspace = tiny_workspace(tmp_path)
    kept = workspace.run_directory("simclr_vmf") / "eval" / "reproduce"
    kept.mkdir(parents=True)
    (kept / "spread-4.json").write_text("{")
    with pytest.raises(UserError, match=r"spread-4\.json is damaged"):
        make_plan(EXPERIMENTS["figure1"], workspace)


def test_images_are_limited_by_what_there_is(tmp_path):
    assert tiny_workspace(tmp_path).images == 20
    assert tiny_workspace(tmp_path, max_images=30).images == 30
    assert tiny_workspace(tmp_path, max_images=3000).images == 400


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (45, "45 s"), (210, "3.5 min"), (43200, "12.0 h")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text
