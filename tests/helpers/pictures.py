"""Files of images that would take long, or much memory, to decode."""

import struct
import zlib


def huge_png(side):
    """A valid PNG of side x side black pixels (a multiple of 100), a megabyte for 30,000."""

    def chunk(name, content):
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    # A hundred rows, compressed without a reference to what stands before them, again and again;
    # the checksum of n zeros is known.
    packer, zeros = zlib.compressobj(9, zlib.DEFLATED, -15), side * (side + 1)
    block = packer.compress(bytes(100 * (side + 1))) + packer.flush(zlib.Z_FULL_FLUSH)
    check = struct.pack(">I", (zeros % 65521) << 16 | 1)
    packed = b"\x78\xda" + block * (side // 100) + b"\x03\x00" + check
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks
