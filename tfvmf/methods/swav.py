"""SwAV: views of an image are assigned to the same prototypes, and all prototypes are used."""

import ml_collections
import tensorflow as tf

from tfvmf import distribute, losses, models
from tfvmf.methods.base import Method, Moment, Objective
from tfvmf.methods.encoders import encoder_from_config


class SwAV(Method):
    """Each view predicts the assignment of the others, over the assignments of all replicas.

    The assignment of a batch uses all prototypes alike (Sinkhorn), so directions cannot collapse,
    and the concentration is aligned with mu_1.mu_2 as in SimCLR. Optional: a queue of past
    directions that takes part in the assignment, and small local views that predict but are not
    assigned.
    """

    def __init__(
        self, config: ml_collections.ConfigDict, *, probabilistic: bool, num_classes: int = 0
    ) -> None:
        super().__init__(config, probabilistic=probabilistic, num_classes=num_classes)
        self.num_local_views = config.swav.num_local_views
        self.models["encoder"] = encoder_from_config(config, concentration=probabilistic)
        self.prototypes = models.Prototypes(
            config.swav.num_prototypes, queue_length=config.swav.queue_length, name="prototypes"
        )
        self.prototypes.build((None, config.model.dimension))
        self.models["prototypes"] = self.prototypes

    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, moment: Moment
    ) -> Objective:
        """See `Method.objective`."""
        del labels
        pair, local = views[: self.num_views], views[self.num_views :]
        outputs = self.encode(pair, moment)
        if local:
            outputs += self.encode(local, moment, first_view=self.num_views)
        directions = [view["mean_direction"] for view in outputs]
        learn = moment.epoch >= self.config.swav.freeze_epochs
        scores = tf.split(self.prototypes(tf.concat(directions, axis=0), learn=learn), len(outputs))
        parts = []
        for assigned in range(self.num_views):
            codes = self._codes(assigned, directions[assigned], scores[assigned], moment)
            parts += [
                losses.swapped_prediction(
                    codes, scores[view], temperature=self.config.swav.temperature
                )
                for view in range(len(outputs))
                if view != assigned
            ]
        cosine = losses.cosine(directions[0], directions[1])
        kappas = [view["concentration"] for view in outputs[: self.num_views]]
        return {"prediction": tf.add_n(parts) / len(parts)}, [cosine, cosine], kappas

    def after_step(self, moment: Moment) -> None:
        """Gives the prototypes length 1 again."""
        del moment
        self.prototypes.normalize()

    def _codes(
        self, view: int, directions: tf.Tensor, scores: tf.Tensor, moment: Moment
    ) -> tf.Tensor:
        """Assignments [B, K] of this replica's rows, made together with those of all replicas."""
        config = self.config.swav
        rows = tf.shape(scores)[0]
        batch = distribute.gather(tf.stop_gradient(scores))

        def assign(candidates: tf.Tensor) -> tf.Tensor:
            codes = losses.sinkhorn(
                candidates, epsilon=config.sinkhorn_epsilon, iterations=config.sinkhorn_iterations
            )
            first = distribute.replica_id() * rows
            return tf.ensure_shape(codes[first : first + rows], scores.shape)

        if not config.queue_length:
            return assign(batch)
        past = tf.stop_gradient(self.prototypes(self.prototypes.queue[view]))
        started = moment.epoch >= config.queue_start_epochs
        codes = tf.cond(
            tf.logical_and(started, self.prototypes.is_full(view)),
            lambda: assign(tf.concat([batch, past], axis=0)),
            lambda: assign(batch),
        )
        everyone = distribute.gather(tf.stop_gradient(directions))
        self.prototypes.push(view, everyone)
        return codes
