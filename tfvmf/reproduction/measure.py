"""What is measured of a run: each function takes a subject and options, and returns JSON.

And stand-ins for MNIST and CIFAR-100 that need no download. `digits_turned` is close to the digits:
the same strokes and classes, turned by 90 degrees. `photo_patches` is far from both: square patches
of scikit-learn's two sample photographs, with the photograph as the class. Test patches come from
the right quarter of the photographs, training patches from the rest: no pixel is in both.
"""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tfvmf import data, neighbors
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from tfvmf.data.images import resize_image
from tfvmf.evaluation import SUITES, Options, Subject
from tfvmf.evaluation.suites.cifar10c import measure_corruption
from tfvmf.evaluation.suites.failure import compare, detect
from tfvmf.evaluation.suites.probe import linear_probe
from tfvmf.files import replacing

# Figure 2A: corruptions of three kinds, chosen before any result was seen.
SHOWN = ("gaussian_blur", "fog", "pixelate")
EXAMPLES = 6
QUANTILES = (0.99, 0.75, 0.5, 0.25, 0.01)

PATCH = 64  # side in pixels of the photographs


def corruption(subject: Subject, options: Options) -> dict[str, Any]:
    """Tables 1, 3, 4 and 5, Figures 3 and 4: correlations with severity, by corruption."""
    results, _, _ = measure_corruption(subject, options)
    kept = ("mean_spearman", "mean_pearson", "mean_per_image", "spearman", "pearson", "mean_score")
    return {name: results[name] for name in (*kept, "corruptions")} | {"images": subject.test.size}


def accuracy(subject: Subject, options: Options) -> dict[str, Any]:
    """Figure 4: top-1 accuracy of a linear probe and of nearest neighbors on the features."""
    train_labels, test_labels = subject.labels("accuracy")
    bank = subject.embed(subject.train)["features"]
    queries = subject.embed(subject.test)["features"]
    k = subject.settings["monitor.neighbors"]
    predicted = {
        "linear": linear_probe(subject).predict(queries),
        "knn": neighbors.classify(queries, bank, train_labels, k=k),
    }
    shares = {name: float((labels == test_labels).mean()) for name, labels in predicted.items()}
    return {**shares, "neighbors": k, "images": len(queries)}


def failure(subject: Subject, options: Options) -> dict[str, Any]:
    """Figure 2B: kappa of correct and of wrong predictions of a linear probe."""
    _, labels = subject.labels("failure")
    embeddings = subject.embed(subject.test)
    kappa = subject.main_score(subject.test, embeddings, options)
    wrong = linear_probe(subject).predict(embeddings["features"]) != labels
    return {
        **compare(kappa, wrong),
        "auroc": detect(subject.score(options).uncertainty(kappa), wrong)["auroc"],
        "kappa_correct": kappa[~wrong].tolist(),
        "kappa_wrong": kappa[wrong].tolist(),
    }


def out_of_distribution(subject: Subject, options: Options) -> dict[str, Any]:
    """Table 2: AUROC of three detectors, one entry per out-of-distribution data set."""
    results = SUITES["ood"](subject, options)
    scores = [entry["scores"] for entry in results["out"].values()]
    kept = ("f_res", "kappa", "f_res+kappa")
    auroc = [{name: found[name]["auroc"] for name in kept} for found in scores]
    return {"auroc": auroc, "images": results["images"]}


def examples(subject: Subject, options: Options) -> dict[str, Any]:
    """Figure 2A: the most and least certain images, and one from mild to severe corruption."""
    source = subject.test
    kappa = subject.embed(source)["concentration"]
    order = np.argsort(-kappa)
    typical = order[len(order) // 2 :][:1]  # not one that makes a point
    image, number = source.take(typical), int(typical[0])
    corrupted = {}
    for name in SHOWN:
        levels = [corrupt(image, name, severity, first_index=number) for severity in SEVERITIES]
        images = np.concatenate([image, *levels])
        corrupted[name] = _shown(images, subject.embedder(images)["concentration"])
    most, least = order[:EXAMPLES], order[::-1][:EXAMPLES]
    return {
        "most": _shown(source.take(most), kappa[most]),
        "least": _shown(source.take(least), kappa[least]),
        "corrupted": corrupted,
    }


def _shown(images: np.ndarray, kappa: np.ndarray) -> dict[str, Any]:
    return {"images": images.tolist(), "kappa": kappa.tolist()}


def spread(subject: Subject, options: Options) -> dict[str, Any]:
    """Figure 1: images from certain to uncertain, at quantiles of kappa.

    The quantiles are over the clean test images and their copies under every corruption at the
    greatest severity.
    """
    clean = subject.test.images()
    severity = SEVERITIES[-1]
    conditions = {"clean": clean} | {name: corrupt(clean, name, severity) for name in CORRUPTIONS}
    kappa = np.stack([subject.embedder(images)["concentration"] for images in conditions.values()])
    order = np.argsort(kappa, axis=None)
    chosen = [order[round(q * (order.size - 1))] for q in QUANTILES]
    names, pairs = list(conditions), [divmod(int(place), len(clean)) for place in chosen]
    return {
        "dimension": subject.settings["model.dimension"],
        "quantiles": list(QUANTILES),
        "kappa": [float(kappa[pair]) for pair in pairs],
        "conditions": [names[row] for row, _ in pairs],
        "images": [conditions[names[row]][column].tolist() for row, column in pairs],
    }


MEASURES: dict[str, Callable[[Subject, Options], dict[str, Any]]] = {
    "corruption": corruption,
    "accuracy": accuracy,
    "failure": failure,
    "ood": out_of_distribution,
    "examples": examples,
    "spread": spread,
}


def digits_turned(split: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The digits, turned counter-clockwise: images uint8 [N, S, S, 3], labels [N]."""
    source = data.load_source("digits", split, image_size=size)
    assert source.labels is not None
    return np.rot90(source.images(), axes=(1, 2)), source.labels


def photo_patches(split: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Patches at random places of a photograph of a temple and one of a flower, likewise."""
    from sklearn.datasets import load_sample_images

    photos = load_sample_images().images
    count, seed = (1400, 0) if split == "train" else (400, 1)
    draws = np.random.default_rng(seed)
    labels = np.arange(count) % len(photos)
    patches = []
    for label in labels:
        height, width, _ = photos[label].shape
        border = 3 * width // 4
        left, right = (0, border) if split == "train" else (border, width)
        y = draws.integers(0, height - PATCH + 1)
        x = draws.integers(left, right - PATCH + 1)
        patches.append(resize_image(photos[label][y : y + PATCH, x : x + PATCH], size))
    return np.stack(patches), labels


def write_stand_in(name: str, path: pathlib.Path, *, size: int) -> None:
    """Writes a stand-in as an npz file (`npz:<path>` reads it), unless it exists."""
    if path.exists():
        return
    make = {"digits_turned": digits_turned, "photo_patches": photo_patches}[name]
    arrays = {}
    for split in ("train", "test"):
        arrays[f"x_{split}"], arrays[f"y_{split}"] = make(split, size)
    with replacing(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
