"""SimCLR: two views of an image find each other among all views of the batch."""

import ml_collections
import tensorflow as tf

from tfvmf import distribute, losses
from tfvmf.methods.base import Method, Moment, Objective
from tfvmf.methods.encoders import encoder_from_config


class SimCLR(Method):
    """The NT-Xent loss on the mean directions, over the negatives of all replicas."""

    def __init__(
        self, config: ml_collections.ConfigDict, *, probabilistic: bool, num_classes: int = 0
    ) -> None:
        super().__init__(config, probabilistic=probabilistic, num_classes=num_classes)
        self.models["encoder"] = encoder_from_config(config, concentration=probabilistic)

    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, moment: Moment
    ) -> Objective:
        """See `Method.objective`."""
        del labels
        first, second = self.encode(views, moment)
        mu_1, mu_2 = first["mean_direction"], second["mean_direction"]
        contrastive = losses.nt_xent(
            mu_1,
            mu_2,
            temperature=self.config.simclr.temperature,
            candidates_1=distribute.gather(mu_1),
            candidates_2=distribute.gather(mu_2),
            first_row=distribute.replica_id() * tf.shape(mu_1)[0],
        )
        cosine = losses.cosine(mu_1, mu_2)
        kappas = [first["concentration"], second["concentration"]]
        return {"contrastive": contrastive}, [cosine, cosine], kappas
