"""What do the features know? Classes, by nearest neighbors and by a linear probe.

The control is k-NN on raw pixels (8x8 block means): an untrained network keeps that much.

The probe is multinomial logistic regression on standardized features, minimized by L-BFGS:

    L(W, b) = mean over n of cross entropy(y_n, softmax(x_n W + b)) + l2 / 2 |W|^2

It is our own because it tries a path of penalties in seconds for 50,000 x 128, where scikit-learn's
takes half a minute for a single `l2`.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import scipy.optimize
import scipy.special
import tensorflow as tf

from tfvmf import neighbors
from tfvmf.data.base import sample_indices
from tfvmf.evaluation import paper
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, Options, Results, Suite
from tfvmf.evaluation.tables import Cell, Table

NEIGHBORS = (200, 20)

# From strong to weak: each solution is a good start for the next.
PENALTIES = tuple(float(10.0**exponent) for exponent in np.arange(-1.0, -6.1, -0.5))
_PATIENCE = 3
_CONTROL = 2000  # images of either split that features and pixels are compared on

Solution = tuple[np.ndarray, np.ndarray]  # weights [F, K], bias [K]


@dataclasses.dataclass(frozen=True)
class LinearProbe:
    """A fitted classifier of raw features.

    Attributes:
        weights: [F, K].
        bias: [K].
        classes: The labels [K] that the columns stand for.
        l2: The penalty that was chosen.
        path: Held-out cross entropy of each penalty that was tried: {l2: entropy}.
    """

    weights: np.ndarray
    bias: np.ndarray
    classes: np.ndarray
    l2: float
    path: dict[float, float]

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Labels [N] of features [N, F]."""
        return self.classes[(features @ self.weights + self.bias).argmax(axis=1)]

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Softmax [N, K] of features [N, F], in the order of `classes`."""
        return scipy.special.softmax(features @ self.weights + self.bias, axis=1)


def fit_linear(
    features: np.ndarray, labels: np.ndarray, *, held_out: float = 0.1, seed: int = 0
) -> LinearProbe:
    """Fits features [N, F], as they come, and labels [N].

    The penalty with the least cross entropy on a held-out share wins, which is much less a matter
    of luck than accuracy. Once three weaker ones in a row were no better, no others are tried.
    """
    mean, scale = features.mean(axis=0), features.std(axis=0)
    scale[scale == 0] = 1.0  # a feature that never moves
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
        weights.astype(np.float32), (bias - mean @ weights).astype(np.float32), classes, l2, path
    )


def _try_penalties(
    fitted: "Problem", judges: "Problem"
) -> tuple[dict[float, float], float, Solution]:
    """Held-out cross entropies {l2: entropy}, the best penalty, and what was fitted with it."""
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
    """The loss on one set of examples, ready to be minimized for several penalties.

    Features of a network are strongly correlated, and plain L-BFGS needs hundreds of steps. At
    W = 0 the Hessian is about S / K + l2 I with S = X'X / N: with S = V diag(d) V' it minimizes
    over U, W = V diag(d / K + l2)^(-1/2) U, where the Hessian is near the identity: tens of steps.
    """

    def __init__(self, features: np.ndarray, targets: np.ndarray, classes: int) -> None:
        self._shape = (features.shape[1], classes)
        self._features = tf.constant(features, tf.float32)
        self._targets = tf.constant(targets, tf.int32)

    @functools.cached_property
    def _curvature(self) -> tuple[np.ndarray, np.ndarray]:
        """The eigenvalues [F] of S / K and the vectors [F, F], in columns."""
        covariance = tf.matmul(self._features, self._features, transpose_a=True).numpy()
        values, vectors = np.linalg.eigh(covariance.astype(np.float64) / len(self._targets))
        return np.maximum(values, 0.0) / self._shape[1], vectors

    def cross_entropy(
        self, weights: np.ndarray, bias: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """The mean cross entropy, and its gradients in weights [F, K] and bias [K]."""
        point = (tf.constant(part, tf.float32) for part in (weights, bias))
        value, *gradients = _cross_entropy(self._features, self._targets, *point)
        by_weights, by_bias = (gradient.numpy() for gradient in gradients)
        return float(value), by_weights, by_bias

    def solve(
        self, l2: float, start: Solution | None = None, *, tolerance: float = 1e-5
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Weights [F, K], bias [K] and loss at the minimum for one penalty above 0, in float64.

        It begins at `start`, or at zeros, and stops when no entry of the gradient in U exceeds
        `tolerance`.
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
        # Where the loss hardly moves, a line search sees only the rounding of float32.
        options = {"maxiter": 500, "gtol": tolerance, "ftol": 1e-4 * tolerance}
        found = scipy.optimize.minimize(loss, point, jac=True, method="L-BFGS-B", options=options)
        return *unpack(found.x), float(found.fun)


@tf.function(
    input_signature=[
        tf.TensorSpec([None, None], tf.float32),
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None, None], tf.float32),
        tf.TensorSpec([None], tf.float32),
    ]
)
def _cross_entropy(
    features: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, bias: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Mean cross entropy, and its gradients in weights and bias."""
    with tf.GradientTape() as tape:
        tape.watch([weights, bias])
        logits = tf.matmul(features, weights) + bias
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        mean = tf.reduce_mean(tf.cast(each, tf.float64))
    return mean, *tape.gradient(mean, [weights, bias])


def linear_probe(subject: Subject) -> LinearProbe:
    """Logistic regression on the features of `subject.train`: fitted once for all suites."""
    labels, _ = subject.labels("probe")
    features = subject.embed(subject.train)["features"]
    return subject.keep("linear_probe", lambda: fit_linear(features, labels))


def _measure(subject: Subject, options: Options) -> Measured:
    """Top-1 accuracy by neighbors, by logistic regression, and by its own classifier if any."""
    train_labels, test_labels = subject.labels("probe")
    bank = subject.embed(subject.train)["features"]
    queries = subject.embed(subject.test)["features"]

    def accuracy(predicted: np.ndarray) -> float:
        return float((predicted == test_labels).mean())

    probe = linear_probe(subject)
    results: dict[str, Any] = {
        f"knn_{k}_accuracy": accuracy(neighbors.classify(queries, bank, train_labels, k=k))
        for k in NEIGHBORS
    }
    results["linear_accuracy"] = accuracy(probe.predict(queries))
    if subject.classifier is not None:
        logits = np.asarray(subject.classifier(queries))
        results["classifier_accuracy"] = accuracy(logits.argmax(axis=1))
    results |= {
        "chance": float(np.bincount(test_labels).max() / len(test_labels)),
        "control": _compare_with_pixels(subject, bank, queries),
        "linear_l2": probe.l2,
        "linear_path": [{"l2": l2, "cross_entropy": value} for l2, value in probe.path.items()],
        "train_images": subject.train.size,
        "features": bank.shape[1],
    }
    return Measured(results)


def _compare_with_pixels(
    subject: Subject, bank: np.ndarray, queries: np.ndarray
) -> dict[str, float]:
    """Accuracy of k-NN on features and on raw pixels, both with the same sample of images."""
    rows = [sample_indices(source, _CONTROL) for source in (subject.train, subject.test)]
    labels, truth = (y[chosen] for y, chosen in zip(subject.labels("probe"), rows, strict=True))
    train, test = (
        block_means(source.take(chosen))
        for source, chosen in zip((subject.train, subject.test), rows, strict=True)
    )
    center = train.mean(axis=0)
    k = min(NEIGHBORS)
    by_features = neighbors.classify(queries[rows[1]], bank[rows[0]], labels, k=k)
    by_pixels = neighbors.classify(test - center, train - center, labels, k=k)
    return {
        "train_images": len(labels),
        "images": len(truth),
        "features": float((by_features == truth).mean()),
        "pixels": float((by_pixels == truth).mean()),
    }


def block_means(images: np.ndarray, *, blocks: int = 8) -> np.ndarray:
    """Mean colors [N, 3 blocks^2] of the blocks of uint8 images [N, H, W, 3]."""
    means = images
    for axis in (1, 2):
        edges = np.linspace(0, images.shape[axis], blocks + 1).astype(int)
        means = np.add.reduceat(means, edges[:-1], axis=axis, dtype=np.float32)
        means /= np.diff(edges).reshape([-1 if each == axis else 1 for each in range(4)])
    return means.reshape(len(images), -1)


def _verdict(results: Results) -> str:
    known, chance, control = results["knn_20_accuracy"], results["chance"], results["control"]

    def clear(low: float, high: float, count: int) -> bool:
        """Whether two accuracies differ by more than two standard errors."""
        mean = (low + high) / 2.0
        return high - low > 2.0 * float(np.sqrt(2.0 * mean * (1.0 - mean) / count))

    if not clear(chance, known, results["images"]):
        return f"k-NN {known:.3f}, chance {chance:.3f}: the features know nothing of the classes"
    if clear(control["features"], control["pixels"], control["images"]):
        return (
            f"k-NN {control['features']:.3f}, raw pixels {control['pixels']:.3f}: the features "
            "know less than the pixels, as those of an untrained network do"
        )
    share = (known - chance) / (1.0 - chance)
    words = "the classes" if share > 0.8 else "much of the classes" if share > 0.5 else "little"
    return f"k-NN {known:.3f}: the features know {words}"


def _blocks(results: Results) -> list[str | Table]:
    """The accuracies, with what the paper says of CIFAR-10 beside."""
    control = results["control"]
    rows: list[list[Cell]] = [
        *([f"{k} nearest neighbors", results[f"knn_{k}_accuracy"]] for k in NEIGHBORS),
        ["linear probe", results["linear_accuracy"]],
        ["the most frequent class", results["chance"]],
    ]
    if "classifier_accuracy" in results:
        rows.append(["its own classifier", results["classifier_accuracy"]])
    if results["data"] == "cifar10":
        share = paper.FAILURE["correct"] / (paper.FAILURE["correct"] + paper.FAILURE["wrong"])
        rows.append(["the paper's classifier (ResNet-50, 1000 epochs)", share])
    return [
        f"Top-1 accuracy from {results['features']} features of {results['train_images']:,} "
        f"training images. The probe's penalty, {results['linear_l2']:.1e}, was chosen on a tenth "
        f"of these. Control: 20 nearest neighbors among {control['train_images']:,} training "
        f"images, for {control['images']:,} test images, have an accuracy of "
        f"{control['features']:.4f} by features and {control['pixels']:.4f} by raw pixels.",
        Table(columns=["classifier", "accuracy"], rows=rows, form=".4f"),
    ]


probe = Suite(
    name="probe",
    title="What the features know",
    measure=_measure,
    verdict=_verdict,
    blocks=_blocks,
    headlines=lambda results: [
        Headline("k-NN accuracy (20 neighbors)", results["knn_20_accuracy"]),
        Headline("accuracy of a linear probe", results["linear_accuracy"]),
        Headline(
            "k-NN accuracy of raw pixels",
            results["control"]["pixels"],
            note=f"features: {results['control']['features']:.3f} with the same images",
        ),
    ],
)
