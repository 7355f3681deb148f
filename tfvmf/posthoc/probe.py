"""A linear probe: predicts classes from features, with probabilities.

Multinomial logistic regression on standardized features, minimized by L-BFGS:

    L(W, b) = mean over n of cross entropy(y_n, softmax(x_n W + b)) + l2 / 2 |W|^2

This implementation tries a path of penalties in seconds for 50,000 x 128; scikit-learn takes half a
minute for a single `l2`. A run directory keeps its probe in `probe.npz`.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.optimize
import scipy.special
import tensorflow as tf

from tfvmf import files
from tfvmf.errors import UserError

FILE = "probe.npz"  # in a run directory

# From strong to weak: each solution is a good start for the next.
PENALTIES = tuple(float(10.0**exponent) for exponent in np.arange(-1.0, -6.1, -0.5))
_PATIENCE = 3
_LEAST = 20  # minimum number of labeled images to fit a temperature

Solution = tuple[np.ndarray, np.ndarray]  # weights [F, K], bias [K]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LinearProbe:
    """A fitted classifier of raw features.

    Attributes:
        weights: float32 [F, K].
        bias: float32 [K].
        classes: The labels [K] of the columns.
        l2: The chosen penalty.
        path: Held-out cross entropy of each penalty tried.
        names: The names of the classes, or () if they have none.
        temperature: Divides the logits.
        step: The encoder's training step.
        source: Description of the training images.
        calibration: Description of the images that gave the temperature, if any.
    """

    weights: np.ndarray
    bias: np.ndarray
    classes: np.ndarray
    l2: float = 0.0
    path: dict[float, float] = dataclasses.field(default_factory=dict)
    names: Sequence[str] = ()
    temperature: float = 1.0
    step: int = 0
    source: str = ""
    calibration: str = ""

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Labels [N] of features [N, F]."""
        return self.classes[(features @ self.weights + self.bias).argmax(axis=1)]

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Softmax [N, K] of features [N, F], in the order of `classes`."""
        logits = (features @ self.weights + self.bias) / np.float32(self.temperature)
        return scipy.special.softmax(logits, axis=1)

    def __call__(self, features: tf.Tensor, *, index: bool = False) -> dict[str, tf.Tensor]:
        """Features [B, F] -> `class` string (or int32 `index`) and `class_probability` [B]."""
        logits = (tf.matmul(features, self.weights) + self.bias) / self.temperature
        chosen = tf.argmax(logits, axis=1, output_type=tf.int32)
        names = tf.constant([name.encode() for name in self.names], tf.string)
        return {
            "class": chosen if index else tf.gather(names, chosen),
            "class_probability": tf.reduce_max(tf.nn.softmax(logits), axis=1),
        }

    def calibrate(self, features: np.ndarray, labels: np.ndarray, source: str) -> "LinearProbe":
        """Returns a copy with the best temperature for unseen images, if at least 20 are usable."""
        known = np.isin(labels, self.classes)
        if known.sum() < _LEAST:
            return self
        logits = features[known] @ self.weights + self.bias
        chosen = np.arange(len(logits)), np.searchsorted(self.classes, labels[known])

        def cross_entropy(log_temperature: float) -> float:
            scaled = logits / np.exp(log_temperature)
            return -float(scipy.special.log_softmax(scaled, axis=1)[chosen].mean())

        found = scipy.optimize.minimize_scalar(cross_entropy, bounds=(-4, 4), method="bounded")
        told = f"{len(logits):,} images of {source}"
        return dataclasses.replace(self, temperature=float(np.exp(found.x)), calibration=told)

    def describe(self) -> dict[str, Any]:
        """The classes and the training images, for a card."""
        known = ("source", "calibration", "temperature")
        return {"names": list(self.names), **{name: getattr(self, name) for name in known}}

    def save(self, workdir: str | os.PathLike[str]) -> None:
        """Writes `probe.npz` atomically, as plain arrays."""
        values: dict[str, Any] = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "path"
        }
        with files.replacing(pathlib.Path(workdir) / FILE) as file:
            np.savez(file, allow_pickle=False, **values)


def load_probe(workdir: str | os.PathLike[str], *, step: int | None = None) -> LinearProbe | None:
    """The probe in a run directory, or None if there is none (for `step`); see `judge.load`."""
    path = pathlib.Path(workdir).expanduser() / FILE
    if not path.is_file():
        return None
    with files.arrays(path) as values:
        stored: dict[str, Any] = {name: values[name] for name in ("weights", "bias", "classes")}
        stored |= {name: float(values[name]) for name in ("l2", "temperature")}
        stored |= {name: str(values[name]) for name in ("source", "calibration")}
        names, step_then = tuple(map(str, values["names"])), int(values["step"])
        probe = LinearProbe(names=names, step=step_then, **stored)
        count, numbers = len(probe.names), (probe.weights, probe.bias, probe.temperature)
        shapes = [probe.weights.shape[1:], probe.bias.shape, probe.classes.shape]
        if shapes != [(count,)] * 3 or probe.classes.dtype.kind != "i" or not probe.temperature > 0:
            raise ValueError(f"{count} names of classes, and arrays of the shapes {shapes}")
        if not all(np.isfinite(np.asarray(value, np.float32)).all() for value in numbers):
            raise ValueError("it holds numbers that are not finite")
    return probe if step in (None, probe.step) else None


def require_probe(workdir: str | os.PathLike[str], *, step: int) -> LinearProbe:
    """The probe of a run at a step; a UserError says how to get a missing one."""
    probe = load_probe(workdir)
    command = f"tfvmf evaluate {os.fspath(workdir)} --suite=probe"
    if probe is None:
        raise UserError(
            f"{os.fspath(workdir)} has no probe: run `{command}` first, which needs labeled data"
        )
    if probe.step != step:
        raise UserError(
            f"the probe of {os.fspath(workdir)} is of step {probe.step}, not of step {step}: run "
            f"`{command} --checkpoint=step-{step}` first"
        )
    return probe


def fit_linear(
    features: np.ndarray, labels: np.ndarray, *, held_out: float = 0.1, seed: int = 0
) -> LinearProbe:
    """Fits a probe to features [N, F], not standardized, and labels [N].

    Chooses the penalty with the least cross entropy on a held-out share, which is less noisy than
    accuracy. Stops after three weaker penalties in a row that were no better.
    """
    mean, scale = features.mean(axis=0), features.std(axis=0)
    scale[scale == 0] = 1.0  # a constant feature
    standard = (features - mean) / scale
    classes, targets = np.unique(labels, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    judges, fitted = np.split(order, [max(1, round(held_out * len(labels)))])
    path, l2, start = _try_penalties(
        Problem(standard[fitted], targets[fitted], len(classes)),
        Problem(standard[judges], targets[judges], len(classes)),
    )
    weights, bias, _ = Problem(standard, targets, len(classes)).solve(l2, start)
    weights /= scale[:, None]
    return LinearProbe(
        weights=weights.astype(np.float32),
        bias=(bias - mean @ weights).astype(np.float32),
        classes=classes,
        l2=l2,
        path=path,
    )


def _try_penalties(
    fitted: "Problem", judges: "Problem"
) -> tuple[dict[float, float], float, Solution]:
    """Held-out cross entropies {l2: entropy}, the best penalty, and its solution."""
    path: dict[float, float] = {}
    solutions: list[Solution] = []
    for l2 in PENALTIES:
        start = solutions[-1] if solutions else None
        weights, bias, _ = fitted.solve(l2, start, tolerance=1e-4)
        solutions.append((weights, bias))
        path[l2] = judges.cross_entropy(weights, bias)[0]
        best = int(np.argmin(list(path.values())))
        if len(path) - best > _PATIENCE:
            break
    return path, PENALTIES[best], solutions[best]


class Problem:
    """The loss on one set of examples, to be minimized for several penalties.

    Features of a network are strongly correlated, and plain L-BFGS needs hundreds of steps. At
    W = 0 the Hessian is about S / K + l2 I with S = X'X / N = V diag(d) V'. Minimizing over U, with
    W = V diag(d / K + l2)^(-1/2) U, makes it close to the identity: tens of steps.
    """

    def __init__(self, features: np.ndarray, targets: np.ndarray, classes: int) -> None:
        self._shape = (features.shape[1], classes)
        self._features = features.astype(np.float32)
        self._chosen = np.arange(len(targets)), targets

    @functools.cached_property
    def _curvature(self) -> tuple[np.ndarray, np.ndarray]:
        """The eigenvalues [F] and eigenvectors [F, F], in columns, of S / K."""
        covariance = (self._features.T @ self._features).astype(np.float64) / len(self._features)
        values, vectors = np.linalg.eigh(covariance)
        return np.maximum(values, 0.0) / self._shape[1], vectors

    def cross_entropy(
        self, weights: np.ndarray, bias: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """The mean cross entropy, and its gradients in weights [F, K] and bias [K]."""
        logits = self._features @ weights.astype(np.float32) + bias.astype(np.float32)
        logs = scipy.special.log_softmax(logits, axis=1)
        value = -float(logs[self._chosen].mean(dtype=np.float64))
        by_logits = np.exp(logs)
        by_logits[self._chosen] -= 1.0
        by_logits /= len(logs)
        return value, self._features.T @ by_logits, by_logits.sum(axis=0)

    def solve(
        self, l2: float, start: Solution | None = None, *, tolerance: float = 1e-5
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Weights [F, K], bias [K] and loss at the minimum for one penalty above 0, in float64.

        Stops when no entry of the gradient in U exceeds `tolerance`.
        """
        size, classes = self._shape
        curvature, vectors = self._curvature
        stretch = np.sqrt(curvature + l2)
        forward = vectors / stretch  # U -> W
        bias_scale = np.sqrt(classes)

        def unpack(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            inner = point[: size * classes].reshape(size, classes)
            return forward @ inner, bias_scale * point[size * classes :]

        def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
            weights, bias = unpack(point)
            entropy, by_weights, by_bias = self.cross_entropy(weights, bias)
            by_inner = forward.T @ (by_weights + l2 * weights)
            value = entropy + 0.5 * l2 * float((weights**2).sum())
            return value, np.concatenate([by_inner.ravel(), bias_scale * by_bias])

        point = np.zeros(size * classes + classes)
        if start is not None:
            inner = stretch[:, None] * (vectors.T @ start[0])
            point = np.concatenate([inner.ravel(), start[1] / bias_scale])
        # Where the loss is flat, a line search sees only float32 rounding.
        options = {"maxiter": 500, "gtol": tolerance, "ftol": 1e-4 * tolerance}
        found = scipy.optimize.minimize(loss, point, jac=True, method="L-BFGS-B", options=options)
        return *unpack(found.x), float(found.fun)
