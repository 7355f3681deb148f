"""The shape of a method: what is trained, and how the views of a batch meet in a loss."""

from __future__ import annotations

import abc
import math
import pathlib
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import ml_collections

from tfvmf.errors import UserError
from tfvmf.lazy import lazy_import
from tfvmf.settings import Setting, parse_backbone

# Settings are read before TensorFlow is imported. Methods take these lazy modules from here.
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
# A function of images and seeds that makes views, and how many of them are made.
ViewKind = tuple[Any, int]

_BACKBONE_FILE = "backbone.keras"  # in a run directory
_DROPOUT = 1 << 16  # where the views of dropout's seeds begin: beyond any view that is augmented


class StepContext(NamedTuple):
    """Where training stands, the same on every replica."""

    seed: tf.Tensor | tuple[int, int] = (0, 0)  # the run's seed and the step, to draw from
    epoch: tf.Tensor | float = 0.0  # epochs that are done, with fractions
    training: bool = True  # whether models are in training mode; otherwise nothing changes


START = StepContext()


class Objective(NamedTuple):
    """What a method computes of a batch."""

    terms: Terms  # of its own loss, to be added
    # For each view the cosine [B] of its direction with the one that the method aligns it with, and
    # what the encoder said of it, with `concentration` [B] if its head ran.
    cosines: Sequence[tf.Tensor] = ()
    outputs: Sequence[dict[str, tf.Tensor]] = ()


class Method(abc.ABC):
    """Turns views of a batch into a loss.

    A subclass declares what is its own in class attributes, builds what it needs beside the encoder
    in `build_parts` and computes its loss in `objective`; this class adds the paper's concentration
    terms, the same way for every method. All models that are trained or saved are in `models`, by
    name; `num_wide_views` further, damaged views are for the concentration head alone. The encoder
    is by default the one that the configuration of the run describes.
    """

    section: ClassVar[str] = ""  # of the configuration, that holds its settings
    settings: ClassVar[dict[str, Setting]] = {}  # by their names in that section
    term_names: ClassVar[tuple[str, ...]] = ()  # of its own loss
    num_views: int = 2  # per image
    needs_labels: ClassVar[bool] = False  # whether it can train only on labeled images
    follows_epochs: ClassVar[bool] = False  # whether a step depends on how many epochs are done
    probabilistic: ClassVar[bool] = True  # whether the encoder learns a concentration
    explicit: ClassVar[bool] = True  # whether the paper's alignment and penalty teach it
    learns_directions: ClassVar[bool] = True  # or only the concentration head changes
    relative_cost: ClassVar[float] = 1.0  # time of a step, as a multiple of that of SimCLR
    backbone: models.Backbone | None = None  # what the encoder was last built on
    takes: str = "images"  # what the encoder is applied to, or `features`
    kappa_note: str = ""  # what a reader of kappa should know

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
            note = "of damaged views kappa was taught the cosine with an undamaged one"
            self.kappa_note = "; ".join(filter(None, (type(self).kappa_note, note)))
        self.models: dict[str, keras.Layer] = {}
        self.models["encoder"] = encoder or self.build_encoder(concentration=self.probabilistic)
        self.build_parts()

    def build_parts(self) -> None:  # noqa: B027 # a method may need nothing
        """Adds to `models` what the method trains or keeps beside the encoder."""

    @classmethod  # noqa: B027
    def check(cls, config: ml_collections.ConfigDict) -> None:
        """Raises a UserError where settings of this method contradict each other."""

    @classmethod
    def head_options(cls, config: ml_collections.ConfigDict) -> dict[str, Any]:
        """Arguments of `models.build_encoder` that shape the direction head."""
        return {"dimension": config.model.dimension}

    @classmethod
    def default_concentration(cls, config: ml_collections.ConfigDict) -> float:
        """The kappa of an untrained head, unless `concentration.initial` says otherwise.

        The paper's l2 penalty puts kappa between 0 and 5: softplus(0) is a good start. The exact
        penalty has the scale of the dimension: at kappa = d a sample has E[mu.x] = 0.62 in any high
        dimension.
        """
        exact = config.concentration.regularizer == "vmf"
        return float(config.model.dimension) if exact else math.log(2.0)

    @classmethod
    def locate(
        cls, config: ml_collections.ConfigDict, workdir: pathlib.Path, *, trust_model: bool = False
    ) -> None:
        """Points the configuration to files that the run directory keeps beside checkpoints."""
        if parse_backbone(config.model.backbone)[0] != "built_in":
            path = workdir / _BACKBONE_FILE
            if not path.exists():
                raise UserError(f"{workdir}: its backbone, {path}, is missing")
            config.model.backbone, config.model.weights = f"keras:{path}", ""

    @classmethod
    def trained_outputs(cls) -> tuple[str, ...]:
        """The outputs of the encoder that its loss depends on."""
        return models.OUTPUTS if cls.probabilistic else ("features", "mean_direction")

    @abc.abstractmethod
    def objective(self, views: Views, labels: tf.Tensor | None, context: StepContext) -> Objective:
        """The method's own loss on one replica's share of the batch.

        `views` are images [B, H, W, 3] in [0, 1], as `view_kinds` lists them, without wide views;
        `labels` class numbers [B].
        """

    def view_kinds(self, augmentation: data.Augmentation) -> list[ViewKind]:
        """The kinds of views to train on, in the order of `objective`; wide ones come last."""
        kinds: list[ViewKind] = [(augmentation, self.num_views)]
        if self.num_wide_views:
            kinds.append((data.WideViews(augmentation=augmentation), self.num_wide_views))
        return kinds

    def after_step(self, context: StepContext) -> None:
        """Moves what no gradient moves, after the optimizer; outside of the replicas."""
        del context  # AutoGraph needs a statement

    @property
    def encoder(self) -> keras.Model:
        """The model that is evaluated and exported."""
        return self.models["encoder"]

    @property
    def classifier(self) -> keras.Model | None:
        """The model from features [B, F] to logits [B, C], of a method that trains one."""
        return self.models.get("classifier")

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """All that the optimizer moves."""
        return [v for model in self.models.values() for v in model.trainable_variables]

    @property
    def backbone_variables(self) -> list[keras.Variable]:
        """Those of `trainable_variables` that are the encoder's backbone."""
        assert self.backbone is not None
        return self.encoder.get_layer(self.backbone.model.name).trainable_variables

    @property
    def watched_names(self) -> list[str]:
        """Names of the values that `loss` returns."""
        taught = self.probabilistic and self.explicit
        names = ["loss", *self.term_names, *(("alignment", "penalty") if taught else ())]
        names += ["cosine"] if self.num_views > 1 else []
        return names + (["kappa", "kappa_square"] if self.probabilistic else [])

    @property
    def _adapted(self) -> models.Backbone | None:
        """The backbone, unless it is built in."""
        return None if self.backbone is None or self.backbone.built_in else self.backbone

    def describe_encoder(self) -> str:
        """The encoder in words."""
        name, width = self.config.model.backbone, self.config.model.width
        return name if self._adapted else f"{name} of width {width}"

    def describe_choices(self) -> str:
        """What was chosen of a backbone that is not built in; otherwise empty."""
        return self._adapted.describe(self.config.data.image_size) if self._adapted else ""

    def check_images(self) -> None:
        """Refuses images of another size than the backbone takes."""
        size = self.backbone.image_size if self.backbone else None
        if size and size != self.config.data.image_size:
            raise UserError(
                f"--config.data.image_size={self.config.data.image_size}: the backbone takes "
                f"images of {size}x{size} only: use --config.data.image_size={size}"
            )

    def keep_files(self, workdir: pathlib.Path) -> None:
        """Writes what loading the run will need beside its checkpoints."""
        if self._adapted:
            self._adapted.keep(workdir / _BACKBONE_FILE)

    def predicted_cosine(self, kappa: tf.Tensor) -> tf.Tensor:
        """The E[cos] of two views at which the loss is smallest for these kappas, of any shape.

        ValueError if the run's kappa was not learned from a cosine.
        """
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
        """All terms of the loss with their sum as `loss`, and what to watch beside them.

        The mean of each over the replicas is its value for the whole batch. `views` are those of
        `view_kinds`.
        """
        own = len(views) - self.num_wide_views
        with models.dropout_masks(None):  # only where `encode` gives seeds
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
        return models.build_encoder(
            backbone=self.backbone,
            hidden=config.model.hidden,
            dropout=config.model.dropout,
            concentration=concentration,
            initial_concentration=config.concentration.initial
            or self.default_concentration(config),
            concentration_levels=config.concentration.levels,
            **self.head_options(config),
        )

    def build_backbone(self, spec: str = "", **options: Any) -> models.Backbone:
        """Builds the backbone; what was found by rule is written into the configuration.

        `spec` replaces `model.backbone`; the options are further ones of `models.load_backbone`.
        """
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
        """Encodes views of one size, each in a pass of its own or all in one (`model.one_pass`).

        Returns the outputs of each view; without `concentration` where the head learns from wide
        views. Dropout draws from `context` and the numbers of the views, from `first_view` on.
        """
        model = model or self.encoder
        rows = tf.shape(views[0])[0]
        positions = distribute.replica_id() * rows + tf.range(rows)
        seed, seeds = context.seed, counter_random.example_seeds

        def masks(first: int, count: int) -> tf.Tensor:
            numbers = [_DROPOUT + first_view + first + view for view in range(count)]
            return tf.concat([seeds(seed[0], seed[1], positions, n) for n in numbers], axis=0)

        if self.num_wide_views:  # the head learns in `head_objective`, from other batch statistics
            model = models.without_concentration(model)
        drops = context.training and models.has_dropout(model)
        size = len(views) if self.config.model.one_pass else 1
        outputs = []
        for start in range(0, len(views), size):
            group = views[start : start + size]
            with models.dropout_masks(masks(start, len(group))) if drops else nullcontext():
                whole = model(tf.concat(group, axis=0), training=context.training)
            parts = {name: tf.split(value, len(group)) for name, value in whole.items()}
            outputs += [{name: parts[name][i] for name in parts} for i in range(len(group))]
        return outputs

    def head_objective(
        self, views: Views, *, training: bool = True, skip: Sequence[int] = ()
    ) -> Objective:
        """What views teach the concentration head while the encoder stands still.

        The encoder is in inference mode and gets no gradient. All views are one batch for the head:
        normalized apart, wide views would look like ordinary ones. The cosine of a view is the mean
        of those with the ordinary views beside it, which come first. Views at the places of `skip`
        are only compared with.
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
        """`mean_direction` [B, d] and `head_inputs` [B, F], to which the kappa head is applied."""
        return models.frozen_outputs(self.encoder)(views, training=False)

    @property
    def dimension(self) -> int:
        """Length d of the mean direction."""
        return self.encoder.output["mean_direction"].shape[-1]
