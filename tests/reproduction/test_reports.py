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
from tfvmf.reproduction import figures, measure, reports
from tfvmf.reproduction.experiments import CPU, EXPERIMENTS
from tfvmf.reproduction.plan import Workspace


class Invented:
    """Results of the right form, other for each run and seed."""

    def __init__(self, seed=0):
        self._seed = seed

    def __call__(self, run, kind):
        return self.along(run, kind)[-1][1]

    def along(self, run, kind):
        rng = np.random.default_rng([sum(map(ord, run)), self._seed])
        return [(epoch, getattr(self, kind)(rng)) for epoch in (0.5, 2.0)]

    @staticmethod
    def corruption(rng):
        values = {"spearman": rng.uniform(-1, 1, 18), "pearson": rng.uniform(-1, 1, 18)}
        found = {key: dict(zip(CORRUPTIONS, v.tolist(), strict=True)) for key, v in values.items()}
        return {**found, "mean_spearman": -0.5, "mean_pearson": -0.4, "mean_per_image": -0.1}

    @staticmethod
    def ood(rng):
        names = ("f_res", "kappa", "f_res+kappa")
        return {"auroc": [dict(zip(names, rng.random(3).tolist(), strict=True)) for _ in range(2)]}

    @staticmethod
    def accuracy(rng):
        return {"linear": rng.random(), "knn": rng.random(), "neighbors": 20}

    @staticmethod
    def failure(rng):
        kappa, wrong = rng.random(50), rng.random(50) < 0.2
        groups = {"kappa_correct": kappa[~wrong].tolist(), "kappa_wrong": kappa[wrong].tolist()}
        return {**compare(kappa, wrong), "auroc": 0.7, **groups}

    @staticmethod
    def examples(rng):
        def row():
            images = rng.integers(0, 256, (6, 8, 8, 3)).tolist()
            return {"images": images, "kappa": rng.random(6).tolist()}

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
            "kappa": [4.5, 4.0, 3.0, 1.0, 0.0],
            "conditions": ["clean", "fog", "snow", "frost", "glass_blur"],
            "images": rng.integers(0, 256, (5, 8, 8, 3)).tolist(),
        }


# Rows of the table, and a number of the paper that stands in it (as Markdown writes it).
EXPECTED = {
    "table1": (19, "-0.486"),
    "pearson": (19, "0.648"),
    "table2": (6, "0.8162"),
    "table3": (4, "-0.846"),
    "table4": (4, "-0.901"),
    "table5": (3, "-0.908"),
    "figure1": (10, "0.313"),  # not the paper's: A_3(1) = coth 1 - 1
    "figure2": (9 + 18, "6.42e-20"),
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
    page, table, latex, picture = written[name]
    endings = ("md", "csv", "tex", "png")
    assert [path.name for path in written[name]] == [f"{name}.{end}" for end in endings]
    count, printed = EXPECTED[name]
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == count
    assert {row["budget"] for row in rows} == {"tiny"}
    assert {row["data"] for row in rows} == {"digits"}
    text = page.read_text()
    assert printed in text
    assert "(budget tiny)" in text.splitlines()[0]
    assert "1 epochs, 20 test images" in text
    assert "1000 epochs of ResNet-50" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == count + 2
    assert latex.read_text().count(r" \\") == count + 1
    assert matplotlib.image.imread(picture).std() > 0.01


def test_means_are_of_the_rows_above(written):
    with written["table1"][1].open() as file:
        *rows, mean = csv.DictReader(file)
    for column in ("MC dropout (+)", "paper: SimCLR + vMF (-)"):
        values = [float(row[column]) for row in rows]
        assert float(mean[column]) == pytest.approx(np.mean(values), abs=1e-5)


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


def test_the_papers_numbers_are_drawn_on_its_own_data_only(tmp_path, monkeypatch):
    drawn = []
    draw = figures.draw_bars
    monkeypatch.setattr(figures, "draw_bars", lambda *a, **k: drawn.append(k) or draw(*a, **k))
    for budget in (TINY, dataclasses.replace(TINY, sets=CPU.sets)):
        workspace = Workspace(budget=budget, directory=tmp_path)
        reports.write(EXPERIMENTS["table2"], workspace, [Invented()])
    assert [each["paper"] for each in drawn] == [False, True]
