"""MC-InfoNCE, the paper's strongest competitor: kappa learned implicitly, from samples."""

from typing import ClassVar

import ml_collections
import tensorflow as tf

from tfvmf import distribute, losses
from tfvmf.methods.base import Method, Moment, Objective
from tfvmf.methods.encoders import encoder_from_config


class MCInfoNCE(Method):
    """SimCLR's loss on samples of the views' distributions, over the negatives of all replicas."""

    explicit: ClassVar[bool] = False

    def __init__(
        self, config: ml_collections.ConfigDict, *, probabilistic: bool = True, num_classes: int = 0
    ) -> None:
        super().__init__(config, probabilistic=probabilistic, num_classes=num_classes)
        self.models["encoder"] = encoder_from_config(config, concentration=True)

    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, moment: Moment
    ) -> Objective:
        """See `Method.objective`."""
        del labels
        first, second = self.encode(views, moment)
        mu_1, mu_2 = first["mean_direction"], second["mean_direction"]
        kappa_1, kappa_2 = first["concentration"], second["concentration"]
        rows = tf.shape(mu_1)[0]
        # Every replica draws the samples of the whole batch, from the same seed: what is sent
        # around are the distributions, not 64 samples of each.
        contrastive = losses.mc_infonce(
            distribute.gather(mu_1),
            distribute.gather(kappa_1),
            distribute.gather(mu_2),
            distribute.gather(kappa_2),
            seed=moment.seed,
            temperature=self.config.mc_infonce.temperature,
            num_samples=self.config.mc_infonce.num_samples,
            aggregation=self.config.mc_infonce.aggregation,
            rows=rows,
            first_row=distribute.replica_id() * rows,
        )
        cosine = losses.cosine(mu_1, mu_2)
        return {"contrastive": contrastive}, [cosine, cosine], [kappa_1, kappa_2]
