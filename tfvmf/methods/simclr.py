"""SimCLR, and MC-InfoNCE: the same loss on samples of the views' distributions."""

from __future__ import annotations

from typing import ClassVar

from tfvmf.methods.base import Method, Objective, StepContext, Views, distribute, losses, tf
from tfvmf.settings import AGGREGATIONS, Setting


class SimCLR(Method):
    """The NT-Xent loss on the mean directions, with the negatives of all replicas."""

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


class MCInfoNCE(Method):
    """NT-Xent on samples of views, which trains kappa implicitly: the paper's main competitor."""

    section: ClassVar[str] = "mc_infonce"
    settings: ClassVar[dict[str, Setting]] = {
        "temperature": Setting(0.5, "temperature of the softmax over samples", above=0),
        "num_samples": Setting(64, "samples of each distribution", low=1),
        "aggregation": Setting("mean_log", "how samples are combined", choices=AGGREGATIONS),
    }
    term_names: ClassVar[tuple[str, ...]] = ("contrastive",)
    explicit: ClassVar[bool] = False
    relative_cost: ClassVar[float] = 1.3  # 64 samples: benchmarks/mc_infonce.py

    def objective(self, views: Views, labels: tf.Tensor | None, context: StepContext) -> Objective:
        """See `Method.objective`."""
        outputs = self.encode(views, context)
        mu_1, mu_2 = (view["mean_direction"] for view in outputs)
        rows = tf.shape(mu_1)[0]
        # Every replica draws the samples of the whole batch from the same seed, so that only the
        # distributions are exchanged, not 64 samples of each.
        names = ("mean_direction", "concentration")
        contrastive = losses.mc_infonce(
            *(distribute.gather(view[name]) for view in outputs for name in names),
            seed=context.seed,
            **self.config.mc_infonce,
            rows=rows,
            first_row=distribute.replica_id() * rows,
        )
        cosine = losses.cosine(mu_1, mu_2)
        return Objective({"contrastive": contrastive}, [cosine, cosine], outputs)
