"""What should a head see, and what should it be compared with? For a frozen, pretrained encoder.

    .venv/bin/python -m studies.kappa.losses --encoder=keras:efficientnet_lite0.keras \
        --data_dir=DIR --directory=runs/kappa_losses
    .venv/bin/python -m studies.kappa.teaching --encoder=keras:efficientnet_lite0.keras \
        --data_dir=DIR --directory=runs/kappa_losses

The second command takes the validation shifts that the first has embedded, and embeds more views
of 4,000 training images: the whole image, views with crops of at least 20 % and of at least 60 % of
the area, and wide views of both kinds of crops: damaged at 96 pixels by filters whose taps are
neighbors (`near`), or 1, 2 or 4 pixels apart (`spaced`), or damaged at the images' own 32 pixels
and then enlarged (`native`). Rows of the table are choices among these. Validation shifts only: the
suite chooses nothing here. The results are in docs/kappa.md.
"""

import pathlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tfvmf  # isort: skip # noqa: F401 # before TensorFlow: it says which kernels to use
import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from studies.kappa import losses as study
from tfvmf import data, losses, models
from tfvmf.counter_random import example_seeds
from tfvmf.data import wide
from tfvmf.data.images import resize_images
from tfvmf.posthoc.method import whole_images

_SIZE, _NATIVE, _TRAIN, _STEPS = 96, 32, 4000, 1500
_JITTER: dict[str, Any] = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}


def _near(images: tf.Tensor, seeds: tf.Tensor, *, views: data.WideViews) -> tf.Tensor:
    """Wide views whose filters have neighboring taps, as before version 0.2."""
    spacings, wide._SPACINGS = wide._SPACINGS, (1,)
    try:
        return views(images, seeds)
    finally:
        wide._SPACINGS = spacings


def _native(images: tf.Tensor, seeds: tf.Tensor, *, views: data.WideViews) -> tf.Tensor:
    small = tf.image.resize(whole_images(images, seeds), [_NATIVE] * 2, method="area")
    return tf.image.resize(views(small, seeds), [_SIZE, _SIZE])


def view_kinds() -> dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]]:
    """All views by name: each is a column of vectors."""
    kinds: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {"whole": whole_images}
    for name, least in (("small", 0.2), ("large", 0.6)):
        crop = partial(data.Augmentation, crop_min=least, **_JITTER)
        large = data.WideViews(augmentation=crop(size=_SIZE))
        kinds[name] = crop(size=_SIZE)
        kinds[f"near {name}"] = partial(_near, views=large)
        kinds[f"spaced {name}"] = large
        kinds[f"native {name}"] = partial(
            _native, views=data.WideViews(augmentation=crop(size=_NATIVE))
        )
    return kinds


def collect(spec: str, data_dir: str, directory: pathlib.Path) -> dict[str, study.Vectors]:
    """Vectors of all views, two of each but the whole image, computed once and kept."""
    kept, loaded = dict[str, study.Vectors](), list[Any]()

    def embed(kind: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], number: int) -> study.Vectors:
        if not loaded:
            pixels = data.load_source("cifar10", "train", data_dir=data_dir).images()
            rows = np.random.default_rng(0).permutation(len(pixels))[:_TRAIN]
            encoder = models.build_encoder(models.load_backbone(spec), dimension=None)
            net = models.with_levels(encoder)
            forward = tf.function(lambda x: net(x, training=False), reduce_retracing=True)
            loaded.extend([resize_images(pixels[rows], _SIZE), forward])
        images, forward = loaded
        view, parts = tf.function(kind), []
        for start in range(0, _TRAIN, 250):
            seeds = example_seeds(0, 0, tf.range(start, start + 250), tf.constant(number))
            outputs = forward(view(tf.constant(images[start : start + 250]), seeds))
            parts.append({key: outputs[key].numpy() for key in ("features", "levels")})
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    for name, kind in view_kinds().items():
        for number in (0, 1)[: 1 if name == "whole" else 2]:
            path = directory / f"teach_{name.replace(' ', '_')}{number}.npz"
            if not path.exists():
                np.savez(path, allow_pickle=False, **embed(kind, number + 10 * (" " in name)))
            with np.load(path, allow_pickle=False) as found:
                kept[f"{name} {number}"] = dict(found)
    for path in directory.glob("validation_*.npz"):
        with np.load(path, allow_pickle=False) as found:
            kept[path.stem] = dict(found)
    return kept


def fit(
    vectors: dict[str, study.Vectors],
    seen: dict[str, int],
    compared: Sequence[str],
    *,
    rank: float = 0.0,
    seed: int = 0,
) -> keras.Model:
    """A head that sees so many views of each kind in a step."""

    def named(kind: str) -> list[str]:
        return [name for name in vectors if name.rpartition(" ")[0] == kind]

    def unit(name: str) -> np.ndarray:
        features = vectors[name]["features"]
        return features / np.linalg.norm(features, axis=1, keepdims=True)

    references = {name: unit(name) for kind in compared for name in named(kind)}
    columns = {name: at for at, name in enumerate(n for kind in seen for n in named(kind))}
    levels = tf.constant(np.stack([vectors[name]["levels"] for name in columns], axis=1))
    targets = np.stack(
        [
            np.mean([(unit(n) * r).sum(axis=1) for m, r in references.items() if m != n], axis=0)
            for n in columns
        ],
        axis=1,
    )
    cosines = tf.constant(targets.astype(np.float32))
    keras.utils.set_random_seed(seed)
    head = models.build_concentration_head(levels.shape[2], input_norm=True)
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-3, _STEPS))
    optimizer.build(head.trainable_variables)

    @tf.function
    def step(places: tf.Tensor) -> None:
        values, cosine = tf.gather_nd(levels, places), tf.gather_nd(cosines, places)
        with tf.GradientTape() as tape:
            kappa = head(values, training=True)
            loss = tf.add_n(list(losses.concentration_terms([cosine], [kappa]).values()))
            if rank:
                sign = tf.sign(cosine[:, None] - cosine)
                pairs = tf.nn.softplus(-2.0 * sign * (kappa[:, None] - kappa))
                loss += rank * tf.reduce_mean(tf.where(sign != 0.0, pairs, 0.0))
        optimizer.apply(tape.gradient(loss, head.trainable_variables), head.trainable_variables)

    rng = np.random.default_rng(seed)
    for _ in range(_STEPS):
        drawn = np.concatenate(
            [rng.choice([columns[name] for name in named(kind)], n) for kind, n in seen.items()]
        )
        step(tf.constant(np.stack([rng.integers(_TRAIN, size=len(drawn)), drawn], axis=1)))
    return head


ROWS: dict[str, tuple[dict[str, int], tuple[str, ...], float]] = {
    "small crops, near": ({"small": 256, "near small": 128}, ("small",), 0.0),
    "as many wide views": ({"small": 128, "near small": 128}, ("small",), 0.0),
    "spaced taps": ({"small": 128, "spaced small": 128}, ("small",), 0.0),
    "large crops": ({"large": 128, "near large": 128}, ("large",), 0.0),
    "large crops, spaced taps": ({"large": 128, "spaced large": 128}, ("large",), 0.0),
    "... twice as many wide views": ({"large": 128, "spaced large": 256}, ("large",), 0.0),
    "... and native ones": (
        {"large": 128, "spaced large": 128, "native large": 128},
        ("large",),
        0.0,
    ),
    "... and the whole image": (
        {"whole": 64, "large": 64, "spaced large": 128, "native large": 128},
        ("whole", "large"),
        0.0,
    ),
    "... and a rank loss, weight 0.5": (
        {"whole": 64, "large": 64, "spaced large": 128, "native large": 128},
        ("whole", "large"),
        0.5,
    ),
}


def main(argv: Sequence[str]) -> None:
    """Embeds, fits, prints a Markdown table."""
    del argv
    given = flags.FLAGS
    vectors = collect(given.encoder, given.data_dir, pathlib.Path(given.directory))
    print("| what the head sees | AUROC | Spearman | least |\n| --- | ---: | ---: | ---: |")
    for name, (seen, compared, rank) in ROWS.items():
        heads = [fit(vectors, seen, compared, rank=rank, seed=s) for s in range(given.seeds)]
        found = [study.judge(head, vectors, "validation") for head in heads]
        cells = [f"{np.mean([one[key] for one in found]):.3f}" for key in found[0]]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    app.run(main)
