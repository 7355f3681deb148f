"""MC-InfoNCE, the paper's strongest competitor: kappa learned implicitly, from samples."""

from __future__ import annotations

from typing import ClassVar

import ml_collections

from tfvmf.methods.base import Method, Objective, StepContext, Views, distribute, losses, tf
from tfvmf.settings import AGGREGATIONS, Setting


class MCInfoNCE(Method):
    """SimCLR's loss on samples of the views' distributions, over the negatives of all replicas."""

    section: ClassVar[str] = "mc_infonce"
    settings: ClassVar[dict[str, Setting]] = {
        "temperature": Setting(0.5, "temperature of the softmax over samples", above=0),
        "num_samples": Setting(64, "samples of each distribution", low=1),
        "aggregation": Setting("mean_log", "how samples are joined", choices=AGGREGATIONS),
    }
    term_names: ClassVar[tuple[str, ...]] = ("contrastive",)
    relative_cost: ClassVar[float] = 1.3  # 64 samples: benchmarks/mc_infonce.py
    explicit: ClassVar[bool] = False

    @classmethod
    def default_concentration(cls, config: ml_collections.ConfigDict) -> float:
        """The dimension: samples of kappa = softplus(0) are all but uniform and teach nothing."""
        return float(config.model.dimension)

    def objective(self, views: Views, labels: tf.Tensor | None, context: StepContext) -> Objective:
        """See `Method.objective`."""
        outputs = self.encode(views, context)
        mu_1, mu_2 = (view["mean_direction"] for view in outputs)
        rows = tf.shape(mu_1)[0]
        # Every replica draws the samples of the whole batch, from the same seed: what is sent
        # around are the distributions, not 64 samples of each.
        contrastive = losses.mc_infonce(
            distribute.gather(mu_1),
            distribute.gather(outputs[0]["concentration"]),
            distribute.gather(mu_2),
            distribute.gather(outputs[1]["concentration"]),
            seed=context.seed,
            temperature=self.config.mc_infonce.temperature,
            num_samples=self.config.mc_infonce.num_samples,
            aggregation=self.config.mc_infonce.aggregation,
            rows=rows,
            first_row=distribute.replica_id() * rows,
        )
        cosine = losses.cosine(mu_1, mu_2)
        return Objective({"contrastive": contrastive}, [cosine, cosine], outputs)
