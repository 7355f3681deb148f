"""SimCLR: two views of an image find each other among all views of the batch."""

from __future__ import annotations

from typing import ClassVar

from tfvmf.methods.base import Method, Objective, StepContext, Views, distribute, losses, tf
from tfvmf.settings import Setting


class SimCLR(Method):
    """The NT-Xent loss on the mean directions, over the negatives of all replicas."""

    section: ClassVar[str] = "simclr"
    settings: ClassVar[dict[str, Setting]] = {
        "temperature": Setting(0.5, "temperature of the softmax over views", above=0)
    }
    term_names: ClassVar[tuple[str, ...]] = ("contrastive",)

    def objective(self, views: Views, labels: tf.Tensor | None, context: StepContext) -> Objective:
        """See `Method.objective`."""
        outputs = self.encode(views, context)
        first, second = (losses.copies(view["mean_direction"], 3) for view in outputs)
        contrastive = losses.nt_xent(
            first[0],
            second[0],
            temperature=self.config.simclr.temperature,
            candidates_1=distribute.gather(first[1]),
            candidates_2=distribute.gather(second[1]),
            first_row=distribute.replica_id() * tf.shape(first[0])[0],
        )
        cosine = losses.cosine(first[2], second[2])
        return Objective({"contrastive": contrastive}, [cosine, cosine], outputs)
