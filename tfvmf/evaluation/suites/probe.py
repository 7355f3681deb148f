"""How well do the features separate classes? By nearest neighbors and by a linear probe.

The control is k-NN on raw pixels (8x8 block means), which an untrained network preserves. The
probe is stored in the run directory, for `tfvmf export --with_probe`.
"""

import dataclasses
import pathlib
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tfvmf import neighbors
from tfvmf.data.base import sample_indices
from tfvmf.evaluation import paper
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, Options
from tfvmf.evaluation.tables import Cell, Table
from tfvmf.posthoc.probe import LinearProbe, fit_linear

NEIGHBORS = (200, 20)
_CONTROL = 2000  # images per split for the comparison of features and pixels


def linear_probe(subject: Subject) -> LinearProbe:
    """Logistic regression on the features of `subject.train`, fitted once for all suites."""
    labels, _ = subject.labels("probe")
    features = subject.embed(subject.train)["features"]
    return subject.keep("linear_probe", lambda: fit_linear(features, labels))


def finished_probe(subject: Subject) -> LinearProbe:
    """The probe with class names and a temperature, stored in the run if results go there."""
    train, reserve = subject.train, subject.reserve and subject.reserve()
    names, probe = train.class_names, linear_probe(subject)
    words = (names[label] if names else str(label) for label in probe.classes)
    probe = dataclasses.replace(
        probe,
        names=[word.encode("utf-8", "backslashreplace").decode() for word in words],
        step=subject.facts.get("step", 0),
        source=f"{train.size:,} images of {train.name} ({train.split})",
    )
    if reserve is not None and reserve.labels is not None:
        features = subject.embed(reserve)["features"]
        probe = probe.calibrate(features, reserve.labels, f"{reserve.name} ({reserve.split})")
    if subject.workdir is not None and subject.directory is not None and not subject.members[1:]:
        place = pathlib.Path(subject.directory).expanduser().resolve()
        if place.is_relative_to(subject.workdir.resolve()):
            probe.save(subject.workdir)
    return probe


def measure(subject: Subject, options: Options) -> Measured:
    """Top-1 accuracy of neighbors, logistic regression, and the classifier if there is one."""
    del options
    train_labels, test_labels = subject.labels("probe")
    bank, queries = (subject.embed(x)["features"] for x in (subject.train, subject.test))

    def accuracy(predicted: np.ndarray) -> float:
        return float((predicted == test_labels).mean())

    probe = finished_probe(subject)
    knn = {k: accuracy(neighbors.classify(queries, bank, train_labels, k=k)) for k in NEIGHBORS}
    linear = accuracy(probe.predict(queries))
    sure = float(probe.probabilities(queries).max(axis=1).mean())
    told = f"calibrated on {probe.calibration}" if probe.calibration else "not calibrated"
    chance = float(np.bincount(test_labels).max() / len(test_labels))
    control = _compare_with_pixels(subject, bank, queries)
    rows: list[list[Cell]] = [[f"{k} nearest neighbors", knn[k]] for k in NEIGHBORS]
    rows += [["linear probe", linear], ["the most frequent class", chance]]
    own = {}
    if subject.classifier is not None:
        logits = np.asarray(subject.classifier(queries))
        own["classifier_accuracy"] = accuracy(logits.argmax(axis=1))
        rows.append(["its own classifier", own["classifier_accuracy"]])
    if subject.test.name == "cifar10":
        share = paper.FAILURE["correct"] / (paper.FAILURE["correct"] + paper.FAILURE["wrong"])
        rows.append(["the paper's classifier (ResNet-50, 1000 epochs)", share])
    note = f"features: {control['features']:.3f} with the same images"
    return Measured(
        verdict=verdict(knn[20], chance, len(test_labels), control),
        results={
            **{f"knn_{k}_accuracy": value for k, value in knn.items()},
            "linear_accuracy": linear,
            **own,
            "chance": chance,
            "control": control,
            "linear_probability": sure,
            "linear_temperature": probe.temperature,
            "linear_l2": probe.l2,
            "linear_path": [{"l2": l2, "cross_entropy": value} for l2, value in probe.path.items()],
            "train_images": subject.train.size,
            "features": bank.shape[1],
        },
        headlines=[
            Headline("k-NN accuracy (20 neighbors)", knn[20]),
            Headline("accuracy of a linear probe", linear),
            Headline("k-NN accuracy of raw pixels", control["pixels"], note=note),
        ],
        blocks=[
            f"Top-1 accuracy from {bank.shape[1]} features of {len(bank):,} training images. The "
            f"probe's penalty, {probe.l2:.1e}, was chosen on a tenth of these. Control: 20 nearest "
            f"neighbors among {control['train_images']:,} training images, for "
            f"{control['images']:,} test images, have an accuracy of {control['features']:.4f} by "
            f"features and {control['pixels']:.4f} by raw pixels.",
            f"The linear probe gives its class a mean probability of {sure:.4f} ({told}; logits "
            f"divided by {probe.temperature:.3f}).",
            Table(["classifier", "accuracy"], rows, form=".4f"),
        ],
    )


def _compare_with_pixels(
    subject: Subject, bank: np.ndarray, queries: np.ndarray
) -> dict[str, float]:
    """Accuracy of k-NN on features and on raw pixels, for the same sample of images."""
    sources = (subject.train, subject.test)
    rows = [sample_indices(source, _CONTROL) for source in sources]
    labels, truth = (each[row] for each, row in zip(subject.labels("probe"), rows, strict=True))
    train, test = (
        tf.image.resize(source.take(row), (8, 8), method="area").numpy().reshape(len(row), -1)
        for source, row in zip(sources, rows, strict=True)
    )
    center = train.mean(axis=0)
    found: dict[str, float] = {"train_images": len(labels), "images": len(truth)}
    for name, asked, known in (
        ("features", queries[rows[1]], bank[rows[0]]),
        ("pixels", test - center, train - center),
    ):
        predicted = neighbors.classify(asked, known, labels, k=min(NEIGHBORS))
        found[name] = float((predicted == truth).mean())
    return found


def verdict(known: float, chance: float, images: int, control: Mapping[str, float]) -> str:
    """Compares the k-NN accuracy with chance, and with pixels (`control`), in words."""

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
