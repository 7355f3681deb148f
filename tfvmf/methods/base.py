"""The interface of a method: the models it trains, and the loss of the views of a batch."""

from __future__ import annotations

import abc
import math
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import ml_collections

from tfvmf.errors import UserError
from tfvmf.lazy import lazy_import
from tfvmf.settings import Setting, parse_backbone

# Settings are read before TensorFlow is imported. Methods import these lazy modules from here.
if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from tfvmf import counter_random, data, distribute, losses, models, vmf
else:
    keras, tf, counter_random, data, distribute, losses, models, vmf = lazy_import(
        *("keras", "tensorflow", "tfvmf.counter_random", "tfvmf.data", "tfvmf.distribute"),
        *("tfvmf.losses", "tfvmf.models", "tfvmf.vmf"),
    )

Terms = dict[str, "tf.Tensor"]
Views = list["tf.Tensor"]
# A function of images and seeds that makes views, and the number of views.
ViewKind = tuple[Any, int]

_BACKBONE_FILE = "backbone.keras"  # in a run directory
_DROPOUT = 1 << 16  # first view number of dropout's seeds: beyond all augmented views


class StepContext(NamedTuple):
    """The state of training, the same on every replica."""

    seed: tf.Tensor | tuple[int, int] = (0, 0)  # the run's seed and the step
    epoch: tf.Tensor | float = 0.0  # completed epochs, fractional
    training: bool = True  # whether models are in training mode; otherwise nothing is updated


START = StepContext()


def view_seeds(
    seed: tf.Tensor | tuple[int, int], images: tf.Tensor, numbers: Sequence[int]
) -> tf.Tensor:
    """Seeds [V * B, 2] of the numbered views of one replica's share [B, ...] of a batch.

    They depend on `seed` (the run's seed and the step), the position in the global batch and the
    number of the view, not on the replica.
    """
    rows = tf.shape(images)[0]
    positions = distribute.replica_id() * rows + tf.range(rows)
    seeds = [counter_random.example_seeds(seed[0], seed[1], positions, n) for n in numbers]
    return tf.concat(seeds, axis=0)


class Objective(NamedTuple):
    """The results of a method for a batch."""

    terms: Terms  # terms of its own loss, to be added
    # For each view, the cosine [B] of its direction with the one that the method aligns it to, and
    # the encoder's outputs, with `concentration` [B] if the head ran.
    cosines: Sequence[tf.Tensor] = ()
    outputs: Sequence[dict[str, tf.Tensor]] = ()


class Method(abc.ABC):
    """Computes the loss of a batch from its views.

    A subclass declares its properties in class attributes, builds its own models in `build_parts`
    and computes its own loss in `objective`. This class adds the paper's concentration terms, the
    same for every method. `models` holds all trained or saved models by name. `num_wide_views`
    additional damaged views train only the concentration head.
    """

    section: ClassVar[str] = ""  # its section of the configuration
    settings: ClassVar[dict[str, Setting]] = {}  # by name in that section
    term_names: ClassVar[tuple[str, ...]] = ()  # terms of its own loss
    num_views: int = 2  # per image
    needs_labels: ClassVar[bool] = False  # whether it trains only on labeled images
    follows_epochs: ClassVar[bool] = False  # whether a step depends on the completed epochs
    probabilistic: ClassVar[bool] = True  # whether the encoder learns a concentration
    explicit: ClassVar[bool] = True  # whether the paper's alignment and penalty train kappa
    learns_directions: ClassVar[bool] = True  # if false, only the concentration head changes
    relative_cost: ClassVar[float] = 1.0  # time of a step relative to SimCLR
    backbone: models.Backbone  # the built encoder's; not set if an encoder is given
    takes: str = "images"  # input of the encoder: `images` or `features`
    kappa_note: str = ""  # a caveat for readers of kappa

    def __init__(
        self,
        config: ml_collections.ConfigDict,
        *,
        num_classes: int = 0,
        encoder: keras.Model | None = None,
    ) -> None:
        if self.needs_labels and num_classes < 2:
            raise UserError(
                f"method {config.method} needs labels of at least 2 classes, and data source "
                f"{config.data.source!r} has {num_classes}: choose a labeled source"
            )
        self.config, self.num_classes = config, num_classes
        wide = self.probabilistic and self.explicit and config.concentration.view_kind == "wide"
        self.num_wide_views = int(wide)
        if wide:
            note = "for damaged views, kappa was taught the cosine with an undamaged one"
            self.kappa_note = "; ".join(filter(None, (type(self).kappa_note, note)))
        self.models: dict[str, keras.Layer] = {}
        self.models["encoder"] = encoder or self.build_encoder(concentration=self.probabilistic)
        self.build_parts()

    def build_parts(self) -> None:  # noqa: B027 # a method may need nothing
        """Adds the method's own models, besides the encoder, to `models`."""

    @classmethod  # noqa: B027
    def check(cls, config: ml_collections.ConfigDict) -> None:
        """Raises UserError if settings of this method contradict each other."""

    @classmethod
    def head_options(cls, config: ml_collections.ConfigDict) -> dict[str, Any]:
        """Arguments of `models.build_encoder` that shape the direction head."""
        return {"dimension": config.model.dimension}

    @classmethod
    def locate(
        cls, config: ml_collections.ConfigDict, workdir: pathlib.Path, *, trust_model: bool = False
    ) -> None:
        """Points the configuration to the files that a run directory keeps besides checkpoints."""
        if parse_backbone(config.model.backbone)[0] != "built_in":
            path = workdir / _BACKBONE_FILE
            if not path.exists():
                raise UserError(f"{workdir}: its backbone, {path}, is missing")
            config.model.backbone, config.model.weights = f"keras:{path}", ""

    @abc.abstractmethod
    def objective(self, views: Views, labels: tf.Tensor | None, context: StepContext) -> Objective:
        """The method's own loss of views [B, H, W, 3] in [0, 1] (not wide ones) and labels [B]."""

    def view_kinds(self, augmentation: data.Augmentation) -> list[ViewKind]:
        """The kinds of views to train on, in the order of `objective`; wide ones come last."""
        kinds: list[ViewKind] = [(augmentation, self.num_views)]
        if self.num_wide_views:
            kinds.append((data.WideViews(augmentation=augmentation), self.num_wide_views))
        return kinds

    def after_step(self, context: StepContext) -> None:
        """Updates variables without a gradient; called after the optimizer, outside of replicas."""
        del context  # AutoGraph needs a statement

    @property
    def encoder(self) -> keras.Model:
        """The model that is evaluated and exported."""
        return self.models["encoder"]

    @property
    def classifier(self) -> keras.Model | None:
        """The model from features [B, F] to logits [B, C], if the method trains one."""
        return self.models.get("classifier")

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables that the optimizer updates."""
        return [v for model in self.models.values() for v in model.trainable_variables]

    @property
    def watched_names(self) -> list[str]:
        """Names of the values that `loss` returns."""
        taught = self.probabilistic and self.explicit
        names = ["loss", *self.term_names, *(("alignment", "penalty") if taught else ())]
        names += ["cosine"] if self.num_views > 1 else []
        return names + (["kappa", "kappa_square"] if self.probabilistic else [])

    def describe_encoder(self) -> str:
        """The encoder in words."""
        name, width = self.config.model.backbone, self.config.model.width
        return f"{name} of width {width}" if self.backbone.built_in else name

    def describe_choices(self) -> str:
        """The layers and pixel range chosen for a backbone that is not built in, else ""."""
        size = self.config.data.image_size
        return "" if self.backbone.built_in else self.backbone.describe(size)

    def check_images(self) -> None:
        """Raises UserError if the backbone takes images of another size."""
        size, given = self.backbone.image_size, self.config.data.image_size
        if size not in (None, given):
            raise UserError(
                f"--config.data.image_size={given}: the backbone takes images of {size}x{size} "
                f"only: use --config.data.image_size={size}"
            )

    def keep_files(self, workdir: pathlib.Path) -> None:
        """Writes the files that loading the run needs besides its checkpoints."""
        self.backbone.keep(workdir / _BACKBONE_FILE)

    def predicted_cosine(self, kappa: tf.Tensor) -> tf.Tensor:
        """The E[cos] of two views for which `kappa` is optimal; ValueError if there is none."""
        config = self.config.concentration
        if not (self.probabilistic and self.explicit):
            raise ValueError(f"{self.config.method} does not learn kappa from a cosine")
        if config.regularizer == "vmf":
            return vmf.mean_resultant_length(kappa, self.dimension)
        if config.align_weight <= 0.0 or config.penalty_weight <= 0.0:
            raise ValueError("without alignment or penalty kappa predicts no cosine")
        return kappa * (2.0 * config.penalty_weight / config.align_weight)

    def loss(
        self, views: Views, labels: tf.Tensor | None = None, context: StepContext = START
    ) -> Terms:
        """The terms of the loss, their sum as `loss`, and values to log: means of the replica."""
        own = len(views) - self.num_wide_views
        with models.dropout_masks(None):  # dropout only where `encode` sets seeds
            objective = self.objective(views[:own], labels, context)
            cosines, outputs = list(objective.cosines), objective.outputs
            if self.num_wide_views:
                seen = [*views[: self.num_views], *views[own:]]
                measured = self.head_objective(seen, training=context.training)
                cosines += measured.cosines[len(cosines) :]
                outputs = measured.outputs
        kappas = [view["concentration"] for view in outputs if "concentration" in view]
        terms = dict(objective.terms)
        if self.probabilistic and self.explicit:
            config = self.config.concentration
            names = ("align_weight", "penalty_weight", "regularizer")
            settings = {name: config[name] for name in names}
            terms |= losses.concentration_terms(
                cosines, kappas, dimension=self.dimension, **settings
            )
        watched: Terms = {}
        if cosines:
            watched["cosine"] = tf.reduce_mean(tf.stack(cosines))
        if self.probabilistic:
            kappa = tf.stack(kappas)
            watched["kappa"] = tf.reduce_mean(kappa)
            watched["kappa_square"] = tf.reduce_mean(tf.square(kappa))
        return {"loss": tf.add_n(list(terms.values())), **terms, **watched}

    def build_encoder(self, *, concentration: bool) -> keras.Model:
        """Builds the encoder that the configuration describes."""
        config = self.config
        self.backbone = self.build_backbone()
        # The paper's l2 penalty puts kappa between 0 and 5: softplus(0) is a good start. Other
        # losses have the scale of d: at kappa = d, E[mu.x] = 0.62 in any high dimension, and at
        # softplus(0) samples are nearly uniform, and kappa learns nothing.
        paper = self.explicit and config.concentration.regularizer == "l2"
        initial = math.log(2.0) if paper else float(config.model.dimension)
        return models.build_encoder(
            backbone=self.backbone,
            hidden=config.model.hidden,
            dropout=config.model.dropout,
            concentration=concentration,
            initial_concentration=config.concentration.initial or initial,
            concentration_levels=config.concentration.levels,
            **self.head_options(config),
        )

    def build_backbone(self, spec: str = "", **options: Any) -> models.Backbone:
        """Builds the backbone of `spec` or `model.backbone`; records choices made by rule."""
        config = self.config.model
        names = ("width", "stem", "dropout", "weights", "feature_layer", "input_range")
        options |= {name: config[name] for name in names}
        if config.level_layers:
            named = [name.strip() for name in config.level_layers.split(",")]
            options["level_layers"] = tuple(name for name in named if name not in ("", "none"))
        backbone = models.load_backbone(spec or config.backbone, **options)
        models.freeze_stages(backbone, config.freeze_stages)
        if not backbone.built_in:
            config.feature_layer, config.input_range = backbone.feature_layer, backbone.input_range
            config.level_layers = ",".join(backbone.level_layers) or "none"
        return backbone

    def encode(
        self,
        views: Views,
        context: StepContext,
        *,
        model: keras.Model | None = None,
        first_view: int = 0,
    ) -> list[dict[str, Any]]:
        """Encodes views of one size, each in its own pass or all in one (`model.one_pass`).

        Returns the outputs of each view, without `concentration` if the head learns from wide
        views. Dropout's seeds are `context` and the numbers of the views, from `first_view` on.
        """
        model = model or self.encoder
        if self.num_wide_views:  # the head learns in `head_objective`, from other batch statistics
            model = models.without_concentration(model)
        drops = context.training and models.has_dropout(model)
        size = len(views) if self.config.model.one_pass else 1
        outputs = []
        for start in range(0, len(views), size):
            group = views[start : start + size]
            first = _DROPOUT + first_view + start
            numbers = range(first, first + len(group))
            seeds = view_seeds(context.seed, group[0], numbers) if drops else None
            with models.dropout_masks(seeds):
                whole = model(tf.concat(group, axis=0), training=context.training)
            parts = {name: tf.split(value, len(group)) for name, value in whole.items()}
            outputs += [{name: parts[name][i] for name in parts} for i in range(len(group))]
        return outputs

    def head_objective(
        self, views: Views, *, training: bool = True, skip: Sequence[int] = ()
    ) -> Objective:
        """The objective of the concentration head while the encoder is frozen.

        The encoder is in inference mode. All views are one batch for the head; if normalized
        separately, wide views would look like ordinary ones. The cosine of a view is its mean
        cosine with the other ordinary views, which come first. Views in `skip` are only targets.
        """
        frozen = self.frozen_outputs(tf.concat(views, axis=0))
        mu = tf.split(tf.stop_gradient(frozen["mean_direction"]), len(views))
        head = self.encoder.get_layer("concentration_head")
        seen = tf.split(tf.stop_gradient(frozen["head_inputs"]), len(views))
        places = [place for place in range(len(views)) if place not in skip]
        kappa = head(tf.concat([seen[place] for place in places], axis=0), training=training)
        cosines = []
        for place in places:
            others = [x for at, x in enumerate(mu[: self.num_views]) if at != place]
            total = tf.add_n([losses.cosine(mu[place], other) for other in others])
            cosines.append(total / len(others))
        outputs = [{"concentration": part} for part in tf.split(kappa, len(places))]
        return Objective({}, cosines, outputs)

    def frozen_outputs(self, views: tf.Tensor) -> Terms:
        """`mean_direction` [B, d] and the inputs of the kappa head, `head_inputs` [B, F]."""
        return models.frozen_outputs(self.encoder)(views, training=False)

    @property
    def dimension(self) -> int:
        """Length d of the mean direction."""
        return self.encoder.output["mean_direction"].shape[-1]
