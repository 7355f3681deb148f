"""`tfvmf.Contrastive`: a method that Keras compiles, fits, evaluates, saves and loads."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny import tiny_config

import tfvmf
from tfvmf import data, models, training
from tfvmf.errors import UserError
from tfvmf.methods import METHODS, build_method, building
from tfvmf.training.inputs import image_inputs, make_iterator
from tfvmf.training.optimizers import make_optimizer

STEPS, EPOCHS = 20, 4
QUICK = ("byol_vmf",)
SLOW = tuple(name for name in METHODS if name not in (*QUICK, "fit_kappa"))
# All that a run's configuration says of these is in the model's settings.
SETTINGS = {"swav.num_prototypes": 16, "mc_infonce.num_samples": 4, "model.hidden": 16}


class Losses(keras.callbacks.Callback):
    """The loss of each step: Keras shows the mean since the epoch began."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(float(logs["loss"]))
        self.model.reset_metrics()


def config_of(name):
    return tiny_config(
        method=name,
        epochs=EPOCHS,
        batch_size=276,
        log_every_steps=1,
        **{"monitor.every_epochs": 0.0, "model.width": 4, "model.dimension": 16, **SETTINGS},
    )


def make_model(config, num_classes):
    """The model of a run, with the weights that the run starts from."""
    own = METHODS[config.method]
    keys = {f"{own.section}.{key}" for key in own.settings} | {"model.hidden"}
    with building(seed=config.seed):
        start = build_method(config, num_classes=num_classes)
    model = training.Contrastive(
        start.encoder,
        method=config.method,
        augmentation=training.augmentation_from_config(config),
        settings={key: value for key, value in SETTINGS.items() if key in keys},
        num_classes=num_classes,
        seed=config.seed,
    )
    for part, values in start.models.items():
        getattr(model, part).set_weights(values.get_weights())
    optimizer = make_optimizer(
        config.optimizer,
        model.trainable_variables,
        steps_per_epoch=STEPS // EPOCHS,
        total_steps=STEPS,
    )
    model.compile(optimizer)
    return model


def batches_of(config):
    """The batches of a run, as a dataset."""
    inputs = image_inputs(config)
    made = make_iterator(tf.distribute.get_strategy(), inputs, config, total_steps=STEPS)
    batches = list(itertools.islice(made, STEPS))
    images = tf.data.Dataset.from_tensor_slices(np.stack([batch["image"] for batch in batches]))
    if not METHODS[config.method].needs_labels:
        return images, 0
    labels = np.stack([batch["label"] for batch in batches])
    return tf.data.Dataset.zip(images, tf.data.Dataset.from_tensor_slices(labels)), 10


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_fit_and_train_compute_the_same_losses(name, tmp_path):
    config = config_of(name)
    training.train(config, tmp_path / "run")
    expected = [line["loss"] for line in training.read_metrics(tmp_path / "run")]
    dataset, num_classes = batches_of(config)
    model, losses = make_model(config, num_classes), Losses()
    model.fit(dataset, epochs=EPOCHS, steps_per_epoch=5, callbacks=[losses], verbose=0)
    assert len(losses.values) == len(expected) == STEPS
    difference = max(np.abs(np.subtract(losses.values, expected)))
    print(f"| {name} | {expected[0]:.6f} | {expected[-1]:.6f} | {difference:.1e} |")
    assert difference <= 1e-6


@pytest.fixture(scope="module")
def images():
    return data.load_source("digits", "train", image_size=8).images(0, 96)


AUGMENTATION = data.Augmentation(size=8)


def small_encoder(method):
    """One layer and its heads: graphs are built in a second."""
    keras.utils.set_random_seed(0)
    images = keras.Input((None, None, 3))
    features = keras.layers.Conv2D(8, 3, activation="relu")(images)
    features = keras.layers.GlobalAveragePooling2D()(features)
    direction = keras.layers.UnitNormalization()(features)
    if not method.needs_labels:
        direction = models.build_direction_head(8, dimension=8, hidden=32)(features)
    kappa = models.ConstantConcentration()(features)
    if method.probabilistic:
        kappa = models.build_concentration_head(8, hidden=8)(features)
    outputs = {"features": features, "mean_direction": direction, "concentration": kappa}
    return keras.Model(images, outputs, name="encoder")


def small_model(method="simclr_vmf", **options):
    settings = {"swav.num_prototypes": 8, "swav.queue_length": 32} if "swav" in method else {}
    defaults = {
        "encoder": small_encoder(METHODS[method]),
        "augmentation": AUGMENTATION,
        "settings": settings,
        "num_classes": 10 if METHODS[method].needs_labels else 0,
    }
    return training.Contrastive(method=method, **{**defaults, **options})


@pytest.mark.parametrize(
    "name", ["swav_vmf", *(pytest.param(name, marks=pytest.mark.slow) for name in (*SLOW, *QUICK))]
)
def test_a_saved_model_continues_as_if_it_had_not_been_saved(name, images, tmp_path):
    labels = np.arange(96) % 10 if METHODS[name].needs_labels else None
    model = small_model(name)
    model.compile(keras.optimizers.Adam(1e-3))
    options = {"batch_size": 32, "shuffle": False, "verbose": 0}
    model.fit(images, labels, epochs=1, **options)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    embedded = model.predict(images[:4], verbose=0)
    expected = model.fit(images, labels, initial_epoch=1, epochs=2, **options).history
    found = loaded.fit(images, labels, initial_epoch=1, epochs=2, **options).history
    assert found.keys() == expected.keys()
    assert {"loss", *model.method.term_names} <= found.keys()
    for metric, values in expected.items():
        np.testing.assert_allclose(found[metric], values, rtol=1e-5, atol=1e-6, err_msg=metric)
    outputs = tfvmf.load(tmp_path / "model.keras").embed(images[:4])
    assert set(outputs) == {"features", "mean_direction", "concentration"}
    for output, values in embedded.items():
        np.testing.assert_allclose(outputs[output], values, rtol=1e-4, atol=1e-5)
    shown = []
    model.summary(print_fn=lambda text, **_: shown.append(text))
    assert all(part.name in "".join(shown) for part in model.method.models.values())


@pytest.mark.parametrize(
    "name", ["byol_vmf", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)]
)
def test_two_replicas_fit_as_one_device_does(name, two_replicas, images):
    histories = []
    pixels = tf.data.Dataset.from_tensor_slices(images)
    if METHODS[name].needs_labels:
        pixels = tf.data.Dataset.zip(pixels, tf.data.Dataset.range(96).map(lambda i: i % 10))
    dataset = pixels.batch(32, drop_remainder=True)
    for strategy in (tf.distribute.get_strategy(), two_replicas):
        with strategy.scope():
            model = small_model(name)
            model.compile(keras.optimizers.SGD(1e-3))
        history = model.fit(dataset, epochs=2, validation_data=dataset, verbose=0).history
        histories.append(history)
    one, two = histories
    assert one.keys() == two.keys()
    for metric, values in one.items():
        # A deviation is the root of a difference of squares, and loses digits.
        atol = 1e-4 if "std" in metric else 1e-5
        np.testing.assert_allclose(two[metric], values, rtol=2e-4, atol=atol, err_msg=metric)


def fitted(images, **options):
    model = small_model(**options)
    model.compile("sgd")
    model.fit(images, verbose=0)


def test_each_mistake_is_one_sentence(images):
    pairs = tf.data.Dataset.from_tensors((images, np.zeros(96)))
    for data_given, message in (
        (
            pairs,
            "simclr_vmf learns without labels, and the data are pairs .* expected images alone",
        ),
        (images[..., 0], r"a batch has the shape \(32, 8, 8\): expected images \[B, H, W, 3\]"),
        (images.astype(np.float32), r"images must be uint8, or floating point in \[0, 1\]"),
        (images.astype(np.int32), r"a batch is of type int32: images must be uint8"),
    ):
        with pytest.raises(UserError, match=message):
            fitted(data_given)
    with pytest.raises(UserError, match=r"learns from labels: expected pairs \(images, labels\)"):
        fitted(images, method="supervised")
    generated = tf.data.Dataset.from_tensors(images).repeat().take_while(lambda _: False)
    with pytest.raises(UserError, match=r"byol depends on the epoch, .* pass steps_per_epoch"):
        fitted(generated, method="byol")
    model = small_model()
    model.compile("sgd", loss="mse")
    with pytest.raises(UserError, match="the method computes the loss"):
        model.fit(images)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "simclr3"}, "method=simclr3 is unknown: did you mean simclr"),
        ({"method": "fit_kappa"}, "fit_kappa needs a model"),
        ({"settings": {"simclr.temperatur": 1.0}}, "did you mean simclr.temperature?"),
        ({"settings": {"optimizer.momentum": 1.0}}, "not a setting of simclr_vmf: use one of"),
        ({"settings": {"simclr.temperature": -1.0}}, "simclr.temperature=-1.0 must be above 0"),
        ({"augmentation": None}, r"any size: pass augmentation=tfvmf.data.Augmentation"),
        ({"augmentation": keras.layers.Rescaling(1.0)}, "augmentation is a Rescaling: expected"),
        ({"num_classes": 1, "method": "supervised"}, "num_classes=1: supervised needs the number"),
        (
            {"encoder": keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()])},
            "the encoder has no output features, mean_direction, concentration: expected a dict",
        ),
        ({"encoder": 3}, "encoder is a int: expected a Keras model"),
    ],
)
def test_what_cannot_be_trained_is_refused(options, message):
    method = options.get("method", "simclr_vmf")
    if "encoder" not in options:
        known = (
            METHODS[method] if method in METHODS and method != "fit_kappa" else METHODS["byol_vmf"]
        )
        options = {"encoder": small_encoder(known), **options}
    defaults = {"augmentation": AUGMENTATION}
    with pytest.raises(UserError, match=message):
        training.Contrastive(**{**defaults, **options})


def test_an_encoder_is_trained_wholly_or_not_at_all():
    encoders = {name: small_encoder(METHODS[name]) for name in ("simclr_vmf", "simclr")}
    for name, given, message in (
        ("simclr", "simclr_vmf", r"does not train concentration, .* with concentration=False"),
        ("supervised", "simclr", r"does not train mean_direction and .* with dimension=None, conc"),
        ("simclr_vmf", "simclr", r"the encoder's is constant: build it with concentration=True"),
    ):
        with pytest.raises(UserError, match=message):
            training.Contrastive(
                encoders[given], method=name, augmentation=AUGMENTATION, num_classes=10
            )


def test_replicas_need_batches_that_they_can_share(two_replicas, images):
    with two_replicas.scope():
        model = small_model()
        model.compile("sgd")
    for batches in (
        tf.data.Dataset.from_tensor_slices(images).batch(31, drop_remainder=True),
        tf.data.Dataset.from_tensor_slices(images).batch(32),
        images[:50],
    ):
        for steps in (None, 1):
            with pytest.raises(UserError, match=r"2 replicas share every batch: .* multiple of 2"):
                model.fit(batches, steps_per_epoch=steps, verbose=0)
