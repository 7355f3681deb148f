import io
import struct
import time
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfvmf.data.images import read_image
from tfvmf.serving import decode as decode_module
from tfvmf.serving.decode import decode

SIZE = 32


@pytest.fixture(scope="module")
def decoder():
    spec = [tf.TensorSpec([None], tf.string)]
    return tf.function(lambda contents: decode(contents, SIZE), input_signature=spec)


@pytest.fixture(scope="module")
def picture():
    coarse = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((101, 67), Image.Resampling.BICUBIC)


def encode(image, file_format="PNG", **options):
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def png(width, height, *, bits=8, color=2, rows=b"", first=()):
    """A PNG of any header, with right checksums; `first` is a chunk that stands before it."""

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    parts = [chunk(*first)] if first else []
    parts += [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_kinds_are_read_as_in_training(decoder, picture, rng):
    alpha = Image.fromarray(rng.integers(0, 256, (67, 101), dtype=np.uint8))
    transparent, gray_transparent = picture.convert("RGBA"), picture.convert("LA")
    transparent.putalpha(alpha)
    gray_transparent.putalpha(alpha)
    kinds = {
        "jpeg": encode(picture, "JPEG", quality=90),
        "jpeg without subsampling": encode(picture, "JPEG", subsampling=0),
        "progressive jpeg": encode(picture, "JPEG", progressive=True),
        "gray jpeg": encode(picture.convert("L"), "JPEG"),
        "cmyk jpeg": encode(picture.convert("CMYK"), "JPEG"),
        "png": encode(picture),
        "gray png": encode(picture.convert("L")),
        "one bit": encode(picture.convert("1")),
        "two bits": png(4, 4, bits=2, color=0, rows=b"\0\x1b" * 4),
        "palette": encode(picture.convert("P")),
        "transparent palette": encode(picture.quantize(9), transparency=b"\0\x80\xff"),
        "transparent color": encode(picture, transparency=picture.getpixel((50, 30))),
        "transparent gray": encode(picture.convert("L"), transparency=90),
        "rgba": encode(transparent),
        "gray and alpha": encode(gray_transparent),
        "16 bits": encode(
            Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
        ),
    }
    for name, got in zip(kinds, decoder(list(kinds.values())), strict=True):
        expected = read_image(kinds[name], SIZE).astype(np.float32)
        assert np.abs(got - expected).max() <= 1, name


def test_of_16_bits_the_high_8_are_kept(decoder):
    values = np.arange(0, 65536, 64, dtype=">u2").reshape(32, 32)
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    got = decoder([png(32, 32, bits=16, color=0, rows=rows)])[0]
    np.testing.assert_array_equal(got[..., 0], values >> 8)
    # Training rounds: never more than a level apart.
    assert np.abs(got[..., 0] - values / 257).max() < 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["little", "big"])
def test_exif_orientation_is_honoured(decoder, picture, orientation, order):
    exif = Image.Exif()
    exif[0x010F] = "a maker, to stand before the orientation"
    exif[0x0112] = orientation
    exif.endian = "<" if order == "little" else ">"
    data = encode(picture, "JPEG", exif=exif)
    # Pillow rounds after the width; turned, that is the height.
    np.testing.assert_allclose(decoder([data])[0], read_image(data, SIZE), atol=1)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_is_none_is_ignored(decoder, picture, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture, "JPEG", exif=exif)
    np.testing.assert_array_equal(decoder([data])[0], decoder([encode(picture, "JPEG")])[0])


@pytest.mark.parametrize("width", [130, 256, 300, 600, 1100])
def test_large_jpegs_are_decoded_at_a_fraction_as_in_training(decoder, picture, width):
    data = encode(picture.resize((width, width * 2 // 3)), "JPEG")
    np.testing.assert_allclose(decoder([data])[0], read_image(data, SIZE), atol=1)


def test_the_order_is_kept_and_an_empty_batch_is_empty(decoder, picture):
    files = [encode(picture.rotate(angle), "JPEG") for angle in range(0, 360, 10)]
    alone = np.concatenate([decoder([file]) for file in files])
    np.testing.assert_array_equal(decoder(files), alone)
    assert decoder(tf.constant([], tf.string)).shape == (0, SIZE, SIZE, 3)


def test_what_is_wrong_is_named_with_its_position(decoder, picture):
    good = encode(picture, "JPEG")
    large = decode_module.MAX_PNG_PIXELS
    for bad, message in {
        b"": "neither a JPEG nor a PNG",
        b"no image": "neither a JPEG nor a PNG",
        encode(picture, "GIF"): "neither a JPEG nor a PNG",
        encode(picture, "BMP"): "neither a JPEG nor a PNG",
        good[: len(good) // 2]: "broken",
        good[:3]: "broken",
        encode(picture)[:-20]: "broken",
        encode(picture)[:8]: "broken",
        png(large, 2): "too large",
        png(2**32 - 1, 2**32 - 1): "too large",
        png(30_000, 30_000): "too large",
        _with_sides(good, 8193, 8192): "too large",
    }.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"image 2 is {message}"):
            decoder([good, good, bad, good])
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"image 0 is {message}"):
            decoder([bad])
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"image 1 is {message}"):
            decoder([good, bad, bad])
    assert decoder([good]).shape == (1, SIZE, SIZE, 3)


def test_a_jpeg_of_too_many_scans_is_refused_undecoded(decoder):
    gray = encode(Image.new("L", (8192, 8192), 9), "JPEG", progressive=True)
    scan = gray[gray.rindex(b"\xff\xda") : -2]
    assert len(scan) < 200
    clock = time.process_time()
    with pytest.raises(tf.errors.InvalidArgumentError, match="image 0 is too slow to decode"):
        decoder([gray[:-2] + scan * 110 + gray[-2:]])
    assert time.process_time() - clock < 1  # 15 s when it was decoded
    # As in training, pixels times scans count: small images may have more.
    small = encode(Image.new("L", (64, 64), 9), "JPEG", progressive=True)
    scan = small[small.rindex(b"\xff\xda") : -2]
    assert (decoder([small[:-2] + scan * 110 + small[-2:]]) == 9).numpy().all()


def test_a_chunk_before_a_pngs_header_does_not_hide_its_size(decoder):
    """The decoder skips chunks it does not know, wherever they are."""
    hidden = png(5000, 5000, first=(b"abCd", struct.pack(">II", 1, 1)))
    whole = png(4, 4, color=0, rows=bytes(20), first=(b"abCd", struct.pack(">II", 1, 1)))
    assert tf.io.decode_png(whole).shape == (4, 4, 1)
    for each in (hidden, whole):
        with pytest.raises(tf.errors.InvalidArgumentError, match="image 0 is broken"):
            decoder([each])


def _with_sides(jpeg, height, width):
    """The JPEG with other sides in its header."""
    place = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:place] + struct.pack(">HH", height, width) + jpeg[place + 4 :]
