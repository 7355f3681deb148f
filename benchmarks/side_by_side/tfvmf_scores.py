"""Our side at inference: forward passes, scores of uncertainty, the suite cifar10c."""

import benchmarks.side_by_side.as_programs  # isort: skip # noqa: F401

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks import corruption_speed
from benchmarks.side_by_side.problem import Problem
from benchmarks.side_by_side.tfvmf_step import config_of
from tfvmf.evaluation import Options, Subject, Uncertainty
from tfvmf.evaluation.suites.cifar10c import correlate, corrupted_images, score_corrupted
from tfvmf.methods import Method, build_method
from tfvmf.training import augmentation_from_config, load_source


def forward(method: str, images: int, **problem: Any) -> Callable[[int], None]:
    """A function that passes a batch that lies in memory so many times through an encoder."""
    sizes = Problem(**problem)
    encoder = _method(sizes, method).encoder
    held = tf.constant(_noise(images, sizes))

    @tf.function
    def bare(batch: tf.Tensor) -> dict[str, tf.Tensor]:
        return encoder(tf.cast(batch, tf.float32) / 255.0, training=False)

    def passes(count: int) -> None:
        for _ in range(count):
            outputs = bare(held)
        outputs["features"].numpy()

    return passes


def score(name: str, images: int, members: int = 5, **problem: Any) -> Callable[[int], None]:
    """A function that measures a score of `evaluation.Uncertainty` on images, so many times."""
    sizes = Problem(**problem)
    changes = {"model.dropout": 0.1} if name == "dropout" else {}
    methods = [
        _method(sizes, "simclr_vmf" if name == "kappa" else "simclr", changes)
        for _ in range(members if name == "ensemble" else 1)
    ]
    uncertainty = Uncertainty(
        [method.encoder for method in methods],
        (name,),
        augmentation=augmentation_from_config(methods[0].config),
    )
    held = _noise(images, sizes)

    def measure(count: int) -> None:
        for _ in range(count):
            uncertainty(held)

    return measure


def suite(images: int, **problem: Any) -> Callable[[int], None]:
    """A function that runs the suite cifar10c so many times, but for its tables and pictures.

    A sample of the test digits, clean and under 18 corruptions at 5 severities.
    """
    sizes = Problem(**problem)
    method = _method(sizes, "simclr_vmf")
    train, test = (load_source(method.config, "digits", split) for split in ("train", "test"))
    subject = Subject(encoder=method.encoder, train=train, test=test).sample(images)
    options = Options()
    corrupted = corrupted_images(subject, options)

    def measure(count: int) -> None:
        for _ in range(count):
            scores = score_corrupted(subject.uncertainty(options), subject.test, corrupted)
            for values in scores["kappa"]:
                correlate(values)

    return measure


def corrupt(images: int, image_size: int) -> Callable[[int], None]:
    """A function that makes the suite's corrupted images of clean ones, so many times."""
    clean = corruption_speed.natural_like(images, image_size)

    def make(count: int) -> None:
        for _ in range(count):
            corruption_speed.corrupt_all(clean)

    return make


def _method(sizes: Problem, name: str, changes: dict[str, Any] | None = None) -> Method:
    keras.utils.set_random_seed(0)
    return build_method(config_of(sizes, name, changes))


def _noise(images: int, sizes: Problem) -> np.ndarray:
    shape = (images, sizes.image_size, sizes.image_size, 3)
    return np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
