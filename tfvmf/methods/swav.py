"""SwAV: views of an image get the same prototypes, and all prototypes are used equally."""

from __future__ import annotations

from typing import Any, ClassVar

import ml_collections

from tfvmf.errors import UserError
from tfvmf.methods.base import Method, Objective, StepContext, Views, distribute, losses, models, tf
from tfvmf.settings import Setting


class SwAV(Method):
    """Each view predicts the assignment of the others, over the batches of all replicas.

    An assignment uses all prototypes equally (Sinkhorn), so directions cannot collapse, and the
    concentration is aligned with mu_1.mu_2 as in SimCLR. Optional: a queue of past directions that
    takes part in the assignment, and small local views that only predict.
    """

    section: ClassVar[str] = "swav"
    settings: ClassVar[dict[str, Setting]] = {
        "num_prototypes": Setting(128, "directions that stand for clusters", low=2),
        "temperature": Setting(0.1, "temperature of the softmax over prototypes", above=0),
        # 0.05 on ImageNet; on small data sets, it gives nearly equal shares to all prototypes, and
        # the loss stays at log(num_prototypes).
        "sinkhorn_epsilon": Setting(0.02, "softness of the assignments", above=0),
        "sinkhorn_iterations": Setting(3, "rounds of Sinkhorn's algorithm", low=1),
        "freeze_epochs": Setting(1.0, "first epochs, in which the prototypes are fixed", low=0),
        "queue_length": Setting(0, "past directions per view in the assignment", low=0),
        "queue_start_epochs": Setting(0.0, "epochs before the queue is used", low=0),
        "num_local_views": Setting(0, "small crops besides the two views (multi-crop)", low=0),
        "local_size": Setting(16, "height and width of local views", low=8),
        "local_crop_min": Setting(0.05, "smallest local crop, as a share of the area"),
        "local_crop_max": Setting(0.2, "largest local crop, as a share of the area"),
    }
    term_names: ClassVar[tuple[str, ...]] = ("prediction",)
    follows_epochs: ClassVar[bool] = True

    def build_parts(self) -> None:
        """Adds the prototypes."""
        config = self.config.swav
        self.prototypes = models.Prototypes(
            config.num_prototypes, queue_length=config.queue_length, name="prototypes"
        )
        self.prototypes.build((None, self.dimension))
        self.models["prototypes"] = self.prototypes

    @classmethod
    def check(cls, config: ml_collections.ConfigDict) -> None:
        """Raises UserError if the queue is shorter than a batch."""
        if 0 < config.swav.queue_length < config.batch_size:
            raise UserError(
                f"--config.swav.queue_length={config.swav.queue_length} is smaller than a batch of "
                f"{config.batch_size}: use 0 for no queue, or a multiple of the batch"
            )

    def view_kinds(self, augmentation: Any) -> list[tuple[Any, int]]:
        """Two views, then local ones, then wide ones."""
        pair, *wide = super().view_kinds(augmentation)
        config = self.config.swav
        if not config.num_local_views:
            return [pair, *wide]
        crop = {"crop_min": config.local_crop_min, "crop_max": config.local_crop_max}
        try:
            local = augmentation.changed(size=config.local_size, **crop)
        except ValueError as error:
            raise UserError(f"--config.swav.local_*: {error}") from error
        return [pair, (local, config.num_local_views), *wide]

    def objective(self, views: Views, labels: tf.Tensor | None, context: StepContext) -> Objective:
        """See `Method.objective`."""
        pair, local = views[: self.num_views], views[self.num_views :]
        outputs = self.encode(pair, context)
        if local:
            outputs += self.encode(local, context, first_view=self.num_views)
        directions = [view["mean_direction"] for view in outputs]
        learn = context.epoch >= self.config.swav.freeze_epochs
        scores = tf.split(self.prototypes(tf.concat(directions, axis=0), learn=learn), len(outputs))
        parts = []
        for assigned in range(self.num_views):
            codes = self._codes(assigned, directions[assigned], scores[assigned], context)
            others = [*scores[:assigned], *scores[assigned + 1 :]]
            softness = self.config.swav.temperature
            parts += [losses.swapped_prediction(codes, s, temperature=softness) for s in others]
        cosine = losses.cosine(directions[0], directions[1])
        prediction = tf.add_n(parts) / len(parts)
        return Objective({"prediction": prediction}, [cosine, cosine], outputs[: self.num_views])

    def after_step(self, context: StepContext) -> None:
        """Restores the unit length of the prototypes."""
        self.prototypes.normalize()

    def _codes(
        self, view: int, directions: tf.Tensor, scores: tf.Tensor, context: StepContext
    ) -> tf.Tensor:
        """Assignments [B, K] of this replica's rows, computed over all replicas."""
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
        started = context.epoch >= config.queue_start_epochs
        codes = tf.cond(
            tf.logical_and(started, self.prototypes.is_full(view)),
            lambda: assign(tf.concat([batch, past], axis=0)),
            lambda: assign(batch),
        )
        if context.training:
            self.prototypes.push(view, distribute.gather(tf.stop_gradient(directions)))
        return codes
