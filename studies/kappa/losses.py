"""Which loss makes the best concentration head for a frozen, pretrained encoder?

    .venv/bin/python -m studies.kappa.losses --encoder=keras:efficientnet_lite0.keras \
        --data_dir=DIR --directory=runs/kappa_losses [--suite]

Embeds views of CIFAR-10 training images and shifted test images once (shifted at 32 pixels, then
enlarged), keeps the vectors, and fits a head with every loss from them: half a minute a head.

- regression: the paper's alignment and penalty, smallest at kappa = 5 E[cos], as in `fit-kappa`.
- rank: of every two views of a batch, the one with the larger cosine is to have the larger kappa,
  mean of log(1 + exp(-(kappa_i - kappa_j) / scale)); no gradient reaches the encoder
  (Kirchhof et al., arXiv 2402.16569).
- both: their sum with a weight.

Choices are made on the validation shifts alone, by the mean of the per-image AUROC (clean against
severity 5); also shown are the mean six-point Spearman and the least family (`study.py`).
--suite adds the 18 corruptions, for judging a choice that was made.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import tfvmf  # isort: skip # noqa: F401 # before TensorFlow: it says which kernels to use
import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.metrics import roc_auc_score

from studies.kappa.shifts import FAMILIES, SHIFTS
from tfvmf import data, losses, models
from tfvmf.configs import photos
from tfvmf.counter_random import example_seeds
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from tfvmf.data.images import resize_image
from tfvmf.evaluation.suites.cifar10c import correlate
from tfvmf.training.inputs import augmentation_from_config

Vectors = dict[str, np.ndarray]  # features [..., F] and levels [..., L]
_SIZE, _TRAIN, _TEST = 96, 5000, 400

flags.DEFINE_string("encoder", "", "a backbone, as `models.load_backbone` takes it")
flags.DEFINE_string("data_dir", "", "where TFDS finds CIFAR-10")
flags.DEFINE_string("directory", "", "keeps the vectors")
flags.DEFINE_integer("seeds", 2, "heads a row", lower_bound=1)
flags.DEFINE_bool("suite", False, "judge on the 18 corruptions too")


def collect(
    spec: str, data_dir: str, directory: pathlib.Path, *, suite: bool
) -> dict[str, Vectors]:
    """All vectors: views of training images, test images as they are, and shifted ones."""
    directory.mkdir(parents=True, exist_ok=True)
    config = photos.get_config()
    config.data.image_size = _SIZE
    augmentation = augmentation_from_config(config)
    wide = data.WideViews(augmentation=augmentation)
    rng, kept, made = np.random.default_rng(0), dict[str, Vectors](), dict[str, Callable]()
    loaded: list = []

    def images(split: str) -> np.ndarray:
        return data.load_source("cifar10", split, data_dir=data_dir).images()

    def embed(pixels: np.ndarray, view: Callable | None = None, number: int = 0) -> Vectors:
        if not loaded:
            encoder = models.build_encoder(models.load_backbone(spec), dimension=None)
            net = models.with_levels(encoder)
            loaded.append(tf.function(lambda x: net(x, training=False), reduce_retracing=True))
        parts = []
        for start in range(0, len(pixels), 250):
            batch = np.stack([resize_image(x, _SIZE) for x in pixels[start : start + 250]])
            seen = tf.constant(batch)
            seeds = example_seeds(0, 0, tf.range(start, start + len(batch)), tf.constant(number))
            seen = view(seen, seeds) if view else tf.cast(seen, tf.float32) / 255.0
            parts.append({key: loaded[0](seen)[key].numpy() for key in ("features", "levels")})
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    def damaged(pixels: np.ndarray, damage: Callable[[int], np.ndarray]) -> Vectors:
        parts = [embed(damage(severity)) for severity in SEVERITIES]
        return {key: np.stack([part[key] for part in parts]) for key in parts[0]}

    train = images("train")
    train = train[rng.permutation(len(train))[:_TRAIN]]
    test = images("test")
    test = test[rng.permutation(len(test))]
    judged, validated = test[:_TEST], test[5000 : 5000 + _TEST]
    for number in (0, 1):
        made[f"train_view{number}"] = lambda number=number: embed(train, augmentation, number)
        made[f"train_wide{number + 2}"] = lambda number=number: embed(train, wide, number + 2)
    made["validation_clean"] = lambda: embed(validated)
    for name, shift in SHIFTS.items():
        made[f"validation_{name}"] = lambda shift=shift: damaged(
            validated, lambda severity: shift(validated, severity)
        )
    if suite:
        made["suite_clean"] = lambda: embed(judged)
        for name in CORRUPTIONS:
            made[f"suite_{name}"] = lambda name=name: damaged(
                judged, lambda severity: corrupt(judged, name, severity)
            )
    for name, make in made.items():
        path = directory / f"{name}.npz"
        if not path.exists():
            np.savez(path, allow_pickle=False, **make())
        with np.load(path, allow_pickle=False) as found:
            kept[name] = dict(found)
    return kept


def fit(
    vectors: dict[str, Vectors],
    *,
    regression: float,
    rank: float,
    scale: float = 1.0,
    target: str = "one view",
    seed: int = 0,
    steps: int = 1500,
) -> keras.Model:
    """A head from levels to kappa, as `fit-kappa` trains it, with weights for both losses.

    `target` says what the direction of a wide view is compared with: `one view`, that is the first
    ordinary one; both of them, by the `mean cosine`; or their `mean direction`.
    """
    names = ["train_view0", "train_view1", "train_wide2", "train_wide3"]
    seen = tf.constant(np.stack([vectors[name]["levels"] for name in names], axis=1))
    mu = np.stack([vectors[name]["features"] for name in names], axis=1)
    mu /= np.linalg.norm(mu, axis=2, keepdims=True)
    cosine = np.einsum("nvd,nwd->nvw", mu, mu)
    wide = {"one view": cosine[:, 0, 2:], "mean cosine": cosine[:, :2, 2:].mean(axis=1)}
    middle = mu[:, :2].sum(axis=1, keepdims=True)
    middle /= np.linalg.norm(middle, axis=2, keepdims=True)
    wide["mean direction"] = (mu[:, 2:] * middle).sum(axis=2)
    targets = np.concatenate([cosine[:, [0], [1]]] * 2 + [wide[target]], axis=1)
    targets = tf.constant(targets.astype(np.float32))
    keras.utils.set_random_seed(seed)
    head = models.build_concentration_head(seen.shape[2], input_norm=True)
    schedule = keras.optimizers.schedules.CosineDecay(1e-3, steps)
    optimizer = keras.optimizers.Adam(schedule)
    optimizer.build(head.trainable_variables)

    @tf.function
    def step(rows: tf.Tensor, columns: tf.Tensor) -> None:
        views = tf.gather(tf.gather(seen, rows), columns, axis=1, batch_dims=1)
        cosines = tf.gather(tf.gather(targets, rows), columns, axis=1, batch_dims=1)
        cosines = tf.reshape(cosines, [-1])
        with tf.GradientTape() as tape:
            kappa = head(tf.reshape(views, [-1, seen.shape[2]]), training=True)
            terms = losses.concentration_terms([cosines], [kappa])
            loss = regression * tf.add_n(list(terms.values()))
            sign = tf.sign(cosines[:, None] - cosines)
            pairs = tf.nn.softplus(-sign * (kappa[:, None] - kappa) / scale)
            loss += rank * tf.reduce_mean(tf.where(sign != 0.0, pairs, 0.0))
        variables = head.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    rng = np.random.default_rng(seed)
    for _ in range(steps):
        rows = rng.integers(len(seen), size=128)
        columns = np.stack([0 * rows, 0 * rows + 1, 2 + rng.integers(2, size=128)], axis=1)
        step(tf.constant(rows), tf.constant(columns))
    return head


def judge(head: keras.Model, vectors: dict[str, Vectors], group: str) -> dict[str, float]:
    """Mean AUROC (clean against severity 5), mean Spearman, and the least family."""

    def kappa(name: str) -> np.ndarray:
        levels = vectors[f"{group}_{name}"]["levels"]
        return np.asarray(head(levels.reshape(-1, levels.shape[-1]))).reshape(levels.shape[:-1])

    clean, lower = kappa("clean"), {}
    found: dict[str, list[float]] = {"auroc": [], "spearman": []}
    for name in SHIFTS if group == "validation" else CORRUPTIONS:
        values = kappa(name)
        labels = np.repeat([1, 0], [len(clean), values.shape[1]])
        found["auroc"].append(roc_auc_score(labels, np.concatenate([clean, values[-1]])))
        found["spearman"].append(correlate(np.stack([clean, *values]), rounds=1).spearman)
        lower[name] = (values < clean).mean()
    means = {key: float(np.mean(value)) for key, value in found.items()}
    if group == "validation":
        families = [[lower[s.__name__] for s in members] for members in FAMILIES.values()]
        means["least"] = float(min(np.mean(members) for members in families))
    return means


ROWS: dict[str, dict[str, Any]] = {
    "regression": {"regression": 1.0, "rank": 0.0},
    "rank": {"regression": 0.0, "rank": 1.0},
    "rank, scale 0.1": {"regression": 0.0, "rank": 1.0, "scale": 0.1},
    "both, weight 0.1": {"regression": 1.0, "rank": 0.1},
    **{
        f"both, weight {weight}, {target}": {"regression": 1.0, "rank": weight, "target": target}
        for target in ("mean cosine", "mean direction")
        for weight in (0.0, 0.1, 0.5)
    },
    "rank, mean direction": {"regression": 0.0, "rank": 1.0, "target": "mean direction"},
}


def main(argv: Sequence[str]) -> None:
    """Embeds, fits, prints a Markdown table."""
    del argv
    given = flags.FLAGS
    vectors = collect(
        given.encoder, given.data_dir, pathlib.Path(given.directory), suite=given.suite
    )
    groups = ("validation", "suite") if given.suite else ("validation",)
    print("| loss | validation: AUROC | Spearman | least | suite: AUROC | Spearman |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, options in ROWS.items():
        cells = []
        heads = [fit(vectors, **options, seed=seed) for seed in range(given.seeds)]
        for group in groups:
            found = [judge(head, vectors, group) for head in heads]
            cells += [f"{np.mean([one[key] for one in found]):.3f}" for key in found[0]]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    app.run(main)
