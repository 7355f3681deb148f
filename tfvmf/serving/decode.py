"""Encoded JPEG and PNG to pixels inside a served graph, as training's Pillow reads them.

TensorFlow's decoders raise an error that does not say which image of a batch is broken, and a graph
cannot catch errors. A tf.data pipeline inside the graph can: what fails is left out, and what is
missing afterwards has a position.
"""

from collections.abc import Callable

import tensorflow as tf

from tfvmf.serving.orientation import jpeg_orientation, turn
from tfvmf.serving.resize import fit

# An image larger than this could take a server's memory with a few bytes of request.
MAX_PNG_PIXELS = 2**24
MAX_JPEG_PIXELS = 2**26

_FINE, _UNKNOWN, _LARGE, _BROKEN = range(4)
_MESSAGES = (
    "",
    "neither a JPEG nor a PNG",
    f"too large (a PNG may have {MAX_PNG_PIXELS} pixels, a JPEG {MAX_JPEG_PIXELS})",
    "broken",
)


def decode(contents: tf.Tensor, size: int) -> tf.Tensor:
    """Decodes a batch of files.

    Args:
        contents: string [N], each a whole JPEG or PNG file.
        size: height and width to return.

    Returns:
        float32 [N, size, size, 3], whole numbers from 0 to 255. The graph fails with
        INVALID_ARGUMENT, and the position of the first such image, when one cannot be decoded.
    """
    count = tf.size(contents, out_type=tf.int64)
    # The last element is no image: a data set of which nothing is left cannot be batched.
    end = tf.data.Dataset.from_tensors((count, _FINE, tf.zeros([size, size, 3])))
    dataset = tf.data.Dataset.from_tensor_slices((tf.range(count), contents))
    dataset = dataset.map(
        lambda position, content: (position, *_decode_one(content, size)),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    dataset = dataset.ignore_errors().concatenate(end).batch(count + 1)
    positions, faults, images = dataset.with_options(_plain()).get_single_element()

    faults = tf.tensor_scatter_nd_update(
        tf.fill([count + 1], _BROKEN), positions[:, None], faults, name="faults"
    )
    first = tf.argmax(faults > _FINE)
    message = tf.strings.join(
        ["image ", tf.strings.as_string(first), " is ", tf.gather(_MESSAGES, faults[first])]
    )
    check = tf.debugging.Assert(tf.reduce_all(faults == _FINE), [message])
    with tf.control_dependencies([check]):
        return tf.ensure_shape(images[:-1], [None, size, size, 3])


def _plain() -> tf.data.Options:
    """No graph rewriting and no tuning: both would be done again for each request."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return options


def _decode_one(content: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """One file: what is wrong with it (or 0), and its pixels [size, size, 3]."""
    is_jpeg = tf.strings.substr(content, 0, 3) == b"\xff\xd8\xff"
    is_png = tf.strings.substr(content, 0, 8) == b"\x89PNG\r\n\x1a\n"
    fault, pixels, orientation = tf.case(
        [
            (is_jpeg, lambda: _decode_jpeg(content, size)),
            (is_png, lambda: (*_decode_png(content), 1)),
        ],
        default=lambda: (_UNKNOWN, _nothing(), 1),
    )
    pixels = fit(pixels[None], size)[0]
    pixels = tf.cond(orientation > 1, lambda: turn(pixels, orientation), lambda: pixels)
    return fault, pixels


def _decode_jpeg(content: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    shape = tf.io.extract_jpeg_shape(content, output_type=tf.int64)
    large = shape[0] * shape[1] > MAX_JPEG_PIXELS
    # A JPEG much larger than needed is decoded at a fraction of its size, which is quick.
    surplus = tf.reduce_min(shape[:2]) // (2 * size)
    choice = tf.reduce_sum(tf.cast(surplus >= [2, 4, 8], tf.int32))

    def at(ratio: int) -> Callable[[], tf.Tensor]:
        return lambda: tf.io.decode_jpeg(
            content, channels=3, ratio=ratio, dct_method="INTEGER_ACCURATE"
        )

    pixels = tf.switch_case(tf.where(large, 4, choice), [at(1), at(2), at(4), at(8), _nothing])
    return tf.where(large, _LARGE, _FINE), pixels, jpeg_orientation(content)


def _decode_png(content: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    # Width and height are the first two fields of the first chunk, high bytes first.
    header = tf.cast(tf.io.decode_raw(tf.strings.substr(content, 16, 8), tf.uint8), tf.int64)
    weights = tf.constant([2**24, 2**16, 2**8, 1], tf.int64)
    sides = tf.reduce_sum(tf.reshape(header, [2, 4]) * weights, axis=1)
    large = tf.reduce_prod(tf.minimum(sides, MAX_PNG_PIXELS + 1)) > MAX_PNG_PIXELS

    def decoded() -> tf.Tensor:
        # Of 16 bits the decoder keeps the high 8. Channels: gray, gray and alpha, RGB, RGBA.
        pixels = tf.io.decode_png(content, channels=0)
        transparent = tf.shape(pixels)[2] % 2 == 0
        return tf.cond(transparent, lambda: _on_white(pixels), lambda: _rgb(pixels))

    return tf.where(large, _LARGE, _FINE), tf.cond(large, _nothing, decoded)


def _nothing() -> tf.Tensor:
    return tf.zeros([1, 1, 3], tf.uint8)


def _rgb(pixels: tf.Tensor) -> tf.Tensor:
    """The colors of [H, W, 1 to 4]: uint8 [H, W, 3]."""
    last = tf.where(tf.shape(pixels)[2] < 3, 0, 2)
    return tf.gather(pixels, tf.minimum(tf.range(3), last), axis=2)


def _on_white(pixels: tf.Tensor) -> tf.Tensor:
    """Lays [H, W, 2 or 4], whose last channel is alpha, on white: uint8 [H, W, 3]."""
    alpha = tf.cast(pixels[:, :, -1:], tf.float32) / 255.0
    color = tf.cast(_rgb(pixels), tf.float32)
    return tf.cast(tf.round(255.0 + (color - 255.0) * alpha), tf.uint8)
