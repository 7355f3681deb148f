"""The opponent computes what tfvmf does. PyTorch runs in a process of its own, as in the bench."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.side_by_side import flops
from benchmarks.side_by_side.problem import Problem
from tfvmf import losses, models
from tfvmf.config import default_config

ROOT = pathlib.Path(__file__).parents[2]
PROBLEMS = (
    Problem(width=16),
    Problem(backbone="resnet50", width=8, dimension=32, hidden=64, image_size=20),
    Problem(backbone="convnet8", width=4, dimension=16, hidden=16, image_size=20),
    Problem(backbone="resnet10", width=2, dimension=8, hidden=8, image_size=8, batch=8),
)
THEIRS = """
import json, sys
import numpy as np, torch
from benchmarks.side_by_side import torch_simclr
from benchmarks.side_by_side.problem import Problem

given = {name: torch.tensor(value) for name, value in np.load(sys.argv[1]).items()}
problems = [Problem(**settings) for settings in json.loads(sys.argv[2])]
nets, init = [], torch_simclr.ProbabilisticModel.__init__

def remember(net, problem):
    init(net, problem)
    nets.append(net)

torch_simclr.ProbabilisticModel.__init__ = remember
for problem in problems:
    torch_simclr.ProbabilisticModel(problem)
for variant in ("paper", "channels_last"):
    torch_simclr.train_step(variant, **problems[-1].settings())(1)
(mu_1, mu_2), (kappa_1, kappa_2) = given["mu"], given["kappa"]
print(json.dumps({
    "loss": float(torch_simclr.loss_of(mu_1, kappa_1, mu_2, kappa_2)),
    "shapes": [[list(p.shape) for p in net.parameters()] for net in nets[:-2]],
    "trained": [[float(p.detach().norm()) for p in net.parameters()] for net in nets[-2:]],
}))
"""


@pytest.fixture(scope="module")
def embeddings():
    rng = np.random.default_rng(0)
    mu = rng.normal(size=(2, 32, 16)).astype(np.float32)
    mu[1] += mu[0]  # as views of the same images
    mu /= np.linalg.norm(mu, axis=-1, keepdims=True)
    return {"mu": mu, "kappa": rng.uniform(0.1, 2.0, size=(2, 32)).astype(np.float32)}


@pytest.fixture(scope="module")
def theirs(embeddings, tmp_path_factory):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is an extra: `make bench` installs it")
    path = tmp_path_factory.mktemp("torch") / "embeddings.npz"
    np.savez(path, **embeddings)
    settings = json.dumps([problem.settings() for problem in PROBLEMS])
    command = [sys.executable, "-c", THEIRS, str(path), settings]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def encoder_of(problem):
    return models.build_encoder(
        problem.backbone,
        width=problem.width,
        dimension=problem.dimension,
        hidden=problem.hidden,
    )


def test_the_losses_are_equal(theirs, embeddings):
    mu, kappa, config = embeddings["mu"], embeddings["kappa"], default_config()
    cosine = losses.cosine(mu[0], mu[1])
    terms = losses.concentration_terms([cosine, cosine], [*tf.constant(kappa)])
    contrastive = losses.nt_xent(mu[0], mu[1], temperature=config.simclr.temperature)
    ours = contrastive + tf.add_n(list(terms.values()))
    assert theirs["loss"] == pytest.approx(float(ours), abs=1e-5)


@pytest.mark.parametrize("number", range(len(PROBLEMS)), ids=lambda i: PROBLEMS[i].network)
def test_the_networks_have_the_same_weights(theirs, number):
    ours = [tuple(v.shape) for v in encoder_of(PROBLEMS[number]).trainable_variables]
    # Kernels are [out, in, h, w] there and [h, w, in, out] here, matrices [out, in] and [in, out].
    shapes = [tuple(shape[2:] + shape[1::-1]) for shape in theirs["shapes"][number]]
    assert sorted(shapes) == sorted(ours)
    assert sum(map(np.prod, shapes)) == sum(map(np.prod, ours))


def test_the_layout_in_memory_changes_nothing(theirs):
    np.testing.assert_allclose(*theirs["trained"], rtol=1e-3)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.network)
def test_operations_are_those_of_the_graph(problem):
    shape = (1, problem.image_size, problem.image_size, 3)
    traced = tf.function(encoder_of(problem)).get_concrete_function(tf.TensorSpec(shape))
    total = 0
    for op in traced.graph.get_operations():
        if op.type in ("Conv2D", "MatMul"):
            kernel, output = op.inputs[1].shape, op.outputs[0].shape
            total += 2 * int(np.prod(kernel)) * int(np.prod(output[1:-1]))
    assert flops.forward(problem) == total


def test_a_resnet_18_of_width_64_takes_what_is_published():
    """0.56 billion multiplications and additions for a CIFAR image, without the heads."""
    problem = Problem(width=64, hidden=1, dimension=2)
    assert flops.forward(problem) / 2 == pytest.approx(0.56e9, rel=0.01)
