"""Subjects of evaluation: of runs, and by hand of a plain Keras model."""

import keras
import numpy as np
from keras import layers

from tfvmf import evaluation, inference, posthoc
from tfvmf.data import Augmentation, load_source


def embeddings(workdir, count):
    """What a run's encoder says of the first test images."""
    subject = evaluation.subject_from_run(workdir)
    return subject.embedder(subject.test.images(0, count))


def plain_encoder(*, seed=0):
    """A Keras model with the three outputs and nothing else of tfvmf, for images of any size."""
    keras.utils.set_random_seed(seed)
    images = keras.Input((None, None, 3))
    x = layers.Conv2D(8, 3, strides=2, activation="relu")(images)
    x = layers.Conv2D(12, 3, activation="relu")(x)
    features = layers.GlobalAveragePooling2D()(x)
    direction = layers.UnitNormalization()(layers.Dense(4)(features))
    kappa = layers.Dense(1, activation="softplus")(features)
    outputs = {
        "features": features,
        "mean_direction": direction,
        "concentration": layers.Reshape(())(kappa),
    }
    return keras.Model(images, outputs, name="plain")


def judge_of(encoder, source):
    """Familiarity of one half of a source, and a decision that is calibrated on the other."""
    outputs = inference.Embedder(encoder)(source.images())
    order = np.random.default_rng(0).permutation(source.size)
    known, held = np.array_split(order, 2)
    familiarity = posthoc.Familiarity.fit(outputs["features"][known])
    values = familiarity(outputs["features"][held]).numpy()
    decision = posthoc.Decision.fit(outputs["concentration"][held], values)
    return posthoc.Judge(
        familiarity=familiarity, decision=decision, source=source.name, images=len(held)
    )


def make_subject(directory=None, **fields):
    """Digits and a plain encoder; `fields` are those of a Subject."""
    train, test = (load_source("digits", split, image_size=12) for split in ("train", "test"))
    fields = {"encoder": plain_encoder(), "train": train, "test": test} | fields
    return evaluation.Subject(directory=directory, **fields)


def full_subject(directory=None, **fields):
    """The same with all that suites may ask for."""
    rng = np.random.default_rng(0)
    lines = [
        {
            "step": 10 * epoch,
            "epoch": float(epoch),
            "loss": 2.0 / epoch,
            "surprise": 1.5 / epoch,
            "penalty": 0.5 / epoch,
            "cosine": 0.1,
            "kappa": float(epoch),
            "kappa_std": 0.5,
            "learning_rate": 0.1,
        }
        for epoch in (1, 2, 3)
    ]
    encoder, train = plain_encoder(), load_source("digits", "train", image_size=12)
    fields = {"encoder": encoder, "train": train, "judge": judge_of(encoder, train)} | fields
    monitored = {"step": 30, "eval_kappa": 2.5, "knn_accuracy": float(rng.random())}
    return make_subject(
        directory,
        name="plain",
        augmentation=Augmentation(size=12),
        predicted_cosine=lambda kappa: kappa / 2.0,
        load=lambda name, split: load_source(name, split, image_size=12),
        metrics=[*lines, monitored],
        **fields,
    )
