"""What is written of each experiment, from results that no run had to be trained for."""

import csv
import dataclasses

import matplotlib.image
import numpy as np
import pytest
from helpers.tiny_budget import TINY, tiny_workspace

from tfvmf.data.corruptions import CORRUPTIONS
from tfvmf.evaluation import paper, plots
from tfvmf.evaluation.suites.failure import compare
from tfvmf.reproduction import experiments, figures, measure, reports
from tfvmf.reproduction.experiments import CPU, EXPERIMENTS
from tfvmf.reproduction.plan import Workspace, make_plan


class Invented:
    """Results of the right form, other for each run and seed."""

    def __init__(self, seed=0):
        self._seed = seed

    def __call__(self, run, kind):
        return self.along(run, kind)[-1][1]

    def get(self, run, kind):
        known = run in experiments.all_runs(TINY) and run != experiments.REFERENCE
        return self(run, kind) if known else None

    def along(self, run, kind):
        rng = np.random.default_rng([sum(map(ord, run)), self._seed])
        return [(epoch, getattr(self, kind)(rng)) for epoch in (0.5, 2.0)]

    @staticmethod
    def corruption(rng):
        values = {"spearman": rng.uniform(-1, 1, 18), "pearson": rng.uniform(-1, 1, 18)}
        values["auroc"] = rng.uniform(0, 1, 18)
        found = {key: dict(zip(CORRUPTIONS, v.tolist(), strict=True)) for key, v in values.items()}
        single = {"spearman": -0.1, "interval": [-0.2, 0.0]}
        found["per_image"] = dict.fromkeys(CORRUPTIONS, single)
        means = {"spearman": -0.5, "pearson": -0.4, "per_image": -0.1, "auroc": 0.6}
        found |= {f"mean_{key}": value for key, value in means.items()}
        found["interval"] = [-0.15, -0.05]
        return {**found, "scores": {"familiarity": found, "confidence": found}}

    @classmethod
    def controls(cls, rng):
        names = ("feature_norm", "agreement", "softmax")
        return {"scores": {name: cls.corruption(rng) for name in names}}

    @staticmethod
    def ood(rng):
        names = (*reports._DETECTORS, *reports._OWN, *reports._HEAD)
        auroc = [{name: rng.random() for name in names} for _ in range(2)]
        return {"auroc": auroc, "train_images": 1000}

    @staticmethod
    def accuracy(rng):
        return {"linear": rng.random(), "knn": rng.random(), "neighbors": 20}

    @staticmethod
    def failure(rng):
        kappa, wrong = rng.random(50), rng.random(50) < 0.2
        groups = {"kappa_correct": kappa[~wrong].tolist(), "kappa_wrong": kappa[wrong].tolist()}
        names = ("softmax", "feature_norm", "agreement", "kappa", "familiarity", "confidence")
        scores = {name: rng.random() for name in names}
        return {**compare(kappa, wrong), "auroc": 0.7, "scores": scores, **groups}

    @staticmethod
    def examples(rng):
        def row():
            return measure._shown(rng.integers(0, 256, (6, 8, 8, 3), np.uint8), rng.random(6))

        return {
            "most": row(),
            "least": row(),
            "corrupted": {name: row() for name in measure.SHOWN},
        }

    @staticmethod
    def spread(rng):
        return {
            "dimension": 128,
            "quantiles": list(measure.QUANTILES),
            "conditions": ["clean", "fog", "snow", "frost", "glass_blur"],
            **measure._shown(rng.integers(0, 256, (5, 8, 8, 3), np.uint8), np.arange(5.0)[::-1]),
        }


# Rows of the table, and a number of the paper that stands in it (as Markdown writes it).
EXPECTED = {
    "table1": (19, "-0.486"),
    "pearson": (19, "0.648"),
    "table2": (6, "0.8162"),
    "table3": (6, "-0.846"),
    "table4": (4, "-0.901"),
    "table5": (3, "-0.908"),
    "figure1": (10, "0.313"),  # not the paper's: A_3(1) = coth 1 - 1
    "figure2": (15 + 18, "6.42e-20"),
    "figure3": (19, "-0.429"),
    "figure4": (8, "0.855"),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    workspace = tiny_workspace(tmp_path_factory.mktemp("outputs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plots.STYLE, "figure.dpi", 30)  # quicker
        return {
            name: reports.write(experiment, workspace, [Invented()]).paths
            for name, experiment in EXPERIMENTS.items()
        }


@pytest.mark.parametrize("name", EXPECTED)
def test_every_output_has_the_papers_numbers_and_its_budget(name, written):
    page, table, latex, picture, *further = written[name]
    endings = ("md", "csv", "tex", "png")
    assert [path.name for path in written[name][:4]] == [f"{name}.{end}" for end in endings]
    assert all(path.exists() and path.name.startswith(f"{name}_") for path in further)
    count, printed = EXPECTED[name]
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == count
    assert {row["budget"] for row in rows} == {"tiny"}
    assert {row["data"] for row in rows} == {"digits"}
    text = page.read_text()
    assert printed in text
    assert "(budget tiny)" in text.splitlines()[0]
    assert "20 test images, seed 0; resnet10 of width 2 and 1 epochs, unless" in text
    assert "1000 epochs of ResNet-50" in text
    first, *others = [block for block in text.split("\n\n") if block.startswith("|")]
    lines = first.splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == count + 2
    tables = latex.read_text().split("\n\n")
    assert tables[0].count(r" \\") == count + 1
    assert len(tables) == 1 + len(others)
    assert matplotlib.image.imread(picture).std() > 0.01


def test_means_are_of_the_rows_above(written):
    with written["table1"][1].open() as file:
        *rows, mean = csv.DictReader(file)
    for column in ("MC dropout (+)", "paper: SimCLR + vMF (-)"):
        values = [float(row[column]) for row in rows]
        assert float(mean[column]) == pytest.approx(np.mean(values), abs=1e-5)


def test_rows_that_the_paper_lacks_are_in_table_1(written):
    page, table, _, _, means, auroc, images = written["table1"]
    with table.open() as file:
        columns = set(next(csv.DictReader(file)))
    missing = experiments.FURTHER[experiments.REFERENCE, "corruption", ""]
    further = set(experiments.FURTHER.values()) - {missing}
    assert further < columns
    assert missing not in columns
    with means.open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert rows[missing]["Spearman"] == "not given"
    assert {float(rows[name]["AUROC"]) for name in further} == {0.6}
    assert {(row["low"], row["high"]) for row in rows.values()} == {("-0.15", "-0.05"), ("", "")}
    assert "not given" in page.read_text()
    with auroc.open() as file:
        assert len(list(csv.DictReader(file))) == 19
    with images.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 18 * (len(experiments.BASELINES) + len(further))
    assert {(row["per image"], row["low"], row["high"]) for row in rows} == {("-0.1", "-0.2", "0")}


def test_stand_ins_are_called_so(written):
    page, table, *_ = written["table2"]
    assert "stand-ins" in page.read_text()
    with table.open() as file:
        first = next(csv.DictReader(file))
    assert (first["familiar"], first["foreign"]) == ("digits", "digits_turned")
    assert first["the paper's pair"] == "cifar10, cifar100"
    pair = paper.TABLE_2["cifar10", "cifar100"]
    assert float(first["paper: F_res + kappa"]) == pair["f_res+kappa"]


def test_figure_4_has_a_correlation_only_where_there_is_a_kappa(written):
    with written["figure4"][1].open() as file:
        rows = list(csv.DictReader(file))
    known = {row["method"]: bool(row["mean Spearman"]) for row in rows}
    assert known["SimCLR + vMF"]
    assert known["MC-InfoNCE"]
    assert not known["SimCLR (deterministic)"]
    assert [row["epoch"] for row in rows if row["method"] == "MC-InfoNCE"] == ["0.5", "2"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_several_seeds_give_mean_and_standard_deviation(name, tmp_path, monkeypatch):
    monkeypatch.setitem(plots.STYLE, "figure.dpi", 30)
    seeds = [Invented(seed) for seed in range(3)]
    workspace = tiny_workspace(tmp_path, seeds=3)
    written = reports.write(EXPERIMENTS[name], workspace, seeds)
    assert max(map(len, written.text.splitlines())) <= 80
    if name != "table1":
        return
    values = [found("simclr-dropout", "corruption")["spearman"]["fog"] for found in seeds]
    with written.paths[1].open() as file:
        rows = {row["corruption"]: row for row in csv.DictReader(file)}
    assert float(rows["fog"]["MC dropout (+)"]) == pytest.approx(np.mean(values), rel=1e-5)
    deviation = float(rows["fog"]["MC dropout (+), sd"])
    assert deviation == pytest.approx(np.std(values, ddof=1), rel=1e-5)
    assert "paper: MC dropout (+), sd" not in rows["fog"]
    shown = f"{np.mean(values):.3f} ± {deviation:.3f}"
    assert shown in written.paths[0].read_text()
    assert shown in written.text
    assert shown in written.paths[2].read_text()
    # The mean over corruptions varies between seeds, too.
    means = [np.mean([*found("simclr", "corruption")["spearman"].values()]) for found in seeds]
    assert float(rows["mean"]["ensemble (+), sd"]) == pytest.approx(np.std(means, ddof=1), rel=1e-4)


@pytest.mark.parametrize(("name", "seeds"), [("table4", 1), ("table1", 3)])
def test_what_was_not_repeated_has_one_seed(name, seeds, tmp_path):
    workspace = tiny_workspace(tmp_path, seeds=3, repeat=("mc_infonce",))
    items = make_plan(workspace, EXPERIMENTS[name]).measurements
    for item in items:
        item.keep({"seed": item.workspace.seed}, seconds=1.0)
    found = reports.of_seeds(items, workspace)
    assert len(found) == seeds
    assert [each("simclr_vmf", "corruption")["seed"] for each in found] == [0] * seeds
    end = "seeds 0 to 2;" if seeds > 1 else "seed 0;"
    assert f"test images, {end}" in workspace.description(seeds)


def test_the_papers_numbers_are_drawn_on_its_own_data_only(tmp_path, monkeypatch):
    drawn = []
    draw = figures.draw_bars
    monkeypatch.setattr(figures, "draw_bars", lambda *a, **k: drawn.append(k) or draw(*a, **k))
    for budget in (TINY, dataclasses.replace(TINY, sets=CPU.sets)):
        workspace = Workspace(budget=budget, directory=tmp_path)
        reports.write(EXPERIMENTS["table2"], workspace, [Invented()])
    assert [each["paper"] for each in drawn] == [False, True]
