"""Nothing here depends on what Keras, TensorFlow, TFP or TFDS keep for themselves."""

import ast
import importlib
import pathlib

import keras
import pytest
import tensorflow_probability as tfp
from helpers import private_names

import tfvmf

ROOT = pathlib.Path(tfvmf.__file__).parents[1]
PACKAGE = sorted((ROOT / "tfvmf").rglob("*.py"))
PROGRAMS = sorted(path for path in (ROOT / "bin").iterdir() if path.is_file())
FILES = [*PACKAGE, *PROGRAMS, *sorted((ROOT / "configs").glob("*.py"))]


def test_no_file_uses_a_private_name():
    ours = private_names.class_names(FILES) | {path.stem for path in PROGRAMS}
    found = [
        f"{path.relative_to(ROOT)}:{use}"
        for path in FILES
        for use in private_names.in_source(path.read_text(), ours=ours)
    ]
    assert len(FILES) > 80
    assert found == []


def test_no_class_uses_or_overrides_what_its_base_keeps_private():
    found, looked_at = [], 0
    for path in PACKAGE:
        tree = ast.parse(path.read_text())
        names = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.bases]
        if names and path.stem != "on_ray":  # which needs an extra
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
            for name in names:
                cls = getattr(module, name)
                looked_at += issubclass(cls, keras.layers.Layer | tfp.distributions.Distribution)
                found += private_names.in_class(cls, package="tfvmf")
    assert looked_at > 5
    assert found == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from keras.src import ops", "keras.src.ops"),
        ("import tensorflow.python.eager", "tensorflow.python.eager"),
        ("from keras import _tf_keras", "keras._tf_keras"),
        ("head._inbound_nodes", "head._inbound_nodes"),
        ("super()._backend_update_step(x)", "super()._backend_update_step"),
        ("getattr(head, '_inbound_nodes')", "getattr(head, '_inbound_nodes')"),
        ("a.b._c = 1", "a.b._c"),
        ("self._mine + cls._mine + Ours._mine + x.__name__ + tuple._replace(a=1)", None),
        ("import _mine", None),
        ("_, x = y\nfor _ in x: pass", None),
    ],
)
def test_what_counts_in_a_file(source, found):
    expected = [] if found is None else [f"1: {found}"]
    assert private_names.in_source(source, ours=frozenset({"Ours", "_mine"})) == expected


class Reads(keras.optimizers.Adam):
    def moments(self):
        return self._momentums


class Overrides(keras.optimizers.Adam):
    def _apply_weight_decay(self, variables):
        pass


class Assigns(keras.layers.Layer):
    def __init__(self):
        self._dtype_policy = None


class OfNobody(keras.layers.Layer):
    def call(self, x):
        return self._nowhere + x


class Good(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self._own = 1

    def call(self, x):
        return self._twice(x) + self._own

    def _twice(self, x):
        return 2 * x


class Heir(Good):
    def call(self, x):
        return self._own * x


class Hook(tfp.distributions.VonMisesFisher):
    def _log_prob(self, x):
        return x


class NoHook(tfp.distributions.VonMisesFisher):
    def _log_normalization(self):
        self._parameters = {}


@pytest.mark.parametrize(
    ("cls", "found"),
    [
        (Reads, ["_momentums"]),
        (Overrides, ["_apply_weight_decay"]),
        (Assigns, ["_dtype_policy"]),
        (OfNobody, ["_nowhere"]),
        (Good, []),
        (Heir, []),
        (Hook, []),
        (NoHook, ["_log_normalization", "_parameters"]),
    ],
)
def test_what_counts_in_a_class(cls, found):
    package = cls.__module__.partition(".")[0]
    assert private_names.in_class(cls, package=package) == [f"{cls.__name__}.{x}" for x in found]
