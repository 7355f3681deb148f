"""The shape of a method: what is trained, and how the views of a batch meet in a loss."""

import abc
import contextlib
from typing import Any, ClassVar, NamedTuple

import keras
import ml_collections
import tensorflow as tf

from tfvmf import distribute, losses, models, vmf
from tfvmf.counter_random import example_seeds

Terms = dict[str, tf.Tensor]

_DROPOUT = 1 << 16  # where the views of dropout's seeds begin: beyond any view that is augmented


class Moment(NamedTuple):
    """Where training stands, the same on every replica.

    Attributes:
        seed: Two integers, the run's seed and the step, for a method that draws random numbers.
        epoch: How many epochs are behind, with fractions.
    """

    seed: tf.Tensor | tuple[int, int] = (0, 0)
    epoch: tf.Tensor | float = 0.0


START = Moment()


# Loss terms; cosines of the views; concentrations of the views.
Objective = tuple[Terms, list[tf.Tensor], list[tf.Tensor]]


class Method(abc.ABC):
    """Turns views of a batch into a loss.

    A subclass names its models in `__init__` and computes its own terms in `objective`; this class
    adds the paper's concentration terms, the same way for every method. Everything that a
    checkpoint must hold is in `models`.

    Args:
        config: The whole configuration of the run.
        probabilistic: Whether the encoder learns a concentration.
        num_classes: Classes of the labels, 0 without labels.
    """

    num_views: int = 2
    num_local_views: int = 0  # smaller crops beside them
    # Whether the paper's alignment and penalty are what teaches the concentration.
    explicit: ClassVar[bool] = True

    def __init__(
        self, config: ml_collections.ConfigDict, *, probabilistic: bool, num_classes: int = 0
    ) -> None:
        self.config = config
        self.probabilistic = probabilistic
        self.num_classes = num_classes
        wide = probabilistic and self.explicit and config.concentration.view_kind == "wide"
        self.num_wide_views = 1 if wide else 0  # that only the concentration head learns from
        self.models: dict[str, keras.Layer] = {}

    @property
    def encoder(self) -> keras.Model:
        """The model that is evaluated and exported."""
        return self.models["encoder"]

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """All that the optimizer moves."""
        return [v for model in self.models.values() for v in model.trainable_variables]

    @abc.abstractmethod
    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, moment: Moment
    ) -> Objective:
        """The method's own loss on one replica's share of the batch.

        Args:
            views: `num_views` tensors of images [B, H, W, 3] in [0, 1], then `num_local_views` of
                smaller ones.
            labels: Class numbers [B], None without labels.
            moment: Where training stands.

        Returns:
            The loss terms, to be added; for each view the cosine [B] between its direction and
            the direction that the method aligns it with; for each view its concentration [B].
        """

    def after_step(self, moment: Moment) -> None:
        """Moves what no gradient moves, after the optimizer; outside of the replicas."""
        del moment

    def loss(
        self,
        views: list[tf.Tensor],
        labels: tf.Tensor | None = None,
        moment: Moment = START,
    ) -> Terms:
        """All terms of the loss with their sum as `loss`, and what to watch beside them.

        The mean of each over the replicas is its value for the whole batch. `views` are those of
        `objective`, then `num_wide_views`.
        """
        own = len(views) - self.num_wide_views
        terms, cosines, kappas = self.objective(views[:own], labels, moment)
        if self.num_wide_views:
            measured, kappas = self.head_alone([*views[: self.num_views], *views[own:]])
            cosines = cosines + measured[len(cosines) :]
        if self.probabilistic and self.explicit:
            terms |= concentration_terms(
                cosines,
                kappas,
                self.config.concentration,
                dimension=self.encoder.output["mean_direction"].shape[-1],
            )
        watched: Terms = {}
        if cosines:
            watched["cosine"] = tf.reduce_mean(tf.stack(cosines))
        if self.probabilistic:
            kappa = tf.stack(kappas)
            watched["kappa"] = tf.reduce_mean(kappa)
            watched["kappa_square"] = tf.reduce_mean(tf.square(kappa))
        return {"loss": tf.add_n(list(terms.values())), **terms, **watched}

    def head_alone(self, views: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """What views teach the concentration head while the encoder stands still.

        The encoder is in inference mode and gets no gradient. All views are one batch for the head:
        normalized apart, wide views would look like ordinary ones.

        Returns:
            For each view the cosine [B] of its direction with that of the first (the first: with
            that of the second), and the concentration [B].
        """
        parts = self.frozen_parts(tf.concat(views, axis=0))
        mu = tf.split(tf.stop_gradient(parts["mean_direction"]), len(views))
        head = self.encoder.get_layer("concentration_head")
        kappa = head(tf.stop_gradient(parts["seen"]), training=True)
        cosines = [losses.cosine(mu[0], other) for other in mu[1:]]
        return [cosines[0], *cosines], tf.split(kappa, len(views))

    def describe_encoder(self) -> str:
        """What the encoder is, for people."""
        return f"{self.config.model.backbone} of width {self.config.model.width}"

    def frozen_parts(self, views: tf.Tensor) -> Terms:
        """`mean_direction` [B, d] and `seen` [B, F], what the concentration head is applied to."""
        return models.frozen_parts(self.encoder)(views, training=False)

    def predicted_cosine(self, kappa: tf.Tensor) -> tf.Tensor:
        """The E[cos] [...] of two views that kappa [...] stands for: where the loss is smallest.

        Raises:
            ValueError: The run's kappa was not learned from a cosine.
        """
        config = self.config.concentration
        if not (self.probabilistic and self.explicit):
            raise ValueError(f"{self.config.method} does not learn kappa from a cosine")
        if config.regularizer == "vmf":
            dimension = self.encoder.output["mean_direction"].shape[-1]
            return vmf.mean_resultant_length(kappa, dimension)
        return losses.predicted_cosine(
            kappa, align_weight=config.align_weight, penalty_weight=config.penalty_weight
        )

    def encode(
        self,
        views: list[tf.Tensor],
        moment: Moment,
        *,
        model: keras.Model | None = None,
        first_view: int = 0,
    ) -> list[dict[str, Any]]:
        """Encodes views of one size, each in a pass of its own or all in one (`model.one_pass`).

        Args:
            views: Images [B, H, W, 3], several times.
            moment: Where training stands: dropout draws from it.
            model: The encoder by default.
            first_view: Number of the first view among all of the step.

        Returns:
            The outputs of each view.
        """
        if len(views) > 1 and not self.config.model.one_pass:
            return [
                self.encode([view], moment, model=model, first_view=number)[0]
                for number, view in enumerate(views, start=first_view)
            ]
        dropping: Any = contextlib.nullcontext()
        if self.config.model.dropout:
            rows = tf.shape(views[0])[0]
            positions = distribute.replica_id() * rows + tf.range(rows)
            numbers = range(_DROPOUT + first_view, _DROPOUT + first_view + len(views))
            seed, step = moment.seed[0], moment.seed[1]
            seeds = [example_seeds(seed, step, positions, number) for number in numbers]
            dropping = models.dropping(tf.concat(seeds, axis=0))
        with dropping:
            outputs = (model or self.encoder)(tf.concat(views, axis=0), training=True)
        parts = {name: tf.split(value, len(views)) for name, value in outputs.items()}
        return [{name: parts[name][view] for name in parts} for view in range(len(views))]


def concentration_terms(
    cosines: list[tf.Tensor],
    kappas: list[tf.Tensor],
    config: ml_collections.ConfigDict,
    *,
    dimension: int,
) -> Terms:
    """The alignment and the penalty, each already weighted.

        alignment = -l_align * sum over views v of mean(kappa_v * cos_v)
        penalty   =  l_reg   * sum over views v of mean(kappa_v^2)

    For SimCLR both views have the same cosine and this is -l_align mean((k1 + k2) mu1.mu2); for a
    method with stopped targets each view answers for its own alignment only. With the regularizer
    `vmf` the two are the negative log-likelihood of a von Mises-Fisher distribution, weighted by
    l_align / d, since kappa then grows as d does.
    """
    weight = config.align_weight
    if config.regularizer == "vmf":
        weight /= dimension
        penalty = weight * losses.vmf_penalty(*kappas, dimension=dimension)
    else:
        penalty = config.penalty_weight * losses.l2_penalty(*kappas)
    aligned = tf.add_n(
        [tf.reduce_mean(kappa * cos) for kappa, cos in zip(kappas, cosines, strict=True)]
    )
    return {"alignment": -weight * aligned, "penalty": penalty}
