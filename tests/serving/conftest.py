"""One small run, exported once, for all tests of serving."""

import dataclasses
import pathlib

import keras
import numpy as np
import pytest
from helpers.untrained import make_run

from tfvmf import inference, posthoc, serving, training


@dataclasses.dataclass(frozen=True)
class Exported:
    """A run, the model made of it, and what the training code says."""

    workdir: pathlib.Path
    directory: pathlib.Path
    path: pathlib.Path
    encoder: keras.Model

    def expected(self, images):
        return inference.Embedder(self.encoder)(images)


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    workdir = make_run(tmp_path_factory.mktemp("run"), **{"data.reserve": 400.0})
    posthoc.fit_judge(workdir)
    directory = tmp_path_factory.mktemp("models")
    path = serving.export_model(workdir, directory, keras_file=True)
    return Exported(workdir, directory, path, training.load_method(workdir)[1].encoder)


@pytest.fixture(scope="session")
def digits(exported):
    """Images that it neither was trained nor calibrated on: uint8 [400, 16, 16, 3]."""
    config, _, _ = training.load_method(exported.workdir)
    return training.load_source(config, "digits", "test").images()


@pytest.fixture
def photographs():
    """Images of another size and shape than in training: uint8 [5, 40, 60, 3]."""
    return np.random.default_rng(2).integers(0, 256, (5, 40, 60, 3), dtype=np.uint8)
