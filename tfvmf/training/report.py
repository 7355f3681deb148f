"""What a run tells people while it trains."""

import pathlib

import numpy as np
import tensorflow as tf

from tfvmf import data
from tfvmf.methods import Method
from tfvmf.methods.encoders import encoder_words


def describe(
    method: Method,
    strategy: tf.distribute.Strategy,
    source: data.Source,
    *,
    start: int,
    total_steps: int,
    workdir: pathlib.Path,
) -> None:
    """Says in a few lines what is about to be trained."""
    weights = sum(int(np.prod(v.shape)) for v in method.trainable_variables)
    kind = f" of {source.image_shape[0]}x{source.image_shape[1]}"
    if len(source.image_shape) == 2:
        kind = f" with {source.image_shape[0]} cached views"
    print(
        f"{method.config.method} on {source.name}: {source.size:,} images{kind}, "
        f"{encoder_words(method.config)}, {weights:,} weights, "
        f"{strategy.num_replicas_in_sync} replica(s)"
    )
    where = f"from step {start}" if start else "from the start"
    print(
        f"{total_steps} steps ({method.config.epochs} epochs) {where}, in {workdir}",
        flush=True,
    )


def summary(values: dict[str, float]) -> str:
    """The values that people watch, on one line; a narrow terminal cuts off its end."""
    parts = [f"loss {values['loss']:.3f}"] if "loss" in values else []
    if "kappa" in values:
        parts.append(f"kappa {values['kappa']:.2f}±{values['kappa_std']:.2f}")
    if "knn_accuracy" in values:
        parts.append(f"k-NN {values['knn_accuracy']:.3f}")
    if "eval_error" in values:
        parts.append(f"error {values['eval_error']:.3f} of cosine {values['eval_cosine']:.3f}")
    if "direction_std" in values:
        parts.append(f"spread {values['direction_std']:.2f}")
    if "images_per_second" in values:
        parts.append(f"{values['images_per_second']:.0f} images/s")
    terms = (
        "contrastive",
        "regression",
        "prediction",
        "cross_entropy",
        "alignment",
        "penalty",
    )
    parts += [f"{name} {values[name]:.3f}" for name in terms if name in values]
    return ", ".join(parts)
