"""Which views and which levels make a kappa that falls on images nobody augmented for?

    .venv/bin/python -m studies.kappa.study --encoder=runs/cifar10_cpu_resnet-simclr_vmf \
        --data_dir=DIR --directory=runs/kappa_study [--seeds=3]

Embeds ordinary and wide views of training images once, then trains a concentration head for every
row from these vectors, with the loss of `tfvmf fit-kappa`. Choices are made on the *validation*
shifts of `studies/kappa/shifts.py`, by

- lower: the share of damaged images whose kappa is below that of the image itself, mean over shifts
  and severities, in that family of shifts (other places, other colors, more edges, less detail)
  where it is *least*: a kappa that rises under a whole family of damages misleads.

Only looked at are

- the same, mean of the families,
- truth: the Spearman correlation of kappa with what it estimates, the cosine between the damaged
  image and an ordinary view of the undamaged one, over images and severities; mean of the shifts,
- falls: mean Spearman correlation of severity and mean kappa (six points), for the shifts and for
  the corruptions of the suite (CIFAR-10-C protocol, generated),
- images: the same over all images and severities of the suite, not their means,
- the AUROC against unseen classes (CIFAR-100) and MNIST,
- error: mean |kappa / 5 - cos| on the shifts.

Prints two Markdown tables, a row a recipe: these, and the falls of the 18 corruptions one by one.
Writes study.json beside the vectors. 10 minutes for the vectors on 2 cores, then 5 seconds a head;
a second call takes the vectors that are there.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

import tfvmf  # isort: skip # noqa: F401 # before TensorFlow: it says which kernels to use
import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from scipy import stats

from studies.kappa.shifts import FAMILIES, SHIFTS
from studies.kappa.vectors import Embedding, Vectors, collect
from studies.kappa.views import KINDS
from tfvmf import losses, models
from tfvmf.data.corruptions import CORRUPTIONS
from tfvmf.data.wide import KINDS as DEFAULT_KINDS
from tfvmf.evaluation.suites.cifar10c import correlate
from tfvmf.evaluation.suites.ood import detection
from tfvmf.models import resnet
from tfvmf.training.checkpoints import load_method

_ENCODER = flags.DEFINE_string("encoder", "", "directory of a trained run")
_DATA_DIR = flags.DEFINE_string("data_dir", "", "where TFDS finds CIFAR-10, CIFAR-100 and MNIST")
_DIRECTORY = flags.DEFINE_string("directory", "", "keeps vectors and results")
_TRAIN = flags.DEFINE_integer("train", 8000, "training images", lower_bound=100)
_TEST = flags.DEFINE_integer("test", 500, "images of each test", lower_bound=10)
_ROWS = flags.DEFINE_list("rows", [], "numbers of rows of the table, from 1; all by default")
_SEEDS = flags.DEFINE_integer("seeds", 3, "heads a row", lower_bound=1)

COLUMNS = (
    "lower, least",
    "lower, mean",
    "truth",
    "falls, validation",
    "falls, suite",
    "images, suite",
    "CIFAR-100",
    "MNIST",
    "error",
)


@dataclasses.dataclass(frozen=True)
class Row:
    """A recipe: what the head sees, which wide views it learns from beside ordinary ones, how long.

    Attributes:
        levels: `last` or `all`.
        kinds: Of wide views.
        steps: Of the head's training, on 768 views each.
    """

    levels: str
    kinds: tuple[str, ...] = ()
    steps: int = 400

    @property
    def title(self) -> str:
        """In the table."""
        return f"{self.levels} | {', '.join(self.kinds) or 'none'} | {self.steps}"


EARLIER = ("mix", "patch", "crop", "filter")
THREE = ("crop", "filter", "spectrum")
ROWS = [
    *(Row("last", kinds) for kinds in ((), EARLIER, ("crop", "filter"), THREE)),
    Row("all"),
    *(Row("all", (kind,)) for kind in KINDS),
    *(Row("all", kinds) for kinds in (EARLIER, ("crop", "filter"), ("crop", "spectrum"))),
    *(Row("all", kinds) for kinds in (("mix", *THREE), ("patch", *THREE), THREE)),
    *(Row("all", DEFAULT_KINDS, steps) for steps in (100, 400, 1600)),
    Row("last", DEFAULT_KINDS),
]

flags.register_validator(
    "rows",
    lambda rows: all(row.isdecimal() and 1 <= int(row) <= len(ROWS) for row in rows),
    f"numbers from 1 to {len(ROWS)}, separated by commas",
)


def fit(
    seen: np.ndarray, cosine: np.ndarray, *, seed: int, steps: int, normed: bool
) -> keras.Model:
    """A concentration head [n, F] -> [n], trained on views of those measured cosines [n]."""
    keras.utils.set_random_seed(seed)
    head = models.build_concentration_head(seen.shape[1], initial=3.0, input_norm=normed)
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-3, steps))
    optimizer.build(head.trainable_variables)
    inputs, targets = tf.constant(seen), tf.constant(cosine)

    @tf.function
    def step(rows: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            kappa = head(tf.gather(inputs, rows), training=True)
            terms = losses.concentration_terms([tf.gather(targets, rows)], [kappa])
            loss = tf.add_n(list(terms.values()))
        variables = head.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    rng = np.random.default_rng(seed)
    for _ in range(steps):
        step(tf.constant(rng.integers(len(seen), size=768)))
    return head


def fit_row(row: Row, seed: int, vectors: dict[str, Vectors]) -> keras.Model:
    """The head of a recipe: two ordinary views of every image and one wide one, its kind drawn."""
    key = _key(row)
    first = vectors["train_view0"]["mean_direction"]
    everyone = np.arange(len(first))
    drawn = np.random.default_rng(seed).integers(max(len(row.kinds), 1), size=len(first))
    # What is seen, what its direction is compared with the first view's, which images.
    parts = [(f"train_view{number}", "train_view1", everyone) for number in (0, 1)]
    for number, kind in enumerate(row.kinds):
        parts.append((f"train_{kind}", f"train_{kind}", everyone[drawn == number]))
    seen = np.concatenate([vectors[name][key][rows] for name, _, rows in parts])
    cosines = [
        (first[rows] * vectors[name]["mean_direction"][rows]).sum(axis=1) for _, name, rows in parts
    ]
    return fit(
        seen, np.concatenate(cosines), seed=seed, steps=row.steps, normed=row.levels == "all"
    )


def judge(row: Row, head: keras.Model, vectors: dict[str, Vectors]) -> dict[str, float]:
    """All columns of a head, and each shift and corruption."""
    key = _key(row)

    def kappa(name: str) -> np.ndarray:
        values = vectors[name][key]
        return np.asarray(head(values.reshape(-1, values.shape[-1]))).reshape(values.shape[:-1])

    def damaged(group: str, name: str) -> np.ndarray:
        """Kappa [6, N], the undamaged images first."""
        return np.concatenate([kappa(f"{group}_clean")[None], kappa(f"{group}_{name}")])

    def auroc(name: str) -> float:
        return detection(-kappa("validation_clean"), -kappa(name))["auroc"]

    reference = vectors["validation_view"]["mean_direction"]
    found: dict[str, list[float]] = {column: [] for column in COLUMNS}
    single, lower = {}, {}
    for name in SHIFTS:
        kappas = damaged("validation", name)
        directions = [
            vectors[f"validation_{which}"]["mean_direction"].reshape(-1, *reference.shape)
            for which in ("clean", name)
        ]
        cosine = (np.concatenate(directions) * reference).sum(axis=-1)
        lower[name] = float((kappas[1:] < kappas[0]).mean())
        found["truth"].append(float(stats.spearmanr(kappas.ravel(), cosine.ravel())[0]))
        found["error"].append(float(np.abs(kappas / 5.0 - cosine).mean()))
        single[name] = correlate(kappas, rounds=1).spearman
        found["falls, validation"].append(single[name])
    for name in CORRUPTIONS:
        correlation = correlate(damaged("suite", name), rounds=1)
        single[name] = correlation.spearman
        found["falls, suite"].append(correlation.spearman)
        found["images, suite"].append(correlation.per_image)
    families = {
        family: float(np.mean([lower[shift.__name__] for shift in members]))
        for family, members in FAMILIES.items()
    }
    found["lower, least"] = [min(families.values())]
    found["lower, mean"] = list(families.values())
    found["CIFAR-100"] = [auroc("foreign_cifar100")]
    found["MNIST"] = [auroc("foreign_mnist")]
    means = {column: float(np.mean(values)) for column, values in found.items()}
    return means | single | {f"lower, {family}": value for family, value in families.items()}


def _key(row: Row) -> str:
    """Which vectors the head sees."""
    return "levels" if row.levels == "all" else "features"


def main(argv: Sequence[str]) -> None:
    """Embeds, fits, prints."""
    for flag in (_ENCODER, _DIRECTORY):  # not `required`: tests import this beside other programs
        if not flag.value:
            raise app.UsageError(f"--{flag.name} is missing")
    del argv
    directory = pathlib.Path(_DIRECTORY.value)
    config, method, *_ = load_method(pathlib.Path(_ENCODER.value))
    assert config.model.backbone in resnet.ARCHITECTURES
    if _DATA_DIR.value:
        config.data.data_dir = _DATA_DIR.value
    embedding = Embedding(method.encoder, config.model.backbone, directory)
    vectors = collect(embedding, config, train=_TRAIN.value, test=_TEST.value)
    print(_header(COLUMNS))
    results = []
    rows = [ROWS[int(number) - 1] for number in _ROWS.value] or ROWS
    for row in rows:
        heads = [judge(row, fit_row(row, s, vectors), vectors) for s in range(_SEEDS.value)]
        results.append({**dataclasses.asdict(row), "heads": heads})
        cells = []
        for column in COLUMNS:
            values = [head[column] for head in heads]
            cells.append(f"{np.mean(values):.3f} ± {np.ptp(values) / 2:.3f}")
        print(f"| {row.title} | {' | '.join(cells)} |", flush=True)
    print(f"\n{_header([name.replace('_', ' ') for name in CORRUPTIONS])}")
    for row, result in zip(rows, results, strict=True):
        means = [np.mean([head[name] for head in result["heads"]]) for name in CORRUPTIONS]
        print(f"| {row.title} | {' | '.join(f'{mean:.2f}' for mean in means)} |")
    name = f"study-{'-'.join(_ROWS.value)}.json" if _ROWS.value else "study.json"
    (directory / name).write_text(json.dumps(results, indent=1))


def _header(columns: Sequence[str]) -> str:
    """Of a Markdown table."""
    names = ("levels", "wide views", "steps", *columns)
    return f"| {' | '.join(names)} |\n| --- | --- |" + " ---: |" * (len(columns) + 1)


if __name__ == "__main__":
    app.run(main)
