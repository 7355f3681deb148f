"""The shape of a method: what is trained, and how the views of a batch meet in a loss."""

import abc
from typing import Any, ClassVar

import keras
import ml_collections
import tensorflow as tf

from tfvmf import losses

Terms = dict[str, tf.Tensor]


class Method(abc.ABC):
    """Turns views of a batch into a loss.

    A subclass names its models in `__init__` and computes its own terms in `objective`; this class
    adds the paper's concentration terms, the same way for every method. Everything that a
    checkpoint must hold is in `models` or `variables`.

    Args:
        config: The whole configuration of the run.
        probabilistic: Whether the encoder learns a concentration.
        num_classes: Classes of the labels, 0 without labels.
    """

    num_views: ClassVar[int] = 2
    # Whether the paper's alignment and penalty are what teaches the concentration.
    explicit: ClassVar[bool] = True

    def __init__(
        self, config: ml_collections.ConfigDict, *, probabilistic: bool, num_classes: int = 0
    ) -> None:
        self.config = config
        self.probabilistic = probabilistic
        self.num_classes = num_classes
        self.models: dict[str, keras.Model] = {}

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
        self, views: list[tf.Tensor], labels: tf.Tensor | None, *, seed: tf.Tensor
    ) -> tuple[Terms, list[tf.Tensor], list[tf.Tensor]]:
        """The method's own loss on one replica's share of the batch.

        Args:
            views: `num_views` tensors of images [B, H, W, 3] in [0, 1].
            labels: Class numbers [B], None without labels.
            seed: Two integers, new at every step and the same on every replica, for a method
                that draws random numbers.

        Returns:
            The loss terms, to be added; for each view the cosine [B] between its direction and
            the direction that the method aligns it with; for each view its concentration [B].
        """

    def loss(
        self, views: list[tf.Tensor], labels: tf.Tensor | None = None, *, seed: Any = (0, 0)
    ) -> Terms:
        """All terms of the loss with their sum as `loss`, and what to watch beside them.

        The mean of each over the replicas is its value for the whole batch.
        """
        terms, cosines, kappas = self.objective(views, labels, seed=seed)
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

    def encode(self, views: list[tf.Tensor]) -> list[dict[str, Any]]:
        """Encodes all views in one pass (one large batch beats several small ones)."""
        outputs = self.encoder(tf.concat(views, axis=0), training=True)
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
