import importlib.util
import pathlib

import pytest

from tfvmf.config import default_config, differences, flatten, validate
from tfvmf.errors import UserError
from tfvmf.training.inputs import augmentation_from_config

CONFIGS = sorted((pathlib.Path(__file__).parents[1] / "configs").glob("[!_]*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_valid_and_tells_its_command(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    validate(config)
    augmentation_from_config(config)
    assert set(flatten(config)) == set(flatten(default_config()))
    assert config.name == path.stem
    assert "    tfvmf train" in module.__doc__


def test_differences_are_named_with_old_and_new():
    old, new = default_config(), default_config()
    new.model.width = 8
    new.epochs = 3
    assert differences(old, new) == {"epochs": (100, 3), "model.width": (64, 8)}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mc_infonce.num_samples", 0),
        ("mc_infonce.aggregation", "max"),
        ("mc_infonce.temperature", 0.0),
        ("concentration.regularizer", "l1"),
        ("concentration.initial", -1.0),
        ("data.image_size", 4),
        ("data.view_share", 0.2),
        ("data.view_share", 1.1),
        ("monitor.neighbors", 0),
        ("checkpoint.keep", 0),
        ("precision", "float16"),
        ("swav.queue_length", 100),
        ("swav.sinkhorn_epsilon", 0.0),
        ("byol.momentum", 1.0),
        ("model.dropout", 1.0),
        ("ensemble.num_members", 0),
        ("ensemble.kind", "bagging"),
        ("data.memory_limit_gib", 1e15),
    ],
)
def test_values_out_of_range_are_named(key, value):
    config = default_config()
    config.update_from_flattened_dict({key: value})
    with pytest.raises(UserError, match=f"--config.{key}={value}"):
        validate(config)
