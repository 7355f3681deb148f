"""One TensorFlow for all tests: quiet, with four logical devices for what replicas compute."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tfvmf  # isort: skip # noqa: F401 # before TensorFlow: it says which kernels to use
import numpy as np
import pytest
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    os.environ["TFVMF_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def two_replicas():
    # One for all tests: TensorFlow numbers the collectives of each strategy from 0, and a second
    # strategy on the same devices would meet the shapes of the first.
    return tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
