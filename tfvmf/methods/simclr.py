"""SimCLR: two views of an image find each other among all views of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import ml_collections

from tfvmf.lazy import lazy_import
from tfvmf.methods.base import Method, Objective, StepContext, concentrations
from tfvmf.settings import Setting

if TYPE_CHECKING:
    import tensorflow as tf

    from tfvmf import distribute, losses
else:
    tf, distribute, losses = lazy_import("tensorflow", "tfvmf.distribute", "tfvmf.losses")


class SimCLR(Method):
    """The NT-Xent loss on the mean directions, over the negatives of all replicas."""

    section: ClassVar[str] = "simclr"
    settings: ClassVar[dict[str, Setting]] = {
        "temperature": Setting(0.5, "of the softmax over views", above=0)
    }
    term_names: ClassVar[tuple[str, ...]] = ("contrastive",)

    def __init__(self, config: ml_collections.ConfigDict, *, num_classes: int = 0) -> None:
        super().__init__(config, num_classes=num_classes)
        self.models["encoder"] = self.build_encoder(concentration=self.probabilistic)

    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, context: StepContext
    ) -> Objective:
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
        return Objective({"contrastive": contrastive}, [cosine, cosine], concentrations(outputs))
