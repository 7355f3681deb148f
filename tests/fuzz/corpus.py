"""Hostile files that have done harm to somebody, made when they are needed.

Each is refused, or read, in less than 10 s and 1 GiB.
"""

import io
import os
import pathlib
import struct
import zlib

import numpy as np
from fuzz.pictures import chunk, encode, png, seeds
from PIL import Image

MEGABYTE = 2**20


def zeros(megabytes: int, start: bytes = b"") -> bytes:
    """A raw deflate stream of `start` and so many megabytes of zeros, a thousandth as long."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(MEGABYTE)) + packer.flush(zlib.Z_FULL_FLUSH)
    return packed + block * megabytes + packer.flush()


def packed_zeros(megabytes: int) -> bytes:
    """The same as a zlib stream, whose checksum is wrong: it is read last."""
    return b"\x78\xda" + zeros(megabytes) + bytes(4)


def scans(content: bytes, count: int) -> bytes:
    """A JPEG whose last scan is repeated."""
    return content[:-2] + content[content.rindex(b"\xff\xda") : -2] * count + content[-2:]


def tiff(*tags: tuple[int, int, int, int], following: int = 0) -> bytes:
    """A TIFF of one directory with these (tag, type, count, value)."""
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", following)


def gif(width: int, height: int, frames: int) -> bytes:
    """A GIF of a large screen and many frames of one pixel."""
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\2\2\x44\1\0"
    return head + frame * frames + b";"


def images() -> dict[str, bytes]:
    """Contents of files that call themselves images."""
    files = seeds()
    gray = encode(Image.new("L", (8192, 8192), 9), "JPEG", progressive=True)
    exif = b"\xff\xe1" + struct.pack(">H", 9) + b"Exif\0\0a"
    bmp = struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 2**31 - 1, -(2**31), 1, 24, *[0] * 6)
    one = (256, 4, 1, 8), (257, 4, 1, 8), (258, 3, 1, 8), (262, 3, 1, 1), (273, 4, 1, 8)
    return {
        "nothing": b"",
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n{ } loop\n%%EOF\n",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        "html": b"<!doctype html><script>alert(1)</script>",
        "zip": b"PK\5\6" + bytes(18),
        "png of 30,000 x 30,000": png(30_000, 30_000, chunk(b"IDAT", packed_zeros(858))),
        "png of 13,000 x 13,000 of 16 bits": png(13_000, 13_000, bits=16),
        "png of gray and alpha of 16 bits": png(13_000, 13_000, bits=16, color=4),
        "png of 2^32-1 pixels": png(2**32 - 1, 1),
        "png of no pixels": png(0, 0),
        "png with a bomb of text": png(
            4, 4, chunk(b"zTXt", b"a\0\0" + packed_zeros(512)), chunk(b"IDAT", packed_zeros(1))
        ),
        "png with a bomb of a profile": png(
            4, 4, chunk(b"iCCP", b"a\0\0" + packed_zeros(512)), chunk(b"IDAT", packed_zeros(1))
        ),
        "png that is longer than its header": png(4, 4, chunk(b"IDAT", packed_zeros(512))),
        "jpeg of 110 scans": scans(gray, 110),
        "jpeg of 100,000 scans": scans(encode(Image.new("L", (512, 512)), "JPEG"), 100_000),
        "jpeg of 190,000 blocks": gray[:2] + exif * 190_000 + gray[2:],
        "gif of a large screen": gif(65_535, 65_535, 1),
        "gif of 100,000 frames": gif(64, 64, 100_000),
        "bmp of 2^31 rows": b"BM" + bmp,
        "webp of a large canvas": b"RIFF\x1e\0\0\0WEBPVP8X\n\0\0\0" + bytes(4) + b"\xff" * 6,
        "tiff of 2^32-1 columns": tiff((256, 4, 1, 2**32 - 1), *one[1:]),
        "tiff whose directory is its next": tiff(*one, following=8),
        "tiff of 2^32-1 strips": tiff(*one[:4], (273, 4, 2**32 - 1, 8)),
        "tiff with odd tags": tiff(*one, *((tag, tag % 20, tag, tag) for tag in range(300, 340))),
        "tiff without a directory": b"II*\0" + struct.pack("<I", 2**32 - 1),
        **{f"{kind} cut off": each[0][: len(each[0]) // 2] for kind, each in files.items()},
    }


def special_files(directory: pathlib.Path) -> dict[str, pathlib.Path]:
    """Files that are none."""
    found = {name: directory / f"{name}.png" for name in ("fifo", "loop", "folder", "missing")}
    os.mkfifo(found["fifo"])
    found["loop"].symlink_to("loop.png")
    found["folder"].mkdir()
    return found | {"device": pathlib.Path("/dev/zero")}


def npy(values: np.ndarray) -> bytes:
    """An npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, values, allow_pickle=True)
    return file.getvalue()


def npy_header(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    """The beginning of an npy file."""
    text = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text


def archive(**members: bytes | tuple[bytes, int]) -> bytes:
    """An npz file of npy files; a pair stands for one with so many megabytes of zeros after it."""
    body, directory = b"", b""
    for key, member in members.items():
        start, megabytes = member if isinstance(member, tuple) else (member, 0)
        name, packed = f"{key}.npy".encode(), zeros(megabytes, start)
        checksum = 0 if megabytes else zlib.crc32(start)  # read last: nobody gets there
        sizes = struct.pack("<III", checksum, len(packed), len(start) + megabytes * MEGABYTE)
        fields = struct.pack("<HHHI", 20, 0, 8, 0) + sizes + struct.pack("<HH", len(name), 0)
        offset = struct.pack("<HHHII", 0, 0, 0, 0, len(body))
        directory += b"PK\1\2" + struct.pack("<H", 20) + fields + offset + name
        body += b"PK\3\4" + fields + name + packed
    end = struct.pack("<HHHHIIH", 0, 0, *[len(members)] * 2, len(directory), len(body), 0)
    return body + directory + b"PK\5\6" + end


def archives() -> dict[str, bytes]:
    """Hostile npz files."""
    images, labels = npy(np.zeros((3, 8, 8), np.uint8)), npy(np.arange(3))
    bomb, most = 4000, 4000 * MEGABYTE
    names = npy_header((3,), f"|S{most // 3}") + bytes(most % 3)
    return {
        "a bomb of labels": archive(images=images, labels=(npy_header((most,)), bomb)),
        "a bomb of labels for 3 images": archive(
            images=images, labels=(npy_header((3, most // 3)) + bytes(most % 3), bomb)
        ),
        "a bomb of other labels": archive(
            x_train=images, y_train=labels, y_test=(npy_header((most,)), bomb)
        ),
        "a bomb of names": archive(images=images, labels=labels, class_names=(names, bomb)),
        "a bomb of images": archive(images=(npy_header((bomb, 1024, 1024)), bomb)),
        "one giant image": archive(images=(npy_header((1, 20_000, 20_000)), 382)),
        "more classes than anybody means": archive(
            images=images, labels=npy(np.array([0, 1, 2**31 - 2]))
        ),
        "negative labels": archive(images=images, labels=npy(np.full(3, -(2**63)))),
        "objects": archive(images=images, labels=npy(np.array([0, 1, {}], dtype=object))),
        "a negative shape": archive(images=npy_header((-1, 8, 8)) + bytes(64)),
        "a shape of 10^30": archive(images=npy_header((10**30, 8, 8))),
        "types of 2^31 parts": archive(images=npy_header((1, 8, 8), "|V2147483647")),
        "a header of code": archive(images=b"\x93NUMPY\1\0\x18\0__import__('os').abort()\n"),
        "a path": archive(**{"../../images": images}),
        "nothing": b"",
        "no archive": b"PK\3\4" + bytes(100),
        "an archive that is cut off": archive(images=images)[:-30],
    }
