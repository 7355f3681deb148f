"""docs/architecture.md shows the rooms and the imports that there are, and its examples work."""

import ast
import importlib
import re
import sys

import numpy as np
import pytest
from helpers.tiny import tiny_config

from tfvmf import config, data, evaluation, methods, models, settings
from tfvmf.data import sources
from tools import draw_architecture

PAGE = draw_architecture.PAGE.read_text(encoding="utf-8")


def test_the_page_has_the_table_of_the_real_imports():
    shown = PAGE.partition(draw_architecture.BEGIN)[2].partition(draw_architecture.END)[0]
    assert shown == draw_architecture.table(), "run `python -m tools.draw_architecture`"
    assert f"]({draw_architecture.PICTURE.name})" in PAGE


def test_every_room_is_in_a_layer_and_every_import_points_down():
    height = {
        room: number for number, layer in enumerate(draw_architecture.layers()) for room in layer
    }
    found = draw_architecture.imports()
    assert found.keys() == height.keys()
    assert len(found["training"]) > 3
    upwards = [
        (room, name) for room in found for name in found[room] if height[name] <= height[room]
    ]
    assert upwards == []


def test_arrows_leave_out_what_a_longer_way_implies(monkeypatch):
    monkeypatch.setattr(draw_architecture, "is_package", lambda room: room != "module")
    found = {
        "top": {"middle", "ground"},
        "middle": {"module"},
        "module": {"ground"},
        "ground": set(),
    }
    edges = draw_architecture.between_packages(found)
    assert edges == {"top": {"middle"}, "middle": {"ground"}, "ground": set()}


def defined_names(path):
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            names |= {target.id} if isinstance(target, ast.Name) else set()
    return names


def test_what_the_page_names_exists():
    pattern = r"`((?:tfvmf|configs|tests|tools|studies|benchmarks|bin|docs)/[\w/.]*)(?::(\w+))?`"
    named = set(re.findall(pattern, PAGE))
    assert len(named) > 25
    for place, name in sorted(named):
        path = draw_architecture.ROOT / place
        assert path.exists(), place
        assert not name or name in defined_names(path), f"{place}:{name}"


def example(path, language="python"):
    """The code block of the page that begins with a comment about that path."""
    (found,) = re.findall(rf"```{language}\n# {re.escape(path)}\n(.*?)```", PAGE, flags=re.DOTALL)
    return found


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Puts an example into the package for the time of a test; returns its module."""
    added = []

    def add_module(path):
        name = path.removesuffix(".py").replace("/", ".")
        package = importlib.import_module(name.rpartition(".")[0])
        (tmp_path / path.rpartition("/")[2]).write_text(example(path))
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        added.append(name)
        return importlib.import_module(name)

    yield add_module
    for name in added:
        package, _, module = name.rpartition(".")
        del sys.modules[name]
        delattr(sys.modules[package], module)


def entry(path):
    """Key and value of the line that the page adds to a registry."""
    before, added = example(path, "diff").splitlines()
    assert f"\n{before[1:]}\n" in (draw_architecture.ROOT / path).read_text()
    return re.fullmatch(r'\+    "?(\w+)"?(?:=|: )"?([\w.:]+)"?,', added).groups()


def test_the_example_of_a_method(add, monkeypatch, rng):
    add("tfvmf/methods/attract.py")
    name, value = entry("tfvmf/methods/__init__.py")
    monkeypatch.setitem(methods.METHODS, name, value)
    changes = tiny_config(**{"method": name, "attract.strength": 2.0})
    config.validate(changes)
    views = [rng.uniform(size=(6, 8, 8, 3)).astype(np.float32) for _ in range(2)]
    terms = methods.build_method(changes).loss(views)
    parts = sum(float(terms[part]) for part in ("pull", "push", "alignment", "penalty"))
    assert float(terms["loss"]) == pytest.approx(parts, rel=1e-5)


def test_the_example_of_a_backbone(add, monkeypatch):
    add("tfvmf/models/tiny.py")
    name, value = entry("tfvmf/settings.py")
    monkeypatch.setitem(settings.BACKBONES, name, value)
    encoder = models.build_encoder(name, width=4, dimension=8, concentration_levels="all")
    outputs = encoder(np.zeros((2, 16, 16, 3), np.float32))
    assert {key: x.shape for key, x in outputs.items()} == {
        "features": (2, 8), "mean_direction": (2, 8), "concentration": (2,),
    }  # fmt: skip


def test_the_example_of_a_suite(add, monkeypatch):
    add("tfvmf/evaluation/suites/spread.py")
    monkeypatch.setitem(evaluation.SUITES, "spread", evaluation.Suite("spread", "Spread", "how?"))
    digits = data.load_source("digits", "test", image_size=8)
    encoder = models.build_encoder("resnet10", width=2, dimension=8)
    subject = evaluation.Subject(encoder=encoder, train=digits, test=digits)
    results = evaluation.spread(subject, max_images=10)
    images = subject.sample(10).test.images() / np.float32(255)
    directions = encoder(images)["mean_direction"].numpy()
    length = np.linalg.norm(directions.mean(axis=0))
    assert results["mean_length"] == pytest.approx(length, rel=1e-4)
    assert results["page"]["headlines"][0][1] == results["mean_length"]


def test_the_example_of_a_source(add, monkeypatch):
    module = add("tfvmf/data/noise.py")
    name, value = entry("tfvmf/data/sources.py")
    assert value == "noise.load"
    monkeypatch.setitem(sources.SOURCES, name, module.load)
    train, test = (data.load_source("noise:5", split, image_size=8) for split in ("train", "test"))
    assert train.images().shape == (5, 8, 8, 3)
    assert (train.images() != test.images()).any()
