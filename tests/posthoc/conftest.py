"""Models from elsewhere, for those who fit heads to them."""

import pytest
from helpers.foreign import foreign_cnn


@pytest.fixture(scope="module")
def keras_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("keras") / "cnn.keras"
    foreign_cnn().save(path)
    return path


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "cnn"
    foreign_cnn(outputs="maps").export(path, verbose=False)
    return path
