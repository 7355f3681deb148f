"""The measurements of runs: each function takes a subject and options, and returns JSON values.

Also makes stand-ins for CIFAR-100 and MNIST that need no download. `digits_turned` is close to the
digits: the same strokes and classes, turned by 90 degrees. `photo_patches` is far from both: square
patches of scikit-learn's two sample photographs, with the photograph as the class. Test patches
come from the right quarter of the photographs, training patches from the rest: no pixel is in both.
"""

import base64
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from scipy.stats import rankdata
from sklearn.datasets import load_sample_images
from sklearn.preprocessing import normalize

from tfvmf import data, neighbors
from tfvmf.data import Source
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES
from tfvmf.data.images import resize_image
from tfvmf.evaluation import SUITES, Options, Subject
from tfvmf.evaluation.scores import JUDGED, SCORES, from_outputs, one_pass
from tfvmf.evaluation.suites.cifar10c import (
    choose_example,
    corrupted_images,
    kept_scores,
    summarize,
)
from tfvmf.evaluation.suites.failure import compare, detect
from tfvmf.evaluation.suites.ood import detection, foreign_sources, mahalanobis
from tfvmf.evaluation.suites.probe import linear_probe
from tfvmf.files import replacing

# Figure 2A: corruptions of three kinds, chosen before any result was seen.
SHOWN = ("gaussian_blur", "fog", "pixelate")
EXAMPLES = 6
QUANTILES = (0.99, 0.75, 0.5, 0.25, 0.01)

_ROUNDS = 200  # bootstrap rounds
PATCH = 64  # side of a patch, in pixels of the photograph


def corruption(subject: Subject, options: Options) -> dict[str, Any]:
    """Tables 1, 3, 4 and 5, Figures 3 and 4: correlations with severity, by corruption.

    If there is a judge, the same numbers of its scores are in `scores`.
    """
    if subject.judge:
        options = dataclasses.replace(options, scores=("kappa", *JUDGED))
    corrupted = corrupted_images(subject, options)
    measured = kept_scores(subject, options, corrupted)
    names = subject.uncertainty(options).scores
    found = {name: _summary(measured[name], SCORES[name].expected_sign) for name in names}
    main = found.pop(subject.score(options).name)
    sizes = {"corruptions": corrupted.described, "images": subject.test.size}
    return {**main, "scores": found, **sizes}


def controls(subject: Subject, options: Options) -> dict[str, Any]:
    """The same for scores without kappa: feature norm, agreement of views, the probe's softmax."""
    probe = linear_probe(subject)

    def softmax(outputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"softmax": probe(outputs["features"], index=True)["class_probability"]}

    options = dataclasses.replace(options, scores=("feature_norm", "agreement"))
    corrupted = corrupted_images(subject, options)
    measured = kept_scores(subject, options, corrupted, ("softmax",), softmax)
    names = (*options.scores, "softmax")
    return {"scores": {name: _summary(measured[name], -1) for name in names}}


def _summary(scores: np.ndarray, sign: int) -> dict[str, Any]:
    """The numbers of the suite cifar10c about a score [18, 6, N], and an `interval`.

    This is the 95 % interval of `mean_per_image`, by a bootstrap over images. A round draws the
    same images for all corruptions.
    """
    _, severities, count = scores.shape
    levels = np.repeat(np.arange(severities), count)
    ranks = [rankdata(values).reshape(values.shape) for values in scores]
    draws, found = np.random.default_rng(0), []
    for _ in range(_ROUNDS):
        rows = draws.integers(0, count, count)
        with np.errstate(invalid="ignore"):  # a score that is the same for all images
            each = [np.corrcoef(levels, values[:, rows].ravel())[0, 1] for values in ranks]
        found.append(np.mean(each))
    return summarize(scores, sign) | {"interval": np.quantile(found, [0.025, 0.975]).tolist()}


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
    """Figure 2B: kappa of correct and of wrong predictions of a linear probe, and other scores."""
    _, labels = subject.labels("failure")
    embeddings = subject.embed(subject.test)
    kappa = subject.main_score(subject.test, embeddings, options)
    wrong = linear_probe(subject).predict(embeddings["features"]) != labels
    scores = _uncertainties(subject, subject.test, options)
    return {
        **compare(kappa, wrong),
        "auroc": detect(subject.score(options).uncertainty(kappa), wrong)["auroc"],
        "scores": {name: detect(values, wrong)["auroc"] for name, values in scores.items()},
        "kappa_correct": _rounded(kappa[~wrong]),
        "kappa_wrong": _rounded(kappa[wrong]),
    }


def out_of_distribution(subject: Subject, options: Options) -> dict[str, Any]:
    """Table 2: AUROC of every detector, one entry per out-of-distribution data set.

    SSD is the Mahalanobis distance to all training images, in features of unit length. Detectors
    named f_res use the features of the supervised run, all others those of the run itself.
    """
    results = SUITES["ood"](subject, options)
    train = normalize(subject.embed(subject.train)["features"])
    ssd = mahalanobis(train, np.zeros(len(train), int))

    def scores(source: Source) -> dict[str, np.ndarray]:
        features = subject.embed(source)["features"]
        return {**_uncertainties(subject, source, options), "ssd": ssd(normalize(features))}

    familiar, auroc = scores(subject.test), []
    for name, source in foreign_sources(subject, options).items():
        found = {key: each["auroc"] for key, each in results["out"][name]["scores"].items()}
        for key, values in scores(source).items():
            found.setdefault(key, detection(familiar[key], values)["auroc"])
        auroc.append(found)
    return {"auroc": auroc, "images": results["images"], "train_images": subject.train.size}


def _uncertainties(subject: Subject, source: Source, options: Options) -> dict[str, np.ndarray]:
    """The probe's softmax, scores of one pass and agreement [N], with high meaning uncertain."""
    outputs = subject.embed(source)
    found = {"softmax": -linear_probe(subject).probabilities(outputs["features"]).max(axis=1)}
    for name in one_pass(subject.judge):
        values = from_outputs(name, outputs)
        assert values is not None
        found[name] = SCORES[name].uncertainty(values)
    views = dataclasses.replace(options, scores=("agreement",))
    return {**found, "agreement": -subject.measure(source, views)["agreement"]}


def examples(subject: Subject, options: Options) -> dict[str, Any]:
    """Figure 2A: the most and least certain images, and one from mild to severe corruption.

    The latter is the image whose kappa changes most like the mean over all images.
    """
    corrupted = corrupted_images(subject, options)
    scores = kept_scores(subject, options, corrupted)["kappa"]
    shown = scores[[CORRUPTIONS.index(name) for name in SHOWN]]
    row, source, levels = choose_example(shown), subject.test, {}
    for name, values in zip(SHOWN, shown, strict=True):
        images = [source.images(row, row + 1)]
        images += [corrupted.read(name, severity, row, row + 1) for severity in SEVERITIES]
        levels[name] = _shown(np.concatenate(images), values[:, row])
    kappa = scores[0, 0]
    order = np.argsort(-kappa)
    ends = {"most": order[:EXAMPLES], "least": order[::-1][:EXAMPLES]}
    found = {name: _shown(source.take(rows), kappa[rows]) for name, rows in ends.items()}
    return {**found, "corrupted": levels}


def spread(subject: Subject, options: Options) -> dict[str, Any]:
    """Figure 1: images at quantiles of kappa over clean and severely corrupted test images."""
    corrupted = corrupted_images(subject, options)
    scores = kept_scores(subject, options, corrupted)["kappa"]
    source, names, severity = subject.test, ["clean", *CORRUPTIONS], SEVERITIES[-1]
    kappa = np.concatenate([scores[:1, 0], scores[:, severity]])
    order = np.argsort(kappa, axis=None)
    pairs = [divmod(int(order[round(q * (order.size - 1))]), source.size) for q in QUANTILES]
    images = [
        corrupted.read(names[row], severity, at, at + 1) if row else source.images(at, at + 1)
        for row, at in pairs
    ]
    return {
        "dimension": subject.settings["model.dimension"],
        "quantiles": list(QUANTILES),
        "conditions": [names[row] for row, _ in pairs],
        **_shown(np.concatenate(images), np.array([kappa[pair] for pair in pairs])),
    }


def _shown(images: np.ndarray, kappa: np.ndarray) -> dict[str, Any]:
    """Images uint8 [N, H, W, 3], stacked vertically in a PNG as base64 text, and their kappas."""
    png = tf.io.encode_png(np.concatenate(images)).numpy()
    return {"images": base64.b64encode(png).decode(), "kappa": _rounded(kappa)}


def read_images(shown: Mapping[str, Any]) -> np.ndarray:
    """The images uint8 [N, H, W, 3] in a result of `_shown`."""
    strip = tf.io.decode_png(base64.b64decode(shown["images"])).numpy()
    return strip.reshape(len(shown["kappa"]), -1, *strip.shape[1:])


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


MEASURES: dict[str, Callable[[Subject, Options], dict[str, Any]]] = {
    "corruption": corruption,
    "controls": controls,
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
    """Random patches of photographs of a temple and a flower, in the same form."""
    photos = load_sample_images().images
    count, seed = (1400, 0) if split == "train" else (400, 1)
    draws, labels, patches = np.random.default_rng(seed), np.arange(count) % len(photos), []
    for label in labels:
        height, width, _ = photos[label].shape
        border = 3 * width // 4
        left, right = (0, border) if split == "train" else (border, width)
        y, x = (draws.integers(a, b - PATCH + 1) for a, b in ((0, height), (left, right)))
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
