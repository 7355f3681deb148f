"""A method as a Keras model: `compile` and `fit`, with the losses of `tfvmf.training.train`."""

import contextlib
import difflib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from ml_collections import ConfigDict

from tfvmf import data, distribute, models
from tfvmf.config import declared, default_config
from tfvmf.errors import UserError
from tfvmf.methods import METHODS, Method, building, check_name
from tfvmf.training.step import make_views, step_context, update, views_of

# Settings of every method that do not describe the encoder, the data or the optimizer.
_SHARED = (
    *("concentration.align_weight", "concentration.penalty_weight", "concentration.regularizer"),
    *("concentration.view_kind", "model.one_pass", "model.hidden"),
)
_RANGE = "images must be uint8, or floating point in [0, 1]"


@keras.saving.register_keras_serializable(package="tfvmf")
class Contrastive(keras.Model):
    """Trains an encoder by one of tfvmf's methods, with `compile` and `fit`.

        model = Contrastive(encoder, method="simclr_vmf", augmentation=Augmentation(size=32))
        model.compile(keras.optimizers.Adam(1e-3))
        model.fit(dataset, epochs=10)  # batches of images, uint8 or floating point in [0, 1]
        model.encoder.save("encoder.keras")

    The dataset yields images [B, H, W, 3], or pairs (images, labels) for a method with labels.
    Views are made inside the train step from (seed, step, position in the batch), so that fits can
    be repeated. Losses and updates are those of `tfvmf.training.train`. Under `MirroredStrategy`,
    build the encoder and the model, and compile, in its scope: negatives come from the whole batch.

    Metrics are `loss`, its terms, the mean `cosine` of two views, and `kappa` and `kappa_std`.
    Called on images, the model returns the outputs of the encoder.

    Args:
        encoder: A model with the outputs of `tfvmf.models.build_encoder`.
        method: A name in `tfvmf.methods.METHODS`, such as `simclr_vmf`.
        augmentation: Makes the views; by default `Augmentation` at the encoder's image size.
        settings: Settings by their dotted names, such as {"simclr.temperature": 0.2}.
        num_classes: Number of classes, for a method that needs labels.
        seed: Seed of views, dropout and the weights that the method adds to the encoder.
        **kwargs: Arguments of every Keras model (`name`).

    `encoder` and the other models that the method trains are attributes.
    """

    def __init__(
        self,
        encoder: keras.Model,
        *,
        method: str = "simclr_vmf",
        augmentation: data.Augmentation | None = None,
        settings: dict[str, Any] | None = None,
        num_classes: int = 0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.settings = dict(settings or {})
        self.seed = seed
        config = _configuration(method, self.settings)
        _check_encoder(encoder, config, num_classes)
        size = encoder.input.shape[1]
        if augmentation is None and size is None:
            raise UserError(
                "the encoder takes images of any size: pass "
                "augmentation=tfvmf.data.Augmentation(size=...)"
            )
        self.augmentation = augmentation or data.Augmentation(size=size)
        if not isinstance(self.augmentation, data.Augmentation):
            kind = type(augmentation).__name__
            raise UserError(f"augmentation is a {kind}: expected a tfvmf.data.Augmentation")
        with building(seed=seed), _as_arguments():
            self.method: Method = METHODS[method](config, num_classes=num_classes, encoder=encoder)
            self._kinds = tuple(views_of(self.method, self.augmentation))
        for name, part in self.method.models.items():
            setattr(self, name, part)
        self._watched = [keras.metrics.Mean(name=name) for name in self.method.watched_names]
        self._steps, self._evaluated = (
            self.add_weight((), name=name, dtype="int64", initializer="zeros", trainable=False)
            for name in ("steps", "evaluated")
        )
        self._steps_per_epoch = 1
        self.supports_jit = False  # XLA only on request: slower on CPUs, untested elsewhere
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
        """The encoder's outputs for images [B, H, W, 3], uint8 or floating point in [0, 1]."""
        return self.encoder(tf.image.convert_image_dtype(inputs, tf.float32), training=training)

    def get_config(self) -> dict[str, Any]:
        """The arguments for `from_config`."""
        serialize = keras.saving.serialize_keras_object
        return {
            "name": self.name,
            "encoder": serialize(self.encoder),
            "method": self.method.config.method,
            "augmentation": serialize(self.augmentation),
            "settings": dict(self.settings),
            "num_classes": self.method.num_classes,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "Contrastive":
        """Builds the model from `get_config`."""
        parts = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects)
            for name in ("encoder", "augmentation")
        }
        return cls(**{**config, **parts})

    # ---- Training.

    def fit(self, x: Any = None, y: Any = None, **kwargs: Any) -> keras.callbacks.History:
        """Trains like `keras.Model.fit`, with the same arguments."""
        if self.loss is not None:
            raise UserError("compile(loss=...): the method computes the loss; compile without one")
        steps = self._num_batches(x, kwargs.get("batch_size"))
        steps = kwargs.get("steps_per_epoch") or steps
        if steps is None and self.method.follows_epochs:
            raise UserError(
                f"{self.method.config.method} depends on the epoch, and the length of the dataset "
                "is unknown: pass steps_per_epoch to fit"
            )
        epochs = kwargs.get("epochs", 1)
        if (epochs, steps) != (self.method.config.epochs, self._steps_per_epoch):
            self.method.config.epochs, self._steps_per_epoch = epochs, steps or 1
            self.make_train_function(force=True)  # both are constants of its graph
        if isinstance(x, tf.data.Dataset):  # Keras cannot shuffle it, and would warn
            kwargs = {"shuffle": False, **kwargs}
        with _as_user_errors():
            return super().fit(x, y, **kwargs)

    def evaluate(self, x: Any = None, y: Any = None, **kwargs: Any) -> Any:
        """Computes the metrics in inference mode, with the arguments of `keras.Model.evaluate`."""
        self._num_batches(x, kwargs.get("batch_size"))
        with _as_user_errors():
            return super().evaluate(x, y, **kwargs)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One step on one replica's share of a batch."""
        images, labels = self._unpack(data)
        context = step_context(self._steps, self.seed, self._steps_per_epoch)
        views = make_views(images, self._kinds, context.seed)
        terms = update(self.method, self.optimizer, views, labels, context)
        tf.distribute.get_replica_context().merge_call(self._after_step)
        return self._watch(terms, images)

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """The loss terms of one replica's share of a batch."""
        images, labels = self._unpack(data)
        # Evaluation steps count down from -1, so that their views differ from those of training.
        seed = tf.stack([self.seed, -1 - tf.cast(self._evaluated, tf.int32)])
        context = step_context(self._steps, self.seed, self._steps_per_epoch)
        context = context._replace(seed=seed, training=False)
        terms = self.method.loss(make_views(images, self._kinds, seed), labels, context)
        tf.distribute.get_replica_context().merge_call(
            lambda _: distribute.update(self._evaluated, lambda count: count + 1)
        )
        return self._watch(terms, images)

    def _after_step(self, strategy: tf.distribute.Strategy) -> None:
        """Runs once after all replicas have updated their weights."""
        del strategy
        self.method.after_step(step_context(self._steps, self.seed, self._steps_per_epoch))
        distribute.update(self._steps, lambda steps: steps + 1)

    def _watch(self, terms: dict[str, tf.Tensor], images: tf.Tensor) -> dict[str, tf.Tensor]:
        for metric in self._watched:
            metric.update_state(terms[metric.name], sample_weight=tf.shape(images)[0])
        return self.get_metrics_result()

    @property
    def metrics(self) -> list[keras.Metric]:
        """The metrics that `fit` and `evaluate` average."""
        return list(self._watched)

    def get_metrics_result(self) -> dict[str, tf.Tensor]:
        """The means so far, with `kappa_std` in place of kappa's square."""
        values = {metric.name: metric.result() for metric in self._watched}
        if "kappa" in values:
            variance = values.pop("kappa_square") - tf.square(values["kappa"])
            values["kappa_std"] = tf.sqrt(tf.maximum(variance, 0.0))
        return values

    def reset_metrics(self) -> None:
        """Starts new means; every evaluation uses the same views."""
        super().reset_metrics()
        self._evaluated.assign(0)

    # ---- Checks of arguments.

    def _unpack(self, batch: Any) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Images and labels of a batch."""
        images, labels, weights = keras.utils.unpack_x_y_sample_weight(batch)
        name, problem = self.method.config.method, ""
        if weights is not None:
            problem = f"{name} takes no sample weights"
        elif labels is not None and not self.method.needs_labels:
            problem = (
                f"{name} learns without labels, and the data are pairs (images, labels): expected "
                "images alone, for example dataset.map(lambda images, labels: images)"
            )
        elif labels is None and self.method.needs_labels:
            problem = f"{name} learns from labels: expected pairs (images, labels)"
        elif not tf.is_tensor(images):
            problem = f"a batch is a {type(images).__name__}: expected images [B, H, W, 3]"
        elif images.shape.rank != 4 or images.shape[3] != 3:
            problem = f"a batch has the shape {images.shape}: expected images [B, H, W, 3]"
        elif not images.dtype.is_floating and images.dtype != tf.uint8:
            problem = f"a batch is of type {images.dtype.name}: {_RANGE}"
        if problem:
            raise UserError(problem)
        if images.dtype.is_floating:
            inside = tf.reduce_all((images >= 0.0) & (images <= 1.0))
            with tf.control_dependencies([tf.debugging.Assert(inside, [_RANGE])]):
                images = tf.identity(images)
        return images, labels

    def _num_batches(self, x: Any, batch_size: int | None) -> int | None:
        """Batches per epoch, if known; raises UserError if replicas cannot share a batch."""
        usual = batch_size or 32
        size: int | None = usual
        count = getattr(x, "num_batches", None)
        if isinstance(x, tf.data.Dataset):
            count = max(int(x.cardinality()), 0) or None
            first = [*tf.nest.flatten(x.element_spec), None][0]
            shape = getattr(first, "shape", tf.TensorShape(None))
            size = shape[0] if shape.rank else None
        elif hasattr(x, "shape"):
            count, size = -(-len(x) // usual), None if len(x) % usual else usual
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas > 1 and (size is None or size % replicas):
            raise UserError(
                f"{replicas} replicas share every batch: expected batches of one size, a multiple "
                f"of {replicas}: dataset.batch({replicas * 64}, drop_remainder=True)"
            )
        return count


def _configuration(method: str, settings: dict[str, Any]) -> ConfigDict:
    """The default configuration with these settings, each checked."""
    with _as_arguments():
        check_name(method)
        own = (f"{METHODS[method].section}.{key}" for key in METHODS[method].settings)
        known = sorted({*own, *_SHARED})
        for key, value in settings.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
                raise UserError(f"settings {key} is not a setting of {method}: {hint}")
            declared()[key].check(key, value)
        config = default_config()
        config.update_from_flattened_dict({"method": method, "batch_size": 2, **settings})
        METHODS[method].check(config)
    return config


def _check_encoder(encoder: keras.Model, config: ConfigDict, num_classes: int) -> None:
    """Raises UserError for an encoder that the method cannot train completely."""
    made = "as tfvmf.models.build_encoder makes it"
    if not isinstance(encoder, keras.Model):
        raise UserError(f"encoder is a {type(encoder).__name__}: expected a Keras model, {made}")
    outputs = getattr(encoder, "output", None) if encoder.built else None
    outputs = outputs if isinstance(outputs, dict) else {}
    if missing := [name for name in models.OUTPUTS if name not in outputs]:
        raise UserError(
            f"the encoder has no output {', '.join(missing)}: expected a dictionary of "
            f"{', '.join(models.OUTPUTS)}, {made}"
        )
    method, kind = config.method, METHODS[config.method]
    if kind.needs_labels and num_classes < 2:
        raise UserError(
            f"num_classes={num_classes}: {method} needs the number of classes, at least 2"
        )
    unused = {} if kind.probabilistic else {"concentration": "concentration=False"}
    if kind.head_options(config)["dimension"] is None:
        unused = {"mean_direction": "dimension=None", **unused}
    used = {name: outputs[name] for name in models.OUTPUTS if name not in unused}
    trained = keras.Model(encoder.input, used).trainable_variables
    if idle := len(encoder.trainable_variables) - len(trained):
        raise UserError(
            f"{method} does not train {' and '.join(unused)}, for which the encoder has {idle} "
            f"weights: build it with {', '.join(unused.values())}"
        )
    constant = any(isinstance(layer, models.ConstantConcentration) for layer in encoder.layers)
    if kind.probabilistic and constant:
        raise UserError(
            f"{method} learns a concentration, and the encoder's is constant: build it with "
            "concentration=True"
        )


@contextlib.contextmanager
def _as_arguments() -> Iterator[None]:
    """Replaces the names of flags in messages with those of arguments."""
    try:
        yield
    except UserError as error:
        text = str(error).replace("--config.", "settings ").replace("--", "")
        raise UserError(text) from error


@contextlib.contextmanager
def _as_user_errors() -> Iterator[None]:
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if _RANGE in str(error):
            raise UserError(f"a batch has values out of range: {_RANGE}") from error
        raise
