"""VI-SimSiam: SimSiam as variational inference, with its own concentration."""

from __future__ import annotations

from typing import ClassVar

from tfvmf.methods.base import Objective, StepContext, Views, tf, vmf
from tfvmf.methods.simsiam import SimSiam


class VISimSiam(SimSiam):
    """Each view predicts a distribution of the other's direction, without a gradient to it.

        loss = -1/(2 d) mean(log vMF(stop(mu_2); p_1, kappa_1) + log vMF(stop(mu_1); p_2, kappa_2))

    with log vMF(x; p, kappa) = log C_d(kappa) + kappa p.x, largest at A_d(kappa) = E[p.x]. A fixed
    kappa gives SimSiam. The division by d balances kappa, which grows with d. Nakamura et al.
    (arXiv 2203.11437) use the power spherical distribution, which is easier to compute.
    """

    term_names: ClassVar[tuple[str, ...]] = ("likelihood",)
    explicit: ClassVar[bool] = False  # the loss itself trains kappa

    def objective(self, views: Views, labels: tf.Tensor | None, context: StepContext) -> Objective:
        """See `Method.objective`."""
        _, cosines, outputs = super().objective(views, labels, context)
        log_likelihoods = [
            vmf.log_normalizer(view["concentration"], self.dimension)
            + view["concentration"] * cosine
            for view, cosine in zip(outputs, cosines, strict=True)
        ]
        loss = -tf.reduce_mean(tf.stack(log_likelihoods)) / self.dimension
        return Objective({"likelihood": loss}, cosines, outputs)

    def predicted_cosine(self, kappa: tf.Tensor) -> tf.Tensor:
        """See `Method.predicted_cosine`."""
        return vmf.mean_resultant_length(kappa, self.dimension)
