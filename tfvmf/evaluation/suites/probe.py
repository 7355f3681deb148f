"""What do the features know? Classes, by nearest neighbors and by a linear probe.

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
import tensorflow as tf

from tfvmf import neighbors
from tfvmf.evaluation import paper
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, Options, Results, Suite, at_step
from tfvmf.evaluation.tables import Cell, Page, Table

NEIGHBORS = (200, 20)

# From strong to weak: each solution is a good start for the next.
PENALTIES = tuple(float(10.0**exponent) for exponent in np.arange(-1.0, -6.1, -0.5))
_PATIENCE = 3

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


def fit_linear(
    features: np.ndarray, labels: np.ndarray, *, held_out: float = 0.1, seed: int = 0
) -> LinearProbe:
    """Chooses the penalty on a held-out part of the data, then fits all of them.

    The penalty with the least cross entropy there wins, which is much less a matter of luck than
    their accuracy. Once three weaker ones in a row were no better, no others are tried.

    Args:
        features: [N, F], as they come: they are standardized here.
        labels: int [N].
        held_out: Share of the examples that choose the penalty.
        seed: Seed of the draw of these examples.
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
    """Cross entropy on some examples of what was fitted to others, for penalty after penalty.

    Returns:
        The entropies {l2: entropy}, the best penalty, and what was fitted with it.
    """
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

    Args:
        features: Standardized [N, F].
        targets: int [N], columns of W.
        classes: K.
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
        value, by_weights, by_bias = _cross_entropy(
            self._features,
            self._targets,
            tf.constant(weights, tf.float32),
            tf.constant(bias, tf.float32),
        )
        return float(value), by_weights.numpy(), by_bias.numpy()

    def solve(
        self, l2: float, start: Solution | None = None, *, tolerance: float = 1e-5
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """The minimum for one penalty.

        Args:
            l2: The penalty, above 0.
            start: Weights and bias to begin at; zeros by default.
            tolerance: The largest entry of the gradient in U at which to stop.

        Returns:
            Weights [F, K], bias [K] and the loss, in float64.
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
    """Top-1 accuracy on the backbone's features.

    By a vote of the cosine nearest training images, by a logistic regression whose penalty is
    chosen on held-out training images, and by the model's own classifier if it has one.
    """
    train_labels, test_labels = subject.labels("probe", limit=options.max_images)
    bank = subject.embed(subject.train)["features"]
    queries = subject.embed(subject.test, limit=options.max_images)["features"]

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
        "linear_l2": probe.l2,
        "linear_path": [{"l2": l2, "cross_entropy": value} for l2, value in probe.path.items()],
        "data": subject.test.name,
        "train_images": subject.train.size,
        "images": len(queries),
        "features": bank.shape[1],
        "method": subject.name,
        **subject.facts,
    }
    return Measured(results)


def _page(results: Results) -> Page:
    """The accuracies, with what the paper says of CIFAR-10 beside."""
    rows: list[list[Cell]] = [
        *([f"{k} nearest neighbors", results[f"knn_{k}_accuracy"]] for k in NEIGHBORS),
        ["linear probe", results["linear_accuracy"]],
    ]
    if "classifier_accuracy" in results:
        rows.append(["its own classifier", results["classifier_accuracy"]])
    if results["data"] == "cifar10":
        share = paper.FAILURE["correct"] / (paper.FAILURE["correct"] + paper.FAILURE["wrong"])
        rows.append(["the paper's classifier (ResNet-50, 1000 epochs)", share])
    return Page(
        f"What the features know: {results['method']} on {results['data']}",
        [
            f"Top-1 accuracy of {results['images']:,} test images{at_step(results)}, from "
            f"{results['features']} features of {results['train_images']:,} training images. The "
            f"probe's penalty, {results['linear_l2']:.1e}, was chosen on a tenth of these.",
            Table(columns=["classifier", "accuracy"], rows=rows, form=".4f"),
        ],
    )


probe = Suite(
    name="probe",
    title="Features",
    measure=_measure,
    page=_page,
    headlines=lambda results: [
        Headline("k-NN accuracy (20)", results["knn_20_accuracy"]),
        Headline("linear accuracy", results["linear_accuracy"]),
    ],
)
