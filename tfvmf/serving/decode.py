"""Decodes images inside a served graph, with the same result as Pillow in training.

Decoding: TensorFlow's JPEG and PNG decoders do not say which image of a batch is broken, and a
graph cannot catch errors. A tf.data pipeline inside the graph skips failures, and the positions of
missing images are known afterwards.

Orientation: TensorFlow's JPEG decoder ignores EXIF, which rotates the pictures of many phones.

Resizing: a bicubic, anti-aliased resize is linear and separable. Images are multiplied by one
matrix per side and rounded to whole gray levels after each, as in Pillow. TensorFlow's own resize
does not round, and other loaders (OpenVINO) do not support it.
"""

from collections.abc import Callable

import tensorflow as tf

# Larger images could exhaust a server's memory with a request of a few bytes.
MAX_PNG_PIXELS, MAX_JPEG_PIXELS = 2**24, 2**26
MAX_SCANS = 32  # for a JPEG of that size; each scan is a pass over it; encoders write up to 18

_FINE, _UNKNOWN, _LARGE, _SLOW, _BROKEN = range(5)
_MESSAGES = (
    "",
    "neither a JPEG nor a PNG",
    f"too large (a PNG may have {MAX_PNG_PIXELS} pixels, a JPEG {MAX_JPEG_PIXELS})",
    f"too slow to decode (pixels times scans may be {MAX_SCANS * MAX_JPEG_PIXELS})",
    "broken",
)
# EXIF: bytes searched for the block (cameras write it first), entries read, tag and its type.
_EXIF_HEAD, _EXIF_ENTRIES = 4096, 64
_ORIENTATION_TAG, _SHORT = 0x0112, 3
_SUPPORT = 2.0  # reach of the cubic, in pixels of the coarser image


def decode(contents: tf.Tensor, size: int) -> tf.Tensor:
    """JPEG or PNG files, strings [N] -> float32 [N, size, size, 3], whole numbers 0 to 255.

    Fails with INVALID_ARGUMENT and the position of the first image that cannot be decoded.
    """
    count = tf.size(contents, out_type=tf.int64)
    # The last element is not an image: an empty dataset cannot be batched.
    end = tf.data.Dataset.from_tensors((count, _FINE, tf.zeros([size, size, 3])))
    dataset = tf.data.Dataset.from_tensor_slices((tf.range(count), contents))
    dataset = dataset.map(
        lambda position, content: (position, *_decode_one(content, size)),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    dataset = dataset.ignore_errors().concatenate(end).batch(count + 1)
    options = tf.data.Options()  # without rewriting and tuning, which each request would repeat
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    positions, faults, images = dataset.with_options(options).get_single_element()

    faults = tf.tensor_scatter_nd_update(
        tf.fill([count + 1], _BROKEN), positions[:, None], faults, name="faults"
    )
    first = tf.argmax(faults > _FINE)
    message = tf.gather(_MESSAGES, faults[first])
    message = tf.strings.join(["image ", tf.strings.as_string(first), " is ", message])
    check = tf.debugging.Assert(tf.reduce_all(faults == _FINE), [message])
    with tf.control_dependencies([check]):
        return tf.ensure_shape(images[:-1], [None, size, size, 3])


def _decode_one(content: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes one file: an error code (or 0), and its pixels [size, size, 3]."""
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
    pixels = shape[0] * shape[1]
    # Counts the markers of scans. Inside a scan, a zero follows every byte of 255.
    scans = tf.size(_split(content, b"\xff\xda", 2**20), out_type=tf.int64) - 1
    fault = tf.where(scans * pixels > MAX_SCANS * MAX_JPEG_PIXELS, _SLOW, _FINE)
    fault = tf.where(pixels > MAX_JPEG_PIXELS, _LARGE, fault)
    # Large JPEG files are decoded at a reduced size, which is faster.
    surplus = tf.reduce_min(shape[:2]) // (2 * size)
    choice = tf.reduce_sum(tf.cast(surplus >= [2, 4, 8], tf.int32))

    def at(ratio: int) -> Callable[[], tf.Tensor]:
        return lambda: tf.io.decode_jpeg(
            content, channels=3, ratio=ratio, dct_method="INTEGER_ACCURATE"
        )

    choice = tf.where(fault > _FINE, 4, choice)
    image = tf.switch_case(choice, [at(1), at(2), at(4), at(8), _nothing])
    return fault, image, jpeg_orientation(content)


def _decode_png(content: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    # Width and height are the first fields of the first chunk, which must be IHDR (the decoder
    # would skip any other chunk before it). From 2^31 on they are negative here.
    header = tf.io.decode_raw(tf.strings.substr(content, 16, 8), tf.int32, little_endian=False)
    sides = tf.cast(header, tf.int64)
    large = (tf.reduce_min(sides) < 0) | (tf.reduce_prod(sides) > MAX_PNG_PIXELS)
    named = tf.strings.substr(content, 12, 4) == b"IHDR"
    fault = tf.where(named, tf.where(large, _LARGE, _FINE), _BROKEN)

    def decoded() -> tf.Tensor:
        # The decoder keeps the high 8 of 16 bits. Channels: gray, gray and alpha, RGB, RGBA.
        pixels = tf.io.decode_png(content, channels=0)
        transparent = tf.shape(pixels)[2] % 2 == 0
        return tf.cond(transparent, lambda: _on_white(pixels), lambda: _rgb(pixels))

    def with_alpha() -> tf.Tensor:
        # A transparent color becomes alpha only if alpha is requested.
        return _on_white(tf.io.decode_png(content, channels=4))

    def shown() -> tf.Tensor:
        marked = tf.size(_split(_split(content, b"IDAT", 1)[0], b"tRNS", 1)) == 2
        return tf.cond(marked, with_alpha, decoded)

    return fault, tf.cond(fault > _FINE, _nothing, shown)


def _split(content: tf.Tensor, mark: bytes, most: int) -> tf.Tensor:
    """The parts of a string, split at the first marks."""
    return tf.raw_ops.StringSplitV2(input=content[None], sep=mark, maxsplit=most).values


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


def jpeg_orientation(content: tf.Tensor) -> tf.Tensor:
    """EXIF orientation, 1 to 8, of a JPEG file (a string); 1 if not given."""
    head = tf.strings.substr(content, 0, _EXIF_HEAD)
    parts = _split(head, b"Exif\0\0", 1)

    def found() -> tf.Tensor:
        # The name must follow the marker and the length of a segment.
        marked = tf.strings.substr(parts[0], -4, 2) == b"\xff\xe1"
        return tf.where(marked, _read_orientation(parts[1]), 1)

    return tf.cond(tf.size(parts) == 2, found, lambda: 1)


def turn(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Rotates or flips a square image [S, S, C] upright according to its EXIF orientation."""
    image = tf.where(orientation > 4, tf.transpose(image, [1, 0, 2]), image)
    image = tf.where(tf.reduce_any(orientation == [2, 3, 6, 7]), image[:, ::-1], image)
    return tf.where(tf.reduce_any(orientation == [3, 4, 7, 8]), image[::-1], image)


def _read_orientation(block: tf.Tensor) -> tf.Tensor:
    """The orientation in an EXIF block (a string): TIFF header, directory, entries of 12 bytes."""
    data = tf.cast(tf.io.decode_raw(block, tf.uint8), tf.int64)
    # Damaged offsets point to this meaningless byte.
    data = tf.concat([data, [0]], axis=0)
    end = tf.size(data, out_type=tf.int64) - 1
    little = data[0] == ord("I")

    def number(offset: tf.Tensor, length: int) -> tf.Tensor:
        """Unsigned integers of `length` bytes at `offset` [n], in either byte order: [n]."""
        positions = tf.minimum(tf.reshape(offset, [-1, 1]) + tf.range(length, dtype=tf.int64), end)
        digits = tf.gather(data, positions)
        digits = tf.where(little, digits, digits[:, ::-1])
        return tf.reduce_sum(digits * [256**place for place in range(length)], axis=1)

    directory = number(tf.constant(4, tf.int64), 4)
    index = tf.range(_EXIF_ENTRIES, dtype=tf.int64)
    entries = directory + 2 + 12 * index
    chosen = (number(entries, 2) == _ORIENTATION_TAG) & (number(entries + 2, 2) == _SHORT)
    chosen &= index < number(directory, 2)
    value = tf.reduce_max(tf.where(chosen, number(entries + 8, 2), 0))
    return tf.cast(tf.where((value >= 1) & (value <= 8), value, 1), tf.int32)


def fit(images: tf.Tensor, size: int) -> tf.Tensor:
    """Like `tfvmf.data.images.resize_images`: uint8 [N, H, W, 3] -> float32 [N, size, size, 3]."""
    there = tf.reduce_all(tf.shape(images)[1:3] == size)
    pixels = tf.cond(there, lambda: tf.cast(images, tf.float32), lambda: _resized(images, size))
    return tf.ensure_shape(pixels, [None, size, size, 3])


def _resized(images: tf.Tensor, size: int) -> tf.Tensor:
    side = tf.reduce_min(tf.shape(images)[1:3])
    images, columns = _window(images, 2, side, size)
    images, rows = _window(images, 1, side, size)
    count, height, width = tf.unstack(tf.shape(images)[:3])
    pixels = tf.cast(images, tf.float32)
    pixels = _levels(tf.matmul(columns, tf.reshape(pixels, [count * height, width, 3])))
    pixels = _levels(tf.matmul(rows, tf.reshape(pixels, [count, height, size * 3])))
    return tf.reshape(pixels, [count, size, size, 3])


def _window(images: tf.Tensor, axis: int, side: tf.Tensor, size: int) -> list[tf.Tensor]:
    """Crops `axis` to the pixels that the center square depends on; returns them and the matrix."""
    length = tf.shape(images)[axis]
    scale = tf.cast(side, tf.float32) / size
    reach = _SUPPORT * tf.maximum(scale, 1.0)
    first = tf.cast(length - side, tf.float32) / 2.0
    start = tf.maximum(tf.cast(tf.floor(first - reach), tf.int32), 0)
    stop = tf.minimum(tf.cast(tf.math.ceil(first + reach), tf.int32) + side, length)
    window = images[:, :, start:stop] if axis == 2 else images[:, start:stop]

    centers = first + (tf.range(size, dtype=tf.float32) + 0.5) * scale
    inputs = tf.cast(tf.range(start, stop), tf.float32) + 0.5
    x = tf.abs(inputs[None, :] - centers[:, None]) / tf.maximum(scale, 1.0)
    # Keys' cubic with a = -1/2: 1 at 0, and 0 at 1 and from 2 on.
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    weights = tf.where(x < 1.0, near, tf.where(x < 2.0, far, tf.zeros_like(x)))
    return [window, weights / tf.reduce_sum(weights, axis=1, keepdims=True)]


def _levels(pixels: tf.Tensor) -> tf.Tensor:
    """Rounds and clips to whole gray levels: a cubic overshoots at edges."""
    return tf.floor(tf.clip_by_value(pixels, 0.0, 255.0) + 0.5)
