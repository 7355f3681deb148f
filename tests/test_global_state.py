"""Importing or calling the library changes nothing that belongs to the whole process."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
# In a process of its own, where nobody has called anything yet; prints what each stage changed.
SCRIPT = """
import json, logging, os, pkgutil, random, signal, sys, warnings

import tfvmf  # before TensorFlow, whose oneDNN variable it sets where it is unset: documented
import keras, matplotlib, matplotlib.figure, numpy as np, tensorflow as tf

matplotlib.use("svg")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(5)
tf.config.experimental.enable_tensor_float_32_execution(False)


def snapshot():
    state = {
        "matplotlib": dict(matplotlib.rcParams),
        "dtype policy": keras.config.dtype_policy().name,
        "float": keras.config.floatx(),
        "data format": keras.config.image_data_format(),
        "tensor float": tf.config.experimental.tensor_float_32_execution_enabled(),
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "eager": tf.config.functions_run_eagerly(),
        "random": random.getstate(),
        "numpy": np.random.get_state(),
        "numpy errors": np.geterr(),
        "numpy printing": np.get_printoptions(),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
        "directory": os.getcwd(),
        "logging": logging.root.level,
        "hook": sys.excepthook,
    }
    # Whoever seeds TensorFlow, or draws from its seed, changes the next number.
    state["tensorflow"] = tf.random.uniform([2]).numpy()
    tf.random.set_seed(5)
    return {name: repr(value) for name, value in state.items()}


def changed(stage):
    before = snapshot()
    stage()
    after = snapshot()
    return sorted(name for name in before if before[name] != after[name])


def imports():
    for module in pkgutil.walk_packages(tfvmf.__path__, "tfvmf."):
        # Ray is an extra, and needed by one module alone.
        if not module.name.endswith(("__main__", "on_ray")):
            __import__(module.name)


def deterministic():
    try:
        tf.random.experimental.Generator.from_non_deterministic_state()
    except RuntimeError:
        return True
    return False

STAGES
print(json.dumps({"changed": found, "deterministic": deterministic()}))
"""


def run(stages, directory):
    """What changed, by stage, and whether TensorFlow is deterministic in the end."""
    script = SCRIPT.replace("STAGES", stages)
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=directory,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_importing_every_module_changes_nothing(tmp_path):
    found = run("found = {'import': changed(imports)}", tmp_path)
    assert found == {"changed": {"import": []}, "deterministic": False}


def test_calling_it_changes_nothing(tmp_path):
    stages = """
from helpers.tiny import tiny_config
from tfvmf import evaluation, serving, training

config = tiny_config(epochs=1)
found = {
    "train": changed(lambda: training.train(config, "run", deterministic=False)),
    "load": changed(lambda: tfvmf.load("run").embed(np.zeros([2, 8, 8, 3], np.uint8))),
    "evaluate": changed(lambda: evaluation.evaluate(evaluation.subject_from_run("run"), "curves")),
    "export": changed(lambda: serving.export_model("run", "models")),
}
"""
    found = run(stages, tmp_path)
    assert found["changed"] == {"train": [], "load": [], "evaluate": [], "export": []}
    assert not found["deterministic"]
