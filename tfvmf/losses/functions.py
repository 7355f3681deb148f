"""The losses as functions of tensors, independent of models, data and replicas.

For fixed directions, the paper's two terms on the concentration (`concentration_terms`) are
smallest at

    kappa* = l_align / (2 l_reg) * E[mu_1.mu_2],

5 E[cos] with the paper's weights 0.05 and 0.005: kappa learns how well two views of an image
agree, on a scale set by the weights. With the exact penalty of the von Mises-Fisher distribution
instead of the square, and one weight for both terms, the minimum is

    kappa* = A_d^{-1}(E[mu_1.mu_2]),

the maximum-likelihood concentration: a scale of the order of d, independent of the weights.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfvmf import vmf
from tfvmf.settings import AGGREGATIONS, REGULARIZERS

# Maximum size of a similarity matrix, reached with 2048 images: 64 MiB of float32. A few such
# matrices are in memory at a time, so larger batches are computed in parts of a quarter of this.
_MAX_MATRIX_ELEMENTS = 1 << 24


def cosine(direction_1: tf.Tensor, direction_2: tf.Tensor) -> tf.Tensor:
    """Cosines mu_1.mu_2 [B] of unit vectors [B, d], row by row."""
    return tf.reduce_sum(direction_1 * direction_2, axis=-1)


def concentration_terms(
    cosines: Sequence[tf.Tensor],
    concentrations: Sequence[tf.Tensor],
    *,
    align_weight: float = 0.05,
    penalty_weight: float = 0.005,
    regularizer: str = "l2",
    dimension: int | None = None,
) -> dict[str, tf.Tensor]:
    """The paper's two terms on the concentration, as weighted scalars.

        alignment = -l_align * sum over views v of mean(kappa_v * cos_v)
        penalty   =  l_reg   * sum over views v of mean(kappa_v^2)

    If both views have the same cosine, the alignment is the paper's term
    -mean((kappa_1 + kappa_2) mu_1.mu_2). (Its code takes log(exp(x) + 1e-6), which is equal but
    overflows.) A method with stopped targets has one cosine per view.

    With the regularizer `vmf` the terms are the negative log-likelihood of a von Mises-Fisher
    distribution, weighted by l_align / d, because kappa then grows with d: the penalty is
    log C_d(0) - log C_d(kappa), whose slope A_d(kappa) stays below 1. It needs the `dimension` d.

    Each view has its kappa [B] and the cosine [B] of its direction and the one it is aligned with.
    `align_weight` is l_align; `penalty_weight` is l_reg, which only the regularizer `l2` uses.
    """
    if regularizer not in REGULARIZERS:
        raise ValueError(f"regularizer must be one of {', '.join(REGULARIZERS)}, not {regularizer}")
    if regularizer == "l2":
        weight, penalties = penalty_weight, [tf.square(kappa) for kappa in concentrations]
    elif dimension is None:
        raise ValueError("the regularizer vmf needs the dimension of the directions")
    else:
        weight = align_weight = align_weight / dimension
        at_zero = vmf.log_normalizer(tf.zeros([], concentrations[0].dtype), dimension)
        penalties = [at_zero - vmf.log_normalizer(kappa, dimension) for kappa in concentrations]
    pairs = zip(concentrations, cosines, strict=True)
    alignment = -tf.add_n([tf.reduce_mean(kappa * cos) for kappa, cos in pairs])
    penalty = tf.add_n([tf.reduce_mean(values) for values in penalties])
    return {"alignment": align_weight * alignment, "penalty": weight * penalty}


def nt_xent(
    direction_1: tf.Tensor,
    direction_2: tf.Tensor,
    *,
    temperature: float = 0.5,
    candidates_1: tf.Tensor | None = None,
    candidates_2: tf.Tensor | None = None,
    first_row: tf.Tensor | int = 0,
    max_matrix_elements: int = _MAX_MATRIX_ELEMENTS,
) -> tf.Tensor:
    """Normalized-temperature cross entropy: each view must find its partner among all views.

        loss_i = -log( exp(z_i.z_j / t) / sum_{k != i} exp(z_i.z_k / t) )

    averaged over the 2B views i, where j is the other view of the same image. It is computed as a
    log-softmax, which does not overflow. For more than 2048 images (`max_matrix_elements`) the
    similarities are computed in parts, twice, so that memory is linear in the batch size.

    The directions are unit vectors [B, d]; equal rows are the same image. If they are only one
    replica's share of the batch, the candidates are the whole batch, [G, d], in which the share
    starts at row `first_row`.
    """
    direction_1, direction_2 = _pair(direction_1, direction_2, temperature)
    if (candidates_1 is None) != (candidates_2 is None):
        raise ValueError("candidates_1 and candidates_2 must be given together")
    if candidates_1 is None:
        candidates_1, candidates_2 = direction_1, direction_2
    anchors = tf.concat([direction_1, direction_2], axis=0)
    candidates = tf.concat([candidates_1, candidates_2], axis=0)
    total = tf.shape(candidates_1)[0]
    self_columns, partner_columns = _columns(first_row, tf.shape(direction_1)[0], total)
    sizes = anchors.shape[0], candidates.shape[0]
    if None in sizes or sizes[0] * sizes[1] > max_matrix_elements:
        partners = tf.gather(candidates, partner_columns)
        found = tf.reduce_sum(anchors * partners, axis=1) / temperature
        chunk = tf.maximum(max_matrix_elements // (8 * total), 1)
        among = _chunked_log_normalizer(anchors, candidates, self_columns, temperature, chunk)
        return tf.reduce_mean(among - found)
    logits = tf.matmul(anchors, candidates, transpose_b=True) / temperature
    itself = tf.one_hot(self_columns, 2 * total, on_value=True, off_value=False)
    # The smallest float, not -inf: the gradient of a masked entry is then 0 and never NaN.
    logits = tf.where(itself, logits.dtype.min, logits)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(partner_columns, logits)
    return tf.reduce_mean(losses)


def _columns(
    first_row: tf.Tensor | int, rows: tf.Tensor | int, total: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The positions of 2 * rows views and their partners among the 2 * total views of a batch."""
    own = first_row + tf.range(rows)
    return tf.concat([own, own + total], axis=0), tf.concat([own + total, own], axis=0)


def copies(tensor: tf.Tensor, count: int) -> list[tf.Tensor]:
    """The same tensor `count` times; the gradients of the copies are added in a fixed order.

    TensorFlow adds three or more gradients by AddN, which starts with whichever input happens to
    have its own buffer, so the last bit of the sum differs from run to run. (Two gradients have the
    same sum in either order.) Stacked and reduced, they are added as listed, and no graph
    optimization turns the sum into an AddN.
    """

    @tf.custom_gradient
    def copied(x: tf.Tensor) -> Any:
        def gradient(*upstream: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(tf.stack(upstream), axis=0)

        return [tf.identity(x) for _ in range(count)], gradient

    return copied(tensor)


def _similarities(
    anchors: tf.Tensor, candidates: tf.Tensor, own: tf.Tensor, temperature: float
) -> tf.Tensor:
    """Logits a_i.c_k / t [..., R, N], with the smallest float where k is the anchor itself."""
    dtype = anchors.dtype
    itself = tf.one_hot(
        own, tf.shape(candidates)[-2], on_value=dtype.min, off_value=0.0, dtype=dtype
    )
    return tf.matmul(anchors * (1.0 / temperature), candidates, transpose_b=True) + itself


def _chunked_log_normalizer(
    anchors: tf.Tensor,
    candidates: tf.Tensor,
    own: tf.Tensor,
    temperature: float,
    chunk: tf.Tensor,
) -> tf.Tensor:
    """Log [R] of sum_{k != own_i} exp(a_i.c_k / t) for anchors [R, d] and candidates [N, d].

    Computed for `chunk` anchors at a time, and again for the gradient: chunk * N floats are in
    memory for any number of anchors, at 1.5 times the work.
    """
    anchors, candidates = tf.convert_to_tensor(anchors), tf.convert_to_tensor(candidates)
    count = tf.shape(anchors)[0]

    def similarities(part: slice, a: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
        return _similarities(a[part], c, own[part], temperature)

    def by_chunk(work: Callable[..., tuple], *state: tf.Tensor) -> Sequence[tf.Tensor]:
        """Calls work(slice, rows [n, 1], *state) -> state for the chunks, one after another."""

        def step(start: tf.Tensor, *state: tf.Tensor) -> tuple:
            stop = tf.minimum(start + chunk, count)
            return stop, *work(slice(start, stop), tf.range(start, stop)[:, None], *state)

        unfinished = lambda start, *_: start < count  # noqa: E731
        # More iterations at a time would hold several chunks in memory.
        return tf.while_loop(unfinished, step, (0, *state), parallel_iterations=1)[1:]

    @tf.custom_gradient
    def normalizer(a: tf.Tensor, c: tf.Tensor) -> Any:
        def forward(part: slice, rows: tf.Tensor, sums: tf.Tensor) -> tuple:
            found = tf.reduce_logsumexp(similarities(part, a, c), axis=1)
            return (tf.tensor_scatter_nd_update(sums, rows, found),)

        (log_sums,) = by_chunk(forward, tf.zeros(count, a.dtype))

        def gradient(upstream: tf.Tensor) -> Sequence[tf.Tensor]:
            def backward(part: slice, rows: tf.Tensor, to_a: tf.Tensor, to_c: tf.Tensor) -> tuple:
                weights = tf.exp(similarities(part, a, c) - log_sums[part, None])
                weights *= upstream[part, None] * (1.0 / temperature)
                to_c += tf.matmul(weights, a[part], transpose_a=True)
                return tf.tensor_scatter_nd_update(to_a, rows, tf.matmul(weights, c)), to_c

            return by_chunk(backward, tf.zeros_like(a), tf.zeros_like(c))

        return log_sums, gradient

    return normalizer(anchors, candidates)


def _pair(first: tf.Tensor, second: tf.Tensor, temperature: float) -> list[tf.Tensor]:
    """Both views as tensors; raises an error if they cannot be views of the same images."""
    if temperature <= 0.0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    first, second = map(tf.convert_to_tensor, (first, second))
    if not (first.shape.rank == 2 and first.shape.is_compatible_with(second.shape)):
        raise ValueError(
            f"the views have the shapes {first.shape} and {second.shape}: expected unit vectors "
            "[B, d], row by row of the same image"
        )
    return [first, second]


def mc_infonce(
    direction_1: tf.Tensor,
    concentration_1: tf.Tensor,
    direction_2: tf.Tensor,
    concentration_2: tf.Tensor,
    *,
    seed: Any,
    temperature: float = 0.5,
    num_samples: int = 64,
    aggregation: str = "mean_log",
    rows: int | None = None,
    first_row: tf.Tensor | int = 0,
    chunk: int = 4,
) -> tf.Tensor:
    """NT-Xent between samples z ~ vMF(mu, kappa) of all views, over many draws.

        p_is = exp(z_is.z_js / t) / sum_{k != i} exp(z_is.z_ks / t),   s = 1 ... num_samples

    where j is the partner of view i. `mean_log` is the paper's adaptation, -mean_s log p_is;
    `logmeanexp` is the original, -log mean_s p_is.

    Memory is chunk * (2B)^2 floats for any `num_samples`: a chunk of samples keeps only its
    normalizers, and its similarities are computed again for the gradient.

    Directions [G, d] and concentrations [G] are those of the whole batch; the loss is the mean over
    both views of `rows` images from `first_row` on (a replica's share; by default all). `seed` is
    two integers, as for `tf.random.stateless_uniform`.
    """
    direction_1, direction_2 = _pair(direction_1, direction_2, temperature)
    for name, value in (("num_samples", num_samples), ("chunk", chunk)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, not {aggregation}")
    directions = tf.concat([direction_1, direction_2], axis=0)
    concentrations = tf.concat([concentration_1, concentration_2], axis=0)
    samples = vmf.VonMisesFisher(directions, concentrations).sample(num_samples, seed=seed)

    total = tf.shape(direction_1)[0]
    anchors, partners = _columns(first_row, total if rows is None else rows, total)
    sizes = [min(chunk, num_samples - start) for start in range(0, num_samples, chunk)]
    parts = tf.split(samples, sizes, axis=0)
    found = [_log_probability(part, anchors, partners, temperature) for part in parts]
    log_p = tf.concat(found, axis=0)  # [num_samples, 2 * rows]
    if aggregation == "mean_log":
        return -tf.reduce_mean(log_p)
    over_samples = tf.reduce_logsumexp(log_p, axis=0) - tf.math.log(float(num_samples))
    return -tf.reduce_mean(over_samples)


def _log_probability(
    samples: tf.Tensor, anchors: tf.Tensor, partners: tf.Tensor, temperature: float
) -> tf.Tensor:
    """Log-probabilities [S, R] that anchors [R] of samples [S, N, d] find their partners."""
    samples_1, samples_2, samples_3 = copies(samples, 3)
    views = tf.gather(samples_1, anchors, axis=1)
    found = tf.reduce_sum(views * tf.gather(samples_2, partners, axis=1), axis=-1) / temperature

    @tf.custom_gradient
    def normalizer(views: tf.Tensor, samples: tf.Tensor) -> Any:
        similarities = functools.partial(_similarities, views, samples, anchors, temperature)
        log_sums = tf.reduce_logsumexp(similarities(), axis=-1)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            weights = tf.exp(similarities() - log_sums[..., None])
            weights *= upstream[..., None] * (1.0 / temperature)
            return tf.matmul(weights, samples), tf.matmul(weights, views, transpose_a=True)

        return log_sums, gradient

    return found - normalizer(views, samples_3)


def negative_cosine(predicted: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """SimSiam's loss -mean(p.z) of unit vectors [B, d]; no gradient flows into the targets z."""
    return -tf.reduce_mean(cosine(predicted, tf.stop_gradient(target)))


def squared_distance(predicted: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """BYOL's loss mean(|p - z|^2) = 2 - 2 mean(p.z), otherwise like `negative_cosine`."""
    return 2.0 + 2.0 * negative_cosine(predicted, target)


def sinkhorn(scores: tf.Tensor, *, epsilon: float = 0.05, iterations: int = 3) -> tf.Tensor:
    """Assigns samples to prototypes so that all prototypes get the same share.

    `scores` are cosines [B, K] of the whole batch, over all replicas. Returns, without a gradient,
    the codes Q [B, K] that maximize <Q, scores> + epsilon H(Q), Q >= 0, where every row sums to 1
    (a sample is assigned once) and every column to B / K. Each iteration scales the columns, then
    the rows: rows sum to 1 exactly, columns in the limit. Computed in logarithms and float32,
    because scores / epsilon = 20 overflows in half precision.
    """
    log_q = tf.stop_gradient(tf.cast(scores, tf.float32)) / epsilon
    rows, columns = tf.unstack(tf.cast(tf.shape(log_q), tf.float32))
    share = tf.math.log(rows / columns)
    for _ in range(iterations):
        log_q += share - tf.reduce_logsumexp(log_q, axis=0, keepdims=True)
        log_q -= tf.reduce_logsumexp(log_q, axis=1, keepdims=True)
    return tf.exp(log_q)


def swapped_prediction(
    codes: tf.Tensor, scores: tf.Tensor, *, temperature: float = 0.1
) -> tf.Tensor:
    """Cross entropy -mean(sum_k q log softmax(scores / T)) of codes q [B, K] and cosines [B, K]."""
    entropy = tf.nn.softmax_cross_entropy_with_logits(codes, scores / temperature)
    return tf.reduce_mean(entropy)
