"""What is public: names, docstrings, settings by keyword, configs of all that Keras saves."""

import dataclasses
import importlib
import inspect
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import tfvmf
from tfvmf import losses, models
from tfvmf.data import Augmentation
from tfvmf.training.optimizers import Cycles, Muon

MODULES = sorted(name for name in tfvmf.__all__ if inspect.ismodule(getattr(tfvmf, name)))
# Parameters with a default that say what a call is about and stay positional. All others with a
# default are settings.
POSITIONAL = {
    "tfvmf.config.flatten": {"prefix"},
    "tfvmf.data.load_source": {"split"},
    "tfvmf.evaluation.Uncertainty": {"score"},
    "tfvmf.evaluation.evaluate": {"suites", "options"},
    "tfvmf.evaluation.write_report": {"options"},
    "tfvmf.models.build_backbone": {"name"},
    "tfvmf.models.build_encoder": {"backbone"},
    "tfvmf.training.load_source": {"split"},
}


def public():
    for module in MODULES:
        room = getattr(tfvmf, module)
        for name in getattr(room, "__all__", ()):
            yield f"tfvmf.{module}.{name}", getattr(room, name)


def test_every_room_says_what_is_public():
    assert {"callbacks", "config", "data", "losses", "models", "training", "vmf"} <= {*MODULES}
    for name in MODULES:
        room = importlib.import_module(f"tfvmf.{name}")
        if hasattr(room, "__path__") or name == "callbacks":
            assert room.__all__, f"tfvmf.{name} has no __all__"
        assert room.__doc__
    assert tfvmf.Contrastive is tfvmf.training.Contrastive
    with pytest.raises(AttributeError, match="no attribute 'contrastive'"):
        tfvmf.contrastive  # noqa: B018


def test_everything_public_is_explained():
    found = dict(public())
    assert len(found) > 80
    objects = {name: each for name, each in found.items() if callable(each)}
    assert [name for name, each in objects.items() if not inspect.getdoc(each)] == []


def parameters(each):
    try:
        return inspect.signature(each).parameters.values()
    except (TypeError, ValueError):  # classes of C, type aliases
        return []


def test_settings_are_given_by_name():
    loose = []
    for name, each in public():
        maker = each.__init__ if inspect.isclass(each) else each  # or Keras's, TFP's
        ours = callable(each) and getattr(maker, "__module__", "").startswith("tfvmf.")
        if not ours or dataclasses.is_dataclass(each) or hasattr(each, "_fields"):
            continue  # records are no calls
        loose += [
            f"{name}({parameter.name})"
            for parameter in parameters(each)
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            and parameter.default is not parameter.empty
            and parameter.name not in POSITIONAL.get(name, ())
        ]
    assert loose == []


def encoder():
    return models.build_encoder("resnet10", width=2, dimension=4, hidden=4)


MADE = {
    "Augmentation": lambda: Augmentation(size=9, hue=0.2, seed=3),
    "BatchNorm": lambda: models.BatchNorm(momentum=0.5, affine=False),
    "Certain": lambda: models.ConstantConcentration(),
    "Contrastive": lambda: tfvmf.Contrastive(
        encoder(), augmentation=Augmentation(size=9), settings={"simclr.temperature": 0.2}, seed=4
    ),
    "Convolution": lambda: encoder().get_layer("resnet10").layers[2],
    "Cycles": lambda: Cycles(0.0, 10, warmup_target=0.1, warmup_steps=5),
    "Dropout": lambda: models.Dropout(0.3),
    "Encoder": encoder,
    "Levels": lambda: models.Levels(),
    "MCInfoNCE": lambda: losses.MCInfoNCE(num_samples=3, seed=1),
    "Muon": lambda: Muon(0.02, matrix_decay=0.1),
    "NTXent": lambda: losses.NTXent(temperature=0.1),
    "Pixels": lambda: models.Pixels((None, 8, 8, 1), pixel_type="uint8"),
    "Prototypes": lambda: models.Prototypes(5, queue_length=7),
    "VMFAlignment": lambda: losses.VMFAlignment(regularizer="vmf"),
}


def registered():
    """Names that the package registers with Keras, from its source."""
    pattern = '@keras.saving.register_keras_serializable(package="tfvmf"'
    names = set()
    for path in pathlib.Path(tfvmf.__path__[0]).rglob("*.py"):
        lines = path.read_text().split("\n")
        for position, line in enumerate(lines):
            if line.startswith(pattern):
                given = line.partition('name="')[2].partition('"')[0]
                names.add(given or lines[position + 1].split()[1].partition("(")[0])
    return names


def test_everything_that_keras_saves_is_built_again_from_its_config():
    for name in sorted(registered() & MADE.keys()):
        made = MADE[name]()
        stored = keras.saving.serialize_keras_object(made)
        assert stored["registered_name"] == f"tfvmf>{name}"
        again = keras.saving.deserialize_keras_object(stored)
        assert type(again) is type(made)
        assert again.get_config() == made.get_config(), name
    assert registered() - MADE.keys() <= {"SavedFunction"}  # refers to a directory


@pytest.mark.parametrize(
    "imports", ["import tfvmf.models, keras", "import keras, tfvmf", "import tfvmf"]
)
def test_a_file_loads_in_a_new_process(imports, tmp_path):
    model = encoder()
    model.save(tmp_path / "encoder.keras")
    images = np.linspace(0, 1, 192, dtype=np.float32).reshape(1, 8, 8, 3)
    np.save(tmp_path / "images.npy", images)
    load = "keras.models.load_model('encoder.keras')"
    if imports == "import tfvmf":
        load = "tfvmf.load('encoder.keras').encoder"
    script = f"{imports}, numpy\noutputs = {load}(numpy.load('images.npy'))\n"
    script += "print(outputs['concentration'].numpy()[0])"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(tfvmf.__path__[0]).parent)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    assert float(result.stdout) == pytest.approx(float(model(images)["concentration"][0]), rel=1e-5)
