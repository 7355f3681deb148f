"""Does the score detect foreign images? The paper's Table 2, with controls.

Distances are to the familiar set's training images, in the features of a supervised model (F_res,
as in the paper) and in the subject's own (F_ssl). Scores are fitted on training images alone.
"""

import functools
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.linalg
from scipy.spatial.distance import cdist
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from tfvmf import data, neighbors
from tfvmf.data.base import Subset
from tfvmf.errors import UserError
from tfvmf.evaluation import paper, plots
from tfvmf.evaluation.scores import SCORES, Score
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, NotApplicable, Options
from tfvmf.evaluation.tables import Table

NEIGHBORS = 5
METRICS = {"auroc": "AUROC", "aupr_out": "AUPR out", "aupr_in": "AUPR in", "fpr95": "FPR95"}
_COLUMNS = 3
_KNOWN = 0.9  # AUROC from which a detector counts as knowing foreign images
_NO_SUPERVISED = (
    "left out: train a classifier with `tfvmf train --method=supervised` on the same data, and "
    "give its run as --supervised_workdir"
)

# For N images: scores [N] by name, and features [N, F] by space (f_res, f_ssl).
Sample = dict[str, np.ndarray]


def measure(subject: Subject, options: Options) -> Measured:
    """Measures every detector against every foreign set."""
    inside, score = options.in_source or subject.test.name, subject.score(options)
    # Problems with the sources should show before anything is measured.
    if not options.ood_sources:
        needs = "ood_sources, sets of foreign images like cifar100,mnist"
        raise NotApplicable(f"the suite ood needs {needs}")
    for spec in options.ood_sources:
        name = spec if isinstance(spec, str) else spec.name
        if _identity(name) == _identity(inside):
            advice = "name another, or another in_source"
            raise UserError(f"ood_sources={name} is the familiar set itself: {advice}")
    foreign = foreign_sources(subject, options)
    models = _models(subject, options)
    train, test = subject.train, subject.test
    if _identity(inside) != _identity(test.name):
        train = subject.open(inside, "train")
        test = subject.open(inside, "test", sample=options.max_images)

    def sample(source: data.Source) -> Sample:
        """Scores and features of a source."""
        known = subject.embed(source)
        found = dict(subject.all_scores(source, known, options))
        for space, model in models.items():
            images = source
            if model.test.image_shape != source.image_shape:
                # The same images in the same order, at the image size of the other model.
                images = model.open(source.name, source.split)
                images = images.subset(source.indices) if isinstance(source, Subset) else images
            found[space] = (known if model is subject else model.embed(images))["features"]
        return found

    bank = sample(train)
    detect = detectors(bank, train.labels, score)
    familiar = detect(sample(test))
    found: dict[str, dict[str, Any]] = {}
    files = {}
    for name, source in foreign.items():
        scores = detect(sample(source))
        found[name] = {
            "images": source.size,
            "scores": {key: detection(familiar[key], scores[key]) for key in scores},
            "paper": paper.TABLE_2.get((_identity(inside), _identity(name)), {}),
        }
        files[f"{file_name(name)}.png"] = functools.partial(
            draw, inside=inside, outside=name, familiar=familiar, scores=scores
        )
    notes = {} if "f_res" in models else {"f_res": _NO_SUPERVISED}
    strange = [
        f"{model.workdir or model.name} was trained on {model.trained_on}"
        for model in dict.fromkeys((subject, *models.values()))
        if model.trained_on and _identity(model.trained_on) != _identity(inside)
    ]
    notes |= {"note": f"{' and '.join(strange)}, not on {inside}"} if strange else {}
    aurocs = {
        name: {key: each["auroc"] for key, each in entry["scores"].items()}
        for name, entry in found.items()
    }
    best = {name: max(each, key=each.__getitem__) for name, each in aurocs.items()}
    known = sum(each[score.name] >= _KNOWN for each in aurocs.values())
    by_best = sum(each[best[name]] >= _KNOWN for name, each in aurocs.items())
    return Measured(
        verdict=f"{score.title} knows the foreign images of {known} of {len(found)} sets (AUROC at "
        f"least {_KNOWN}), the best detector those of {by_best}",
        results={
            "in": inside,
            "score": score.title,
            "main": score.name,
            "train_images": train.size,
            "images": test.size,
            "of_images": test.whole_size,
            **notes,
            "joined_scale": {space: neighbors.spread(bank[space]) for space in models},
            "out": found,
        },
        headlines=[
            Headline(
                f"AUROC against {short_name(name)}, {title(key)}",
                aurocs[name][key],
                printed=found[name]["paper"].get(key),
                note="the best" if key == best[name] else "",
            )
            for name in list(found)[:2]
            for key in dict.fromkeys((score.name, best[name]))
        ],
        blocks=[
            f"Familiar: {inside}, with {train.size:,} training images. Foreign images are positive "
            "in AUROC, AUPR out and FPR95 (the share of familiar images flagged where 95 % of the "
            "foreign ones are), familiar ones in AUPR in.",
            "F_res, F_ssl: mean cosine distance to the 5 nearest training images, in the features "
            f"of a supervised model and of this one. + {score.title}: {score.title} is one more "
            "feature, standardized on the training images and scaled to the spread of an average "
            "(unit-normalized) feature. Mahalanobis: the distance to the nearest class; relative: "
            "minus the distance to all training images.",
            *(f"{name.capitalize()}: {text}." for name, text in notes.items()),
            table(found),
        ],
        files=files,
    )


def table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """The paper's Table 2, extended: one row per foreign set and detector."""
    return Table(
        columns=["foreign", "images", "detector", *METRICS.values(), "AUROC in the paper"],
        rows=[
            [name, entry["images"], title(key), *(values[metric] for metric in METRICS),
             entry["paper"].get(key)]
            for name, entry in found.items()
            for key, values in entry["scores"].items()
        ],
        form=".4f",
    )  # fmt: skip


def foreign_sources(subject: Subject, options: Options) -> dict[str, data.Source]:
    """The foreign sets by name, or samples of them: test splits, or all if there is none."""
    opened = {}
    for name in dict.fromkeys(options.ood_sources):
        source = subject.open(name)
        if source.divided and isinstance(name, str):  # never used for training
            source = subject.open(name, "all")
        opened[source.name] = subject.open(source, sample=options.max_images)
    return opened


def _models(subject: Subject, options: Options) -> dict[str, Subject]:
    """The models whose features are used, by space: F_res first."""
    if subject.classifier is not None:
        return {"f_res": subject}
    model = options.supervised
    if model is None:
        return {"f_ssl": subject}
    if model.classifier is None:
        raise UserError(
            f"supervised={model.workdir or model.name} is a run of {model.name}, which has no "
            "classifier: expected a run of `tfvmf train --method=supervised`"
        )
    return {"f_res": model, "f_ssl": subject}


def _identity(spec: str) -> str:
    """The same string for two specs of the same data; versions are ignored."""
    scheme, _, target = spec.partition(":")
    if scheme in ("folder", "npz"):
        return f"{scheme}:{os.path.realpath(os.path.expanduser(target))}"
    return spec.removeprefix("tfds:").partition(":")[0]


def detectors(
    train: Sample, labels: np.ndarray | None, score: Score
) -> Callable[[Sample], dict[str, np.ndarray]]:
    """Maps N images to the values [N] of every detector by name; high means foreign.

    Each score alone; in each space the neighbor distance, alone and joined with the main score; and
    with labels the Mahalanobis distance to the nearest class, and that minus the one to all images.
    """
    spaces = [name for name in train if name not in SCORES]
    joined = {space: neighbors.Joined(train[space], train[score.name]) for space in spaces}
    groups = [] if labels is None else [labels, np.zeros(len(labels), int)]
    gaussians = {space: [mahalanobis(train[space], each) for each in groups] for space in spaces}

    def detect(sample: Sample) -> dict[str, np.ndarray]:
        found = {name: SCORES[name].uncertainty(sample[name]) for name in sample if name in SCORES}
        for space in spaces:
            features, values = sample[space], sample[score.name]
            found[space] = neighbors.distance(features, train[space], k=NEIGHBORS)
            found[f"{space}+{score.name}"] = joined[space].distance(features, values, k=NEIGHBORS)
            if labels is not None:
                to_class, to_all = (distance(features) for distance in gaussians[space])
                found[f"{space}_mahalanobis"] = to_class
                # Unusual for the classes, but not for all images.
                found[f"{space}_relative_mahalanobis"] = to_class - to_all
        return found

    return detect


def mahalanobis(features: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The squared distance [n] of features [n, F] to the nearest class of training images [N, F].

    The covariance 1/N sum_n (x_n - m_c(n)) (x_n - m_c(n))' is shared by all classes. A millionth of
    the mean variance is added to its diagonal, because networks have dead features.
    """
    classes, members = np.unique(labels, return_inverse=True)
    features = features.astype(np.float64)
    means = np.stack([features[members == c].mean(axis=0) for c in range(len(classes))])
    centered = features - means[members]
    covariance = centered.T @ centered / len(centered)
    ridge = max(1e-6 * float(np.diag(covariance).mean()), 1e-30)
    factor = np.linalg.cholesky(covariance + ridge * np.eye(len(covariance)))

    def whiten(points: np.ndarray) -> np.ndarray:
        return scipy.linalg.solve_triangular(factor, points.T, lower=True).T

    centers = whiten(means)
    return lambda queries: cdist(whiten(queries), centers, "sqeuclidean").min(axis=1)


def detection(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """How well a score [N] of familiar and [M] of foreign images (the positives) separates them.

    `fpr95` is the share of familiar images flagged with 95 % of the foreign ones; familiar images
    are the positives of `aupr_in`.
    """
    foreign, values = _joined(inside, outside)
    false_rate, true_rate, _ = roc_curve(foreign, values, drop_intermediate=False)
    return {
        "auroc": float(roc_auc_score(foreign, values)),
        "aupr_out": float(average_precision_score(foreign, values)),
        "aupr_in": float(average_precision_score(~foreign, -values)),
        "fpr95": float(false_rate[np.searchsorted(true_rate, 0.95)]),
    }


def _joined(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which images are foreign, and all scores: [N + M]."""
    foreign = np.repeat([False, True], [len(inside), len(outside)])
    return foreign, np.concatenate([inside, outside])


def title(name: str) -> str:
    """A detector's name in tables: `f_res+kappa` becomes F_res + kappa."""
    if name in SCORES:
        return SCORES[name].title
    space, plus, score = name.capitalize().partition("+")
    if plus:
        return f"{space} + {SCORES[score].title}"
    return space[:5] + space[5:].replace("_", ", ", 1).replace("_", " ").replace("maha", "Maha")


def draw(
    path: pathlib.Path, *, inside: str, outside: str, familiar: Sample, scores: Sample
) -> None:
    """ROC curves, and histograms of familiar [N] and foreign [M] images, one panel per detector."""
    rows = -(-len(scores) // _COLUMNS)
    with plots.drawing(path, 11, max(2.0 * rows, 3.4)) as figure:
        grid = figure.add_gridspec(1, 2, width_ratios=[1, 2.2])
        roc = figure.add_subplot(grid[0])
        axes = grid[1].subgridspec(rows, _COLUMNS, hspace=0.5).subplots(squeeze=False)
        for axis in axes.flat[len(scores) :]:
            axis.set_visible(False)
        for axis, name in zip(axes.flat, scores, strict=False):
            plots.draw_groups(axis, {"familiar": familiar[name], "foreign": scores[name]})
            foreign, values = _joined(familiar[name], scores[name])
            flagged = roc_curve(foreign, values)
            roc.plot(*flagged[:2], label=f"{title(name)} {roc_auc_score(foreign, values):.3f}")
            turned = name in SCORES and SCORES[name].expected_sign < 0
            axis.set_title(f"minus {title(name)}" if turned else title(name))
        roc.plot([0, 1], [0, 1], color=plots.GRAY, linestyle=":", linewidth=0.8)
        roc.set(
            xlabel="share of familiar images flagged",
            ylabel="share of foreign images flagged",
            title="ROC curves; AUROC in the legend",
        )
        roc.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2)
        names = f"{short_name(inside)} (familiar, blue) and {short_name(outside)} (foreign, orange)"
        figure.suptitle(names, x=0.08, ha="left", fontsize=10)


def short_name(spec: str) -> str:
    """The end of a long path, which says more than its beginning."""
    end = spec[-25:]
    return spec if len(spec) <= 28 else f"...{end[max(end.find('/', 0, -1), 0) :]}"


def file_name(spec: str) -> str:
    """A spec as a file name: `folder:/my/images` becomes folder_my_images."""
    return re.sub(r"[^\w.-]+", "_", spec).strip("_.")
