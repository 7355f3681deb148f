"""Can a damaged or hostile image do harm, to a program or to a served model?

The seeds are small images of all six formats and of most of their variants. PNG's checksums are
made right again after a change, and what it compresses is also changed before it is compressed:
otherwise every case would end at the first check.
"""

import io
import pathlib
import random
import re
import struct
import tempfile
import zlib
from typing import Any

import numpy as np
import tensorflow as tf
from fuzz.hunt import hunt, mutate
from helpers.untrained import make_run
from PIL import Image

from tfvmf import serving
from tfvmf.data.images import read_image

SIZE = 16
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encode(image: Image.Image, file_format: str, **options: Any) -> bytes:
    """An image file of a format."""
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG, with its checksum."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, *chunks: bytes, bits: int = 8, color: int = 2) -> bytes:
    """A PNG of any header, with the chunks that follow it."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0))
    return SIGNATURE + header + b"".join(chunks) + chunk(b"IEND", b"")


def seeds() -> dict[str, list[bytes]]:
    """Small files of all formats, by format."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    picture = coarse.resize((24, 20), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "a maker"
    rgba = picture.convert("RGBA")
    rgba.putalpha(picture.convert("L"))
    palette = picture.quantize(9)
    deep = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    animation = {"save_all": True, "append_images": [picture.rotate(90), picture.rotate(180)]}
    jpegs = [
        {},
        {"progressive": True},
        {"subsampling": 0, "exif": exif},
        {"restart_marker_rows": 1},
    ]
    tiffs = ["raw", "tiff_lzw", "tiff_deflate", "packbits", "jpeg"]
    return {
        "JPEG": [encode(picture, "JPEG", **options) for options in jpegs]
        + [encode(picture.convert(mode), "JPEG") for mode in ("L", "CMYK")],
        "PNG": [encode(each, "PNG") for each in (picture, rgba, palette, deep, rgba.convert("LA"))]
        + [encode(picture.convert("1"), "PNG"), encode(palette, "PNG", transparency=b"\0\x80")]
        + [encode(picture, "PNG", exif=exif), encode(picture, "PNG", **animation)],
        "GIF": [
            encode(picture, "GIF"),
            encode(palette, "GIF", transparency=3),
            encode(picture, "GIF", **animation),
        ],
        "BMP": [encode(picture.convert(mode), "BMP") for mode in ("RGB", "RGBA", "L", "1", "P")],
        "WebP": [
            encode(rgba, "WEBP", lossless=True),
            *(encode(picture, "WEBP", **options) for options in ({}, animation, {"exif": exif})),
        ],
        "TIFF": [encode(picture, "TIFF", compression=each) for each in tiffs]
        + [encode(picture.convert("1"), "TIFF", compression="group4")]
        + [encode(each, "TIFF") for each in (rgba, palette, deep, picture.convert("CMYK"))]
        + [encode(picture.convert("F").point(lambda level: level / 255), "TIFF")],
    }


def mutate_png(content: bytes, chance: random.Random) -> bytes:
    """A PNG with one chunk changed, lost, repeated or moved, and right checksums."""
    chunks, place = [], len(SIGNATURE)
    while place + 8 <= len(content):
        length, name = struct.unpack(">I4s", content[place : place + 8])
        chunks.append((name, content[place + 8 : place + 8 + length]))
        place += length + 12
    index = chance.randrange(len(chunks))
    name, data = chunks[index]
    match chance.randrange(5):
        case 0:
            del chunks[index]
        case 1:
            chunks.insert(chance.randrange(len(chunks)), (name, data))
        case 2 if name == b"IDAT":
            chunks[index] = (name, zlib.compress(mutate(zlib.decompress(data), chance)))
        case _:
            chunks[index] = (name, mutate(data, chance))
    return SIGNATURE + b"".join(chunk(*each) for each in chunks)


def mutate_image(files: dict[str, list[bytes]], chance: random.Random) -> bytes:
    """One of the files, changed; or the beginning of one with the end of another."""
    kind = chance.choice(sorted(files))
    content = chance.choice(files[kind])
    if chance.random() < 0.05:
        other = chance.choice(files[chance.choice(sorted(files))])
        return content[: chance.randrange(len(content))] + other[chance.randrange(len(other)) :]
    if kind == "PNG" and chance.random() < 0.7:
        return mutate_png(content, chance)
    if kind == "JPEG" and chance.random() < 0.1:
        scan = content[content.rindex(b"\xff\xda") : -2]
        return mutate(content[:-2] + scan * chance.randrange(300) + content[-2:], chance)
    return mutate(content, chance)


def fuzz_images(*, count: int, seed: int, seconds: float = float("inf")) -> list[str]:
    """Files of all six formats, decoded as training and `tfvmf embed` do."""
    files = seeds()
    with tempfile.TemporaryDirectory(prefix="tfvmf-fuzz-") as scratch:
        path = pathlib.Path(scratch) / "image"

        def case(chance: random.Random) -> None:
            source: bytes | pathlib.Path = mutate_image(files, chance)
            if chance.random() < 0.3:
                path.write_bytes(source)
                source = path
            image = read_image(source, SIZE)
            assert image.shape == (SIZE, SIZE, 3), image.shape
            assert image.dtype == np.uint8, image.dtype

        return hunt("images", case, count=count, seed=seed, seconds=seconds)


def fuzz_served(*, count: int, seed: int, seconds: float = float("inf")) -> list[str]:
    """Requests of one to four files to `serving_bytes` of an export, most of them broken."""
    files = seeds()
    served = {kind: files[kind] for kind in ("JPEG", "PNG")}
    with tempfile.TemporaryDirectory(prefix="tfvmf-fuzz-") as scratch:
        workdir = make_run(pathlib.Path(scratch) / "run", **{"data.image_size": SIZE})
        export = serving.export_model(workdir, pathlib.Path(scratch) / "export")
        model = tf.saved_model.load(str(export))
        serve = model.signatures["serving_bytes"]

        def case(chance: random.Random) -> None:
            request = [
                mutate_image(files if chance.random() < 0.1 else served, chance)
                if chance.random() < 0.7
                else chance.choice(served[chance.choice(sorted(served))])
                for _ in range(chance.choice((1, 1, 1, 2, 4)))
            ]
            try:
                outputs = serve(image_bytes=tf.constant(request))
            except tf.errors.InvalidArgumentError as error:
                if not re.search(r"image \d is (neither|too|broken)", str(error)):
                    raise AssertionError(f"no word of which image: {error}") from error
                raise
            for name, values in outputs.items():
                assert len(values) == len(request), name
                assert np.isfinite(values.numpy()).all(), name

        refusals = (tf.errors.InvalidArgumentError,)
        return hunt("served", case, count=count, seed=seed, seconds=seconds, refusals=refusals)
