"""Which views and which levels make a kappa that falls on images nobody augmented for?

    .venv/bin/python -m benchmarks.kappa_study --encoder=runs/cifar10_cpu-simclr_vmf \
        --data_dir=DIR --directory=runs/kappa_study [--seeds=3]

Embeds ordinary and wide views of training images once, then trains a concentration head for every
row from these vectors, with the loss of `bin/fit_kappa`. Prints a Markdown table and writes
study.json beside the vectors: mean Spearman correlation of severity and mean kappa (six points)

- over the *validation* shifts of `benchmarks/shifts.py`, on which choices are made,
- over the corruptions of the suite (CIFAR-10-C protocol, generated), which are only looked at,

the AUROC against unseen classes (CIFAR-100) and MNIST, and the mean |kappa / 5 - cos| on held-out
wide views. 10 minutes for the vectors on 2 cores, then 5 seconds a head. A second call takes the
vectors that are there.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from functools import partial

import tfvmf  # isort: skip # noqa: F401 # before TensorFlow: it says which kernels to use
import keras
import ml_collections
import numpy as np
import tensorflow as tf
from absl import app, flags
from scipy import stats
from sklearn import metrics

from benchmarks.shifts import SEVERITIES, SHIFTS
from tfvmf import models
from tfvmf.config import default_config
from tfvmf.counter_random import example_seeds
from tfvmf.data.corruptions import CORRUPTIONS, corrupt
from tfvmf.data.wide import DEFAULT_KINDS, KINDS, WideViews
from tfvmf.methods.base import concentration_terms
from tfvmf.models import resnet
from tfvmf.models.levels import Levels
from tfvmf.training.checkpoints import load_method
from tfvmf.training.inputs import augmentation_from_config, load_source

Vectors = dict[str, np.ndarray]  # levels [..., L], features [..., F], mean_direction [..., d]

_ENCODER = flags.DEFINE_string("encoder", None, "directory of a trained run", required=True)
_DATA_DIR = flags.DEFINE_string("data_dir", "", "where TFDS finds CIFAR-10, CIFAR-100 and MNIST")
_DIRECTORY = flags.DEFINE_string("directory", None, "keeps vectors and results", required=True)
_TRAIN = flags.DEFINE_integer("train", 8000, "training images", lower_bound=100)
_TEST = flags.DEFINE_integer("test", 500, "images of each test", lower_bound=10)
_SEEDS = flags.DEFINE_integer("seeds", 3, "heads a row", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 400, "of a head's training", lower_bound=1)


@dataclasses.dataclass(frozen=True)
class Row:
    """A recipe: what the head sees, and which wide views it learns from beside ordinary ones."""

    levels: str
    kinds: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """In the table."""
        return f"{self.levels} | {', '.join(self.kinds) or 'none'}"


EARLIER = ("mix", "patch", "crop", "filter")
ROWS = [
    *(Row("last", kinds) for kinds in ((), EARLIER, ("crop", "filter"), DEFAULT_KINDS)),
    Row("all"),
    *(Row("all", (kind,)) for kind in KINDS),
    *(Row("all", kinds) for kinds in (EARLIER, ("crop", "filter"), ("filter", "spectrum"))),
    *(Row("all", (kind, *DEFAULT_KINDS)) for kind in ("mix", "patch")),
    Row("all", DEFAULT_KINDS),
]


class Embedding:
    """Vectors of images, computed once and kept."""

    def __init__(self, encoder: keras.Model, backbone: str, directory: pathlib.Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        images = keras.Input((None, None, 3))
        maps = encoder.get_layer(backbone)(images)
        features = maps.pop("features")
        levels = Levels(dtype="float32")(maps)
        direction = encoder.get_layer("direction_head")(features)
        outputs = {"levels": levels, "features": features, "mean_direction": direction}
        net = keras.Model(images, outputs)
        self._forward = tf.function(lambda x: net(x, training=False), reduce_retracing=True)

    def kept(self, name: str, make: Callable[[], Vectors]) -> Vectors:
        """The vectors of that name: read, or made and written."""
        path = self._directory / f"{name}.npz"
        if not path.exists():
            print(name, file=sys.stderr, flush=True)
            np.savez(path, allow_pickle=False, **make())
        with np.load(path, allow_pickle=False) as found:
            return dict(found)

    def __call__(
        self, images: np.ndarray, view: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    ) -> Vectors:
        """Of uint8 images [N, H, W, 3], or of a view of each."""
        parts = []
        for start in range(0, len(images), 500):
            batch = tf.constant(images[start : start + 500])
            positions = tf.range(start, start + len(batch))
            pixels = view(batch, positions) if view else tf.cast(batch, tf.float32) / 255.0
            parts.append({name: x.numpy() for name, x in self._forward(pixels).items()})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def severities(embedding: Embedding, damage: Callable[[int], np.ndarray]) -> Vectors:
    """Vectors [5, N, ...] of images at every severity of a damage."""
    parts = [embedding(damage(severity)) for severity in SEVERITIES]
    return {name: np.stack([part[name] for part in parts]) for name in parts[0]}


def foreigners(embedding: Embedding, config: ml_collections.ConfigDict, name: str) -> Vectors:
    """Vectors [N, ...] of another data set."""
    return embedding(load_source(config, name, "test").images()[: _TEST.value])


def collect(embedding: Embedding, config: ml_collections.ConfigDict) -> dict[str, Vectors]:
    """All vectors of the study."""
    augmentation = augmentation_from_config(config)
    train = load_source(config, config.data.source, "train").images()[: _TRAIN.value]
    test = load_source(config, config.data.source, "test").images()
    half = len(test) // 2
    judged, validated = test[: _TEST.value], test[half : half + _TEST.value]
    made: dict[str, Callable[[], Vectors]] = {}

    def view_of(function: Callable, number: int) -> Callable[[], Vectors]:
        def view(images: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
            return function(images, example_seeds(0, 0, positions, number))

        return lambda: embedding(train, view)

    for number in (0, 1):
        made[f"train_view{number}"] = view_of(augmentation, number)
    for kind in KINDS:
        made[f"train_{kind}"] = view_of(WideViews(augmentation=augmentation, kinds=(kind,)), 2)
    made["validation_clean"] = lambda: embedding(validated)
    for name, shift in SHIFTS.items():
        made[f"validation_{name}"] = partial(severities, embedding, partial(shift, validated))
    for foreign in ("cifar100", "mnist"):
        made[f"foreign_{foreign}"] = partial(foreigners, embedding, config, foreign)
    made["suite_clean"] = lambda: embedding(judged)
    for name in CORRUPTIONS:
        made[f"suite_{name}"] = partial(severities, embedding, partial(corrupt, judged, name))
    return {name: embedding.kept(name, make) for name, make in made.items()}


def fit(seen: np.ndarray, cosine: np.ndarray, seed: int, *, normed: bool) -> keras.Model:
    """A concentration head [n, F] -> [n], trained on views of those measured cosines [n]."""
    keras.utils.set_random_seed(seed)
    config = default_config().concentration
    head = models.build_concentration_head(seen.shape[1], initial=3.0, input_norm=normed)
    rate = keras.optimizers.schedules.CosineDecay(1e-3, _STEPS.value)
    optimizer = keras.optimizers.Adam(rate)
    optimizer.build(head.trainable_variables)
    inputs, targets = tf.constant(seen), tf.constant(cosine)

    @tf.function
    def step(rows: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            kappa = head(tf.gather(inputs, rows), training=True)
            terms = concentration_terms([tf.gather(targets, rows)], [kappa], config, dimension=0)
            loss = tf.add_n(list(terms.values()))
        variables = head.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    rng = np.random.default_rng(seed)
    for _ in range(_STEPS.value):
        step(tf.constant(rng.integers(len(seen), size=768)))
    return head


def measure(row: Row, seed: int, vectors: dict[str, Vectors]) -> dict[str, float]:
    """Fits a head and judges it."""
    key = "levels" if row.levels == "all" else "features"
    first = vectors["train_view0"]["mean_direction"]

    def cosine(name: str) -> np.ndarray:
        return (first * vectors[name]["mean_direction"]).sum(axis=1)

    count = len(first)
    held_out = count * 9 // 10
    # Two ordinary views of every image and one wide one, its kind drawn, as in training.
    drawn = np.random.default_rng(seed).integers(max(len(row.kinds), 1), size=count)
    everyone = np.arange(held_out)
    parts = [(f"train_view{number}", "train_view1", everyone) for number in (0, 1)]
    for number, kind in enumerate(row.kinds):
        chosen = everyone[drawn[:held_out] == number]
        parts.append((f"train_{kind}", f"train_{kind}", chosen))
    seen = np.concatenate([vectors[name][key][rows] for name, _, rows in parts])
    target = np.concatenate([cosine(name)[rows] for _, name, rows in parts])
    head = fit(seen, target, seed, normed=row.levels == "all")

    def kappa(name: str) -> np.ndarray:
        values = vectors[name][key]
        return np.asarray(head(values.reshape(-1, values.shape[-1]))).reshape(values.shape[:-1])

    def falls(group: str, names: Sequence[str]) -> dict[str, float]:
        clean = kappa(f"{group}_clean").mean()
        return {
            name: float(stats.spearmanr(range(6), [clean, *kappa(f"{group}_{name}").mean(1)])[0])
            for name in names
        }

    def auroc(name: str) -> float:
        known, foreign = kappa("validation_clean"), kappa(name)
        labels = np.repeat([0, 1], [len(known), len(foreign)])
        return float(metrics.roc_auc_score(labels, -np.concatenate([known, foreign])))

    errors = [
        np.abs(kappa(f"train_{kind}")[held_out:] / 5.0 - cosine(f"train_{kind}")[held_out:])
        for kind in DEFAULT_KINDS
    ]
    validation, suite = falls("validation", list(SHIFTS)), falls("suite", list(CORRUPTIONS))
    return {
        "validation": float(np.mean(list(validation.values()))),
        "suite": float(np.mean(list(suite.values()))),
        "unseen classes": auroc("foreign_cifar100"),
        "mnist": auroc("foreign_mnist"),
        "calibration": float(np.mean(errors)),
        **{f"validation {name}": value for name, value in validation.items()},
        **{f"suite {name}": value for name, value in suite.items()},
    }


def main(argv: Sequence[str]) -> None:
    """Embeds, fits, prints."""
    del argv
    directory = pathlib.Path(_DIRECTORY.value)
    config, method, *_ = load_method(pathlib.Path(_ENCODER.value))
    assert config.model.backbone in resnet.ARCHITECTURES
    if _DATA_DIR.value:
        config.data.data_dir = _DATA_DIR.value
    vectors = collect(Embedding(method.encoder, config.model.backbone, directory), config)
    columns = ("validation", "suite", "unseen classes", "mnist", "calibration")
    print(f"| levels | wide views | {' | '.join(columns)} |\n| --- | --- |" + " ---: |" * 5)
    results = []
    for row in ROWS:
        heads = [measure(row, seed, vectors) for seed in range(_SEEDS.value)]
        results.append({"levels": row.levels, "kinds": row.kinds, "heads": heads})
        cells = []
        for column in columns:
            values = [head[column] for head in heads]
            cells.append(f"{np.mean(values):.3f} ± {np.ptp(values) / 2:.3f}")
        print(f"| {row.title} | {' | '.join(cells)} |", flush=True)
    (directory / "study.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    app.run(main)
