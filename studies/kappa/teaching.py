"""What should a concentration head see? For any run on CIFAR-10.

    .venv/bin/python -m studies.kappa.teaching --run=RUN --data_dir=DIR --directory=runs/teaching \
        [--suite]

Views of 12,000 training images and shifted test images are embedded once and kept: the image
itself (`whole`), two ordinary views of it (crops of at least 60 % of the area), two wide ones and
two crops of 3 to 30 %. A row of the table is what a head sees in a step: so many views of each
kind. All are compared with the image and its ordinary views. The best AUROC on the validation
shifts chooses; --suite adds the 18 corruptions, which choose nothing. The results are in
docs/kappa.md.
"""

import pathlib
from collections.abc import Sequence

import tfvmf  # isort: skip # noqa: F401 # before TensorFlow: it says which kernels to use
import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from studies.familiarity import study
from tfvmf import losses, models, training
from tfvmf.counter_random import example_seeds
from tfvmf.posthoc.method import damaged_views, whole_images
from tfvmf.training.inputs import augmentation_from_config

_TRAIN, _BATCH, _STEPS = 12_000, 128, 800
# Columns of the vectors; each view but the image itself is there twice.
KINDS = {"whole": (0,), "ordinary": (1, 2), "wide": (3, 4), "crop": (5, 6)}
COMPARED = (0, 1, 2)
ROWS: dict[str, dict[str, int]] = {
    "the image, an ordinary view, two wide ones": {"whole": 1, "ordinary": 1, "wide": 2},
    "... and a crop": {"whole": 1, "ordinary": 1, "wide": 2, "crop": 1},
    "the image, two wide views": {"whole": 1, "wide": 2},
    "the image, two wide views, two crops": {"whole": 1, "wide": 2, "crop": 2},
    "the image, a wide view": {"whole": 1, "wide": 1},
    "the image, a wide view, two crops": {"whole": 1, "wide": 1, "crop": 2},
    "the image, a wide view, a crop": {"whole": 1, "wide": 1, "crop": 1},
}

flags.DEFINE_integer("seeds", 2, "heads per row", lower_bound=1)


def embed_views(run: str, data_dir: str, path: pathlib.Path) -> study.Vectors:
    """`levels` [N, V, L] and `mean_direction` [N, V, d] of views of training images, kept."""
    if not path.exists():
        config, method, _ = training.load_method(run)
        config.data.data_dir = data_dir or config.data.data_dir
        source = training.load_source(config, config.data.source, config.data.train_split)
        ordinary = augmentation_from_config(config).changed(crop_min=0.6)
        kinds = [whole_images, ordinary, *damaged_views(ordinary, source.native_size)]
        net, columns = models.with_levels(method.encoder), []
        rows = np.random.default_rng(0).permutation(source.size)[:_TRAIN].astype(np.int32)
        for kind, numbers in zip(kinds, KINDS.values(), strict=True):
            view = tf.function(lambda x, seeds, kind=kind: net(kind(x, seeds), training=False))
            for number in numbers:
                parts = []
                for chunk in np.array_split(rows, -(-len(rows) // 250)):
                    seeds = example_seeds(0, 0, tf.constant(chunk), tf.constant(number))
                    outputs = view(tf.constant(source.take(chunk)), seeds)
                    parts.append([outputs[key].numpy() for key in ("levels", "mean_direction")])
                columns.append([np.concatenate(part) for part in zip(*parts, strict=True)])
        levels, directions = (np.stack(part, axis=1) for part in zip(*columns, strict=True))
        np.savez(path, allow_pickle=False, levels=levels, mean_direction=directions)
    with np.load(path, allow_pickle=False) as found:
        return dict(found)


def fit(vectors: study.Vectors, seen: dict[str, int], *, seed: int = 0) -> keras.Model:
    """A head that sees so many views of each kind in a step, as `fit-kappa` teaches it."""
    mu = vectors["mean_direction"]
    cosines = np.einsum("nvd,nwd->nvw", mu, mu[:, COMPARED])
    own = np.eye(mu.shape[1])[:, COMPARED]  # no view is compared with itself
    targets = (cosines * (1 - own)).sum(axis=2) / (1 - own).sum(axis=1)
    levels, cosine = tf.constant(vectors["levels"]), tf.constant(targets.astype(np.float32))
    keras.utils.set_random_seed(seed)
    head = models.build_concentration_head(levels.shape[2], input_norm=True)
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-3, _STEPS))
    optimizer.build(head.trainable_variables)

    @tf.function
    def step(places: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            kappa = head(tf.gather_nd(levels, places), training=True)
            terms = losses.concentration_terms([tf.gather_nd(cosine, places)], [kappa])
            loss = tf.add_n(list(terms.values()))
        optimizer.apply(tape.gradient(loss, head.trainable_variables), head.trainable_variables)

    rng = np.random.default_rng(seed)
    for _ in range(_STEPS):
        rows, places = rng.integers(len(mu), size=_BATCH), []
        for kind, count in seen.items():
            drawn = rng.permuted(np.tile(KINDS[kind], (_BATCH, 1)), axis=1)[:, :count]
            places += [np.stack([rows, column], axis=1) for column in drawn.T]
        step(tf.constant(np.concatenate(places)))
    return head


def main(argv: Sequence[str]) -> None:
    """Embeds, fits, prints a Markdown table."""
    del argv
    given = flags.FLAGS
    directory = pathlib.Path(given.directory)
    shifted = study.collect(given.run, given.data_dir, directory, suite=given.suite)
    vectors = embed_views(given.run, given.data_dir, directory / "views.npz")
    groups = ("validation", "suite") if given.suite else ("validation",)
    print(f"| what the head sees |{' AUROC, severity 5 | Spearman |' * len(groups)}")
    print("| --- |" + " ---: | ---: |" * len(groups))
    for name, seen in ROWS.items():
        cells = []
        heads = [fit(vectors, seen, seed=seed) for seed in range(given.seeds)]
        scores = [study.blocks(lambda x, h=head: h(x).numpy(), "levels") for head in heads]
        for group in groups:
            cells.append(np.mean([study.shifted(one, shifted, group) for one in scores], axis=0))
        print(f"| {name} | {' | '.join(f'{x:.3f}' for x in np.ravel(cells))} |", flush=True)


if __name__ == "__main__":
    app.run(main)
