"""A teacher in closed form: the statistics of patches, without labels and without gradients.

The sparse manifold transform of Chen et al. (arXiv 2209.15261) in one layer, with the whole image
as the context of a patch: words that appear in the same images get similar embeddings.
"""

import numpy as np
import scipy.linalg
import tensorflow as tf

_SIDE = 6  # of a patch, in pixels
_GRID = 4  # cells per side over which patches are averaged
_BLOCK = 100  # images at once
_SAMPLED = 16  # patches of an image that the covariance sees
_REDUCED = 512  # dimensions of the result


def features(
    images: np.ndarray,
    *,
    words: int = 2048,
    dimension: int = 256,
    threshold: float = 0.3,
    stride: int = 2,
    seed: int = 0,
) -> np.ndarray:
    """Unit vectors [N, up to 512] of images uint8 [N, H, W, 3].

    A patch x, whitened and of unit length, has the code a = max(D x - threshold, 0), scaled to a
    sum of 1, for a dictionary D of random patches. With the covariance V of all codes and the
    covariance B of their means over an image, the embedding is P'(a - mean) for the eigenvectors P
    of the largest eigenvalues of B p = l V p: what varies between images and not inside them.
    Embeddings of unit length are averaged over a grid of 4 x 4 cells.
    """
    draw = np.random.default_rng(seed)
    rows = draw.choice(len(images), min(len(images), 5000), replace=False)
    some = _patches(images[rows], stride).numpy()
    some = some[draw.choice(len(some), min(len(some), 100_000), replace=False)]
    values, vectors = np.linalg.eigh(np.cov(some, rowvar=False))
    whitening = tf.constant(vectors / np.sqrt(values + 1e-3), tf.float32)
    chosen = draw.choice(len(some), words, replace=False)
    dictionary = tf.math.l2_normalize(tf.matmul(some[chosen], whitening), axis=1)
    to_words = tf.matmul(whitening, dictionary, transpose_b=True)  # of a patch, up to its length

    @tf.function(reduce_retracing=True)
    def codes(block: tf.Tensor) -> tf.Tensor:
        """[B, patches, words]."""
        patches = _patches(block, stride)
        length = tf.norm(tf.matmul(patches, whitening), axis=1, keepdims=True)
        near = tf.nn.relu(tf.matmul(patches, to_words) / (length + 1e-6) - threshold)
        near /= tf.reduce_sum(near, axis=1, keepdims=True) + 1e-6
        return tf.reshape(near, [tf.shape(block)[0], -1, words])

    @tf.function(reduce_retracing=True)
    def moments(block: tf.Tensor, places: tf.Tensor) -> tuple[tf.Tensor, ...]:
        every = codes(block)
        means = tf.reduce_mean(every, axis=1)
        seen = tf.reshape(tf.gather(every, places, axis=1), [-1, words])
        return tuple(
            part
            for x in (seen, means)
            for part in (tf.reduce_sum(x, axis=0), tf.matmul(x, x, transpose_a=True))
        )

    count = ((images.shape[1] - _SIDE) // stride + 1) ** 2
    sums = [np.zeros(shape) for shape in ([words], [words, words]) * 2]
    for start in range(0, len(images), _BLOCK):
        places = tf.constant(draw.choice(count, _SAMPLED, replace=False), tf.int32)
        found = moments(tf.constant(images[start : start + _BLOCK]), places)
        sums = [a + b.numpy() for a, b in zip(sums, found, strict=True)]
    inside, between = (
        products / number - np.outer(total, total) / number**2
        for total, products, number in zip(
            sums[::2], sums[1::2], (_SAMPLED * len(images), len(images)), strict=True
        )
    )
    mean = sums[2] / len(images)
    inside += 1e-3 * np.trace(inside) / words * np.eye(words)
    last = [words - min(dimension, words), words - 1]
    _, projection = scipy.linalg.eigh(between, inside, subset_by_index=last)
    offset = tf.constant(mean @ projection, tf.float32)
    projection = tf.constant(projection, tf.float32)

    @tf.function(reduce_retracing=True)
    def embed(block: tf.Tensor) -> tf.Tensor:
        every = codes(block)
        side, batch = int(count**0.5), tf.shape(block)[0]
        flat = tf.matmul(tf.reshape(every, [-1, words]), projection) - offset
        maps = tf.reshape(tf.math.l2_normalize(flat, axis=1), [batch, side, side, -1])
        cells = tf.image.resize(maps, [_GRID, _GRID], "area")
        return tf.math.l2_normalize(tf.reshape(cells, [batch, -1]), axis=1)

    blocks = (images[start : start + _BLOCK] for start in range(0, len(images), _BLOCK))
    return _reduce(np.concatenate([embed(tf.constant(block)).numpy() for block in blocks]))


def _patches(images: tf.Tensor, stride: int) -> tf.Tensor:
    """All patches [P, side * side * 3] of images uint8 [B, H, W, 3], each with a mean of 0."""
    sides, strides = [1, _SIDE, _SIDE, 1], [1, stride, stride, 1]
    pixels = tf.cast(images, tf.float32) / 255.0
    found = tf.image.extract_patches(pixels, sides, strides, [1, 1, 1, 1], "VALID")
    found = tf.reshape(found, [-1, _SIDE * _SIDE * 3])
    return found - tf.reduce_mean(found, axis=1, keepdims=True)


def _reduce(vectors: np.ndarray) -> np.ndarray:
    """The principal components of vectors [N, D], scaled to unit length."""
    vectors = vectors - vectors.mean(axis=0)
    _, axes = np.linalg.eigh(vectors.T @ vectors)
    return tf.math.l2_normalize(vectors @ axes[:, -_REDUCED:], axis=1).numpy()
