"""Which way up a camera held a photograph: EXIF orientation by plain tensor operations.

TensorFlow's JPEG decoder does not look at EXIF, and training does: without this, a served model
would see many a telephone's pictures lying on their side.
"""

import tensorflow as tf

_HEAD = 4096  # bytes in which the block must begin and say it: cameras write it first of all
_ENTRIES = 64
_TAG, _SHORT = 0x0112, 3


def jpeg_orientation(content: tf.Tensor) -> tf.Tensor:
    """EXIF orientation, 1 to 8, of a JPEG file (a string); 1 where it does not say."""
    head = tf.strings.substr(content, 0, _HEAD)
    parts = tf.raw_ops.StringSplitV2(input=head[None], sep=b"Exif\0\0", maxsplit=1).values

    def found() -> tf.Tensor:
        # Before the name stand the marker of a segment and its length.
        marked = tf.strings.substr(parts[0], -4, 2) == b"\xff\xe1"
        return tf.where(marked, _read(parts[1]), 1)

    return tf.cond(tf.size(parts) == 2, found, lambda: 1)


def turn(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turns a square image [S, S, C] that was stored with an EXIF orientation upright."""

    def is_one_of(*values: int) -> tf.Tensor:
        return tf.reduce_any(orientation == values)

    image = tf.where(orientation > 4, tf.transpose(image, [1, 0, 2]), image)
    image = tf.where(is_one_of(2, 3, 6, 7), image[:, ::-1], image)
    return tf.where(is_one_of(3, 4, 7, 8), image[::-1], image)


def _read(block: tf.Tensor) -> tf.Tensor:
    """The orientation in an EXIF block (a string): TIFF header, directory, entries of 12 bytes."""
    data = tf.cast(tf.io.decode_raw(block, tf.uint8), tf.int64)
    # Wherever a damaged block points to, there is a byte to read, and it says nothing.
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
    index = tf.range(_ENTRIES, dtype=tf.int64)
    entries = directory + 2 + 12 * index
    chosen = (number(entries, 2) == _TAG) & (number(entries + 2, 2) == _SHORT)
    chosen &= index < number(directory, 2)
    value = tf.reduce_max(tf.where(chosen, number(entries + 8, 2), 0))
    return tf.cast(tf.where((value >= 1) & (value <= 8), value, 1), tf.int32)
