"""The losses that the search compares. All take the projections of every view of a batch.

A loss is a function of `globals_` and `locals_`, lists of [B, d] that are not normalized, one for
each view; row i of each belongs to image i.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

Views = Sequence[tf.Tensor]


def multi_positive_nt_xent(
    globals_: Views, locals_: Views, *, temperature: float, decoupled: bool = False
) -> tf.Tensor:
    """Each view must find every other global view of its image among those of all images.

    For an anchor a and a positive p, with the global views n of all other images:
    -log(exp(a.p / t) / (exp(a.p / t) + sum_n exp(a.n / t))), the mean over positives and anchors.
    Two global views alone give NT-Xent. `decoupled` leaves the positive out of the denominator.
    """
    count, batch = len(globals_), tf.shape(globals_[0])[0]
    anchors = tf.math.l2_normalize(tf.concat([*globals_, *locals_], axis=0), axis=1)
    targets = anchors[: count * batch]
    scores = tf.matmul(anchors, targets, transpose_b=True) / temperature
    images_of_anchors = tf.tile(tf.range(batch), [count + len(locals_)])
    images_of_targets = tf.tile(tf.range(batch), [count])
    same = images_of_anchors[:, None] == images_of_targets[None, :]
    itself = tf.range(tf.shape(anchors)[0])[:, None] == tf.range(count * batch)[None, :]
    positive = tf.cast(same & ~itself, tf.float32)
    negatives = tf.reduce_logsumexp(tf.where(same, -1e9, scores), axis=1, keepdims=True)
    # Only the few positive places: [anchors, count].
    columns = tf.range(batch)[:, None] + batch * tf.range(count)[None, :]
    columns = tf.tile(columns, [count + len(locals_), 1])
    found = tf.gather(scores, columns, batch_dims=1)
    valid = tf.gather(positive, columns, batch_dims=1)
    wholes = negatives if decoupled else tf.math.softplus(negatives - found) + found
    losses = tf.reduce_sum((wholes - found) * valid, axis=1) / tf.reduce_sum(valid, axis=1)
    return tf.reduce_mean(losses)


def nearest_neighbor_nt_xent(
    globals_: Views, locals_: Views, *, temperature: float, queue: tf.Variable
) -> tf.Tensor:
    """NNCLR: the nearest past direction of one view must be found from the other views.

    The queue [L, d] then takes the directions of the first view.
    """
    unit = [tf.math.l2_normalize(view, axis=1) for view in [*globals_, *locals_]]
    past = tf.convert_to_tensor(queue)
    total = []
    for target in range(len(globals_)):
        places = tf.argmax(tf.matmul(unit[target], past, transpose_b=True), axis=1)
        neighbor = tf.stop_gradient(tf.gather(past, places))
        labels = tf.range(tf.shape(neighbor)[0])
        for anchor in range(len(unit)):
            if anchor == target:
                continue
            scores = tf.matmul(neighbor, unit[anchor], transpose_b=True) / temperature
            total.append(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))
    new = tf.stop_gradient(unit[0])
    queue.assign(tf.concat([new, past[: -tf.shape(new)[0]]], axis=0))
    return tf.reduce_mean(tf.stack(total))


def vicreg(
    globals_: Views,
    locals_: Views,
    *,
    invariance: float = 25.0,
    variance: float = 25.0,
    covariance: float = 1.0,
) -> tf.Tensor:
    """VICReg, each view against the mean of the global ones (for two views: the same direction)."""
    views = [*globals_, *locals_]
    center = tf.add_n(list(globals_)) / len(globals_)
    factor = 4.0 if len(globals_) == 2 else 2.0  # |a - b|^2 = 4 |a - (a + b) / 2|^2
    together = tf.add_n([tf.reduce_mean(tf.square(view - center)) for view in views]) / len(views)
    spread, crossed = 0.0, 0.0
    for view in views:
        centered = view - tf.reduce_mean(view, axis=0)
        rows = tf.cast(tf.shape(view)[0], tf.float32)
        deviation = tf.sqrt(tf.reduce_mean(tf.square(centered), axis=0) + 1e-4)
        spread += tf.reduce_mean(tf.nn.relu(1.0 - deviation)) / len(views)
        cov = tf.matmul(centered, centered, transpose_a=True) / (rows - 1.0)
        off = tf.reduce_sum(tf.square(cov)) - tf.reduce_sum(tf.square(tf.linalg.diag_part(cov)))
        crossed += off / view.shape[-1] / len(views)
    return invariance * factor * together + variance * spread + covariance * crossed


def coding_rate(
    globals_: Views, locals_: Views, *, weight: float = 200.0, epsilon: float = 0.2
) -> tf.Tensor:
    """EMP-SSL: every view near the mean of its image's views, all directions far apart.

    -weight mean cos(z_v, mean of z) - mean over views of log det(I + d / (B eps^2) Z'Z) / 2.
    """
    unit = [tf.math.l2_normalize(view, axis=1) for view in [*globals_, *locals_]]
    center = tf.math.l2_normalize(tf.add_n(unit), axis=1)
    cosine = tf.reduce_mean(tf.stack([tf.reduce_sum(u * center, axis=1) for u in unit]))
    rates = []
    for u in unit:
        d, rows = u.shape[-1], tf.cast(tf.shape(u)[0], tf.float32)
        gram = tf.eye(d) + d / (rows * epsilon**2) * tf.matmul(u, u, transpose_a=True)
        rates.append(tf.reduce_sum(tf.math.log(tf.linalg.diag_part(tf.linalg.cholesky(gram)))))
    return -weight * cosine - tf.add_n(rates) / len(rates)


def taught(
    globals_: Views,
    locals_: Views,
    *,
    temperature: float,
    teacher: Callable[[], tf.Tensor],
    teacher_temperature: float = 0.1,
) -> tf.Tensor:
    """Each view must find the images that its own image resembles, as a teacher sees them.

    With the teacher's unit vectors t of the batch, p = softmax(t t' / teacher_temperature) without
    the diagonal; the loss is the cross-entropy of p and softmax(a b' / temperature), likewise, the
    mean over the pairs of a view a and another global view b.
    """
    unit = [tf.math.l2_normalize(view, axis=1) for view in [*globals_, *locals_]]
    vectors = teacher()
    itself = -1e9 * tf.eye(tf.shape(vectors)[0])
    alike = tf.matmul(vectors, vectors, transpose_b=True) / teacher_temperature
    wanted = tf.nn.softmax(alike + itself)
    losses = []
    for target in range(len(globals_)):
        for anchor in range(len(unit)):
            if anchor != target:
                scores = tf.matmul(unit[anchor], unit[target], transpose_b=True) / temperature
                losses.append(tf.nn.softmax_cross_entropy_with_logits(wanted, scores + itself))
    return tf.reduce_mean(tf.stack(losses))
