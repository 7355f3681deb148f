"""What do the features know? Classes, by nearest neighbors and by a linear probe.

The control is k-NN on raw pixels (8x8 block means): an untrained network keeps that much.

The probe is multinomial logistic regression on standardized features, minimized by L-BFGS:

    L(W, b) = mean over n of cross entropy(y_n, softmax(x_n W + b)) + l2 / 2 |W|^2

It is our own because it tries a path of penalties in seconds for 50,000 x 128, where scikit-learn's
takes half a minute for a single `l2`.
"""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
import scipy.optimize
import scipy.special

from tfvmf import neighbors
from tfvmf.data.base import sample_indices
from tfvmf.evaluation import paper
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, Options
from tfvmf.evaluation.tables import Cell, Table

NEIGHBORS = (200, 20)

# From strong to weak: each solution is a good start for the next.
PENALTIES = tuple(float(10.0**exponent) for exponent in np.arange(-1.0, -6.1, -0.5))
_PATIENCE = 3
_CONTROL = 2000  # images of either split that features and pixels are compared on

Solution = tuple[np.ndarray, np.ndarray]  # weights [F, K], bias [K]


@dataclasses.dataclass(frozen=True)
class LinearProbe:
    """A fitted classifier of raw features."""

    weights: np.ndarray  # [F, K]
    bias: np.ndarray  # [K]
    classes: np.ndarray  # the labels [K] that the columns stand for
    l2: float  # the penalty that was chosen
    path: dict[float, float]  # held-out cross entropy of each penalty that was tried

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
        self._features = features.astype(np.float32)
        self._chosen = np.arange(len(targets)), targets

    @functools.cached_property
    def _curvature(self) -> tuple[np.ndarray, np.ndarray]:
        """The eigenvalues [F] of S / K and the vectors [F, F], in columns."""
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


def linear_probe(subject: Subject) -> LinearProbe:
    """Logistic regression on the features of `subject.train`: fitted once for all suites."""
    labels, _ = subject.labels("probe")
    features = subject.embed(subject.train)["features"]
    return subject.keep("linear_probe", lambda: fit_linear(features, labels))


def measure(subject: Subject, options: Options) -> Measured:
    """Top-1 accuracy by neighbors, by logistic regression, and by its own classifier if any."""
    del options
    train_labels, test_labels = subject.labels("probe")
    bank = subject.embed(subject.train)["features"]
    queries = subject.embed(subject.test)["features"]

    def accuracy(predicted: np.ndarray) -> float:
        return float((predicted == test_labels).mean())

    probe = linear_probe(subject)
    knn = {k: accuracy(neighbors.classify(queries, bank, train_labels, k=k)) for k in NEIGHBORS}
    linear = accuracy(probe.predict(queries))
    chance = float(np.bincount(test_labels).max() / len(test_labels))
    control = _compare_with_pixels(subject, bank, queries)
    rows: list[list[Cell]] = [[f"{k} nearest neighbors", knn[k]] for k in NEIGHBORS]
    rows += [["linear probe", linear], ["the most frequent class", chance]]
    own = {}
    if subject.classifier is not None:
        logits = np.asarray(subject.classifier(queries))
        own = {"classifier_accuracy": accuracy(logits.argmax(axis=1))}
        rows.append(["its own classifier", own["classifier_accuracy"]])
    if subject.test.name == "cifar10":
        share = paper.FAILURE["correct"] / (paper.FAILURE["correct"] + paper.FAILURE["wrong"])
        rows.append(["the paper's classifier (ResNet-50, 1000 epochs)", share])
    return Measured(
        verdict=verdict(knn[20], chance, len(test_labels), control),
        results={
            **{f"knn_{k}_accuracy": value for k, value in knn.items()},
            "linear_accuracy": linear,
            **own,
            "chance": chance,
            "control": control,
            "linear_l2": probe.l2,
            "linear_path": [{"l2": l2, "cross_entropy": value} for l2, value in probe.path.items()],
            "train_images": subject.train.size,
            "features": bank.shape[1],
        },
        headlines=[
            Headline("k-NN accuracy (20 neighbors)", knn[20]),
            Headline("accuracy of a linear probe", linear),
            Headline(
                "k-NN accuracy of raw pixels",
                control["pixels"],
                note=f"features: {control['features']:.3f} with the same images",
            ),
        ],
        blocks=[
            f"Top-1 accuracy from {bank.shape[1]} features of {len(bank):,} training images. The "
            f"probe's penalty, {probe.l2:.1e}, was chosen on a tenth of these. Control: 20 nearest "
            f"neighbors among {control['train_images']:,} training images, for "
            f"{control['images']:,} test images, have an accuracy of {control['features']:.4f} by "
            f"features and {control['pixels']:.4f} by raw pixels.",
            Table(columns=["classifier", "accuracy"], rows=rows, form=".4f"),
        ],
    )


def _compare_with_pixels(
    subject: Subject, bank: np.ndarray, queries: np.ndarray
) -> dict[str, float]:
    """Accuracy of k-NN on features and on raw pixels, both with the same sample of images."""
    sources = (subject.train, subject.test)
    voters, judged = (sample_indices(source, _CONTROL) for source in sources)
    all_labels, all_truth = subject.labels("probe")
    labels, truth = all_labels[voters], all_truth[judged]
    train, test = block_means(sources[0].take(voters)), block_means(sources[1].take(judged))
    center, k = train.mean(axis=0), min(NEIGHBORS)
    by_features = neighbors.classify(queries[judged], bank[voters], labels, k=k)
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


def verdict(known: float, chance: float, images: int, control: Mapping[str, float]) -> str:
    """What an accuracy of k-NN means beside chance, and beside pixels (`control`)."""

    def clear(low: float, high: float, count: float) -> bool:
        """Whether two accuracies differ by more than two standard errors."""
        mean = (low + high) / 2.0
        return high - low > 2.0 * float(np.sqrt(2.0 * mean * (1.0 - mean) / count))

    if not clear(chance, known, images):
        return f"k-NN {known:.3f}, chance {chance:.3f}: the features know nothing of the classes"
    if clear(control["features"], control["pixels"], control["images"]):
        return (
            f"k-NN {control['features']:.3f}, raw pixels {control['pixels']:.3f}: the features "
            "know less than the pixels, as those of an untrained network do"
        )
    share = (known - chance) / (1.0 - chance)
    words = "the classes" if share > 0.8 else "much of the classes" if share > 0.5 else "little"
    return f"k-NN {known:.3f}: the features know {words}"
