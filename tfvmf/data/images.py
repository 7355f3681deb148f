"""Decodes, orients, converts and resizes image files and arrays to uint8 RGB squares.

Files may be untrusted. Only six formats are opened, recognized by content (for others Pillow may
start a program). Sizes are checked first, and all threads share one memory budget.
"""

import contextlib
import io
import math
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    ImageOps,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from tfvmf import cores
from tfvmf.errors import UserError
from tfvmf.progress import Progress
from tfvmf.settings import MAX_PIXELS

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WebP", "TIFF")
_MAX_SIDE = 65_535  # the limit of JPEG and GIF
_CHUNK, _THREADS = 64, 32  # upper bounds
_FILE_BYTES = 2**26  # maximum size of a file, unless 8 bytes per pixel of max_pixels are more
_STRIP = 2**20  # pixels converted at a time
_MEMORY = 2**30  # bytes for the pixels of all images being decoded
# Maximum number of reads for the header of a file longer than `_LONG`. Pillow joins EXIF blocks
# one by one: 190,000 of them (4 MB) take 35 seconds.
_LONG, _HEADER_READS = 2**16, 20_000
# A JPEG of 8192 x 8192 takes 0.14 s per scan, even for scans of 100 bytes; encoders write up to
# 18 scans. A run-length BMP takes 17 s, in Python.
_MAX_PASSES, _RUN_LENGTH_PASSES = 32, 128


class _Kind(NamedTuple):
    """A supported format. `Image.open` is avoided because its pixel limit is process-wide."""

    open: Callable[[Any], ImageFile.ImageFile]
    cost: int  # bytes per pixel for decoding and converting
    eager: bool = False  # whether opening takes memory too


_TIFF = _Kind(TiffImagePlugin.TiffImageFile, 16)
_KINDS = {
    b"\xff\xd8\xff": _Kind(JpegImagePlugin.JpegImageFile, 8),
    b"\x89PNG\r\n\x1a\n": _Kind(PngImagePlugin.PngImageFile, 8),
    b"GIF8": _Kind(GifImagePlugin.GifImageFile, 9, eager=True),
    b"BM": _Kind(BmpImagePlugin.BmpImageFile, 8),
    b"RIFF": _Kind(WebPImagePlugin.WebPImageFile, 20, eager=True),
    **dict.fromkeys((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), _TIFF),
}


class _Memory:
    """A memory budget that threads share. A thread that needs more than is left waits."""

    def __init__(self, total: int) -> None:
        self._total = total
        self.reset()

    def reset(self) -> None:
        """Frees everything: a forked process does not have the threads that held memory."""
        self._left = self._total
        self._changed = threading.Condition()
        self.opening = threading.Lock()  # held while opening files that take memory at once

    @contextlib.contextmanager
    def taking(self, amount: int) -> Iterator[None]:
        """Waits for `amount` bytes (at most the whole budget) and returns them at the end."""
        if amount <= _STRIP:
            yield
            return
        amount = min(amount, self._total)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= amount)
            self._left -= amount
        try:
            yield
        finally:
            with self._changed:
                self._left += amount
                self._changed.notify_all()


memory = _Memory(_MEMORY)
os.register_at_fork(after_in_child=memory.reset)


class _File:
    """A file as Pillow reads it; `patience` is the number of reads left."""

    def __init__(self, file: BinaryIO) -> None:
        self._read, self.seek, self.tell = file.read, file.seek, file.tell
        self.patience: float = _HEADER_READS

    def read(self, size: int = -1) -> bytes:
        self.patience -= 1
        if self.patience < 0:
            raise ValueError("its header has too many parts")
        return self._read(size)


@contextlib.contextmanager
def open_image(
    source: str | os.PathLike | bytes,
    *,
    size: int = 0,
    max_pixels: int = MAX_PIXELS,
    name: str = "",
) -> Iterator[ImageFile.ImageFile]:
    """Opens a file for `read_image` and checks its header; do not decode it if `size` is 0."""
    name = name or ("image" if isinstance(source, bytes) else os.fspath(source))
    try:
        # Checked before opening: opening a FIFO waits for a writer.
        if not isinstance(source, bytes) and not stat.S_ISREG(os.stat(source).st_mode):
            raise UserError(f"{name}: not a regular file, so it is not opened as an image")
        with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as content:
            start, length = content.read(8), content.seek(0, io.SEEK_END)
            content.seek(0)
            kind = next((kind for mark, kind in _KINDS.items() if start.startswith(mark)), None)
            if kind is None:
                raise UserError(f"{name}: not an image, or none of {', '.join(FORMATS)}")
            if length > max(8 * max_pixels, _FILE_BYTES):
                raise UserError(f"{name}: {length:,} bytes, too many for max_pixels={max_pixels}")
            file = _File(content) if length > _LONG else content
            with contextlib.ExitStack() as stack:
                with memory.opening if kind.eager else contextlib.nullcontext():
                    image = kind.open(file)
                    found = f"{name}: {image.width} x {image.height} pixels, more than"
                    if math.prod(image.size) > max_pixels:
                        raise UserError(
                            f"{found} max_pixels={max_pixels}: scale it down, or raise max_pixels"
                        )
                    if max(image.size) > _MAX_SIDE:
                        raise UserError(f"{found} {_MAX_SIDE} on a side: scale it down")
                    if size:
                        cost = _draft(image, content, size, kind, max_pixels)
                        stack.enter_context(memory.taking(cost))
                        stack.callback(image.close)
                if isinstance(file, _File):
                    file.patience = math.inf
                yield image
    except UserError:
        raise
    except Exception as error:  # decoders can raise anything on a broken file
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"{name}: broken image: {reason}") from error


def read_image(
    source: str | os.PathLike | bytes, size: int, *, max_pixels: int = MAX_PIXELS, name: str = ""
) -> np.ndarray:
    """Decodes one image file (JPEG, PNG, GIF, BMP, WebP, TIFF): uint8 [size, size, 3].

    Applies the EXIF orientation. Gray, CMYK and palettes become RGB, transparent pixels are
    blended with white, 16-bit gray is scaled to 8 bits, and only the first frame of an animation is
    read. The short side is scaled to `size` (bicubic, anti-aliased), then the center is cropped.

    `source` is a path or the content of a file. An image of more than `max_pixels` is rejected
    before it is decoded. `name` is used in error messages; by default it is the path.
    """
    with open_image(source, size=size, max_pixels=max_pixels, name=name) as image:
        ImageOps.exif_transpose(image, in_place=True)  # this decodes the image
        fitted = _fit(_to_8_bits(image), size)
        return np.asarray(fitted if fitted.mode == "RGB" else fitted.convert("RGB"))


def read_images(
    sources: Sequence[str] | Sequence[bytes],
    size: int,
    *,
    max_pixels: int = MAX_PIXELS,
    names: Sequence[str] = (),
    description: str = "",
    broken: dict[int, str] | None = None,
) -> np.ndarray:
    """`read_image` for many files, in parallel where that helps: uint8 [n, size, size, 3].

    Tries every image and raises one error that counts all broken files. If `broken` is given,
    it receives the position and reason of each instead. `description`: see `run_all`.
    """
    images = np.empty((len(sources), size, size, 3), np.uint8)

    def read(index: int) -> None:
        name = names[index] if names else ""
        images[index] = read_image(sources[index], size, max_pixels=max_pixels, name=name)

    errors = run_all(read, len(sources), description=description)
    if broken is None:
        raise_all(errors)
    else:
        called = names or [str(source) for source in sources]
        broken |= {i: str(e).removeprefix(f"{called[i]}: ") for i, e in errors.items()}
    return images


def run_all(
    task: Callable[[int], None], count: int, *, description: str = ""
) -> dict[int, UserError]:
    """Calls `task` with 0 ... `count - 1` and returns the UserErrors by index, in order.

    Uses one thread per processor. They end with the call, so that a forked process never waits for
    one. `description` labels a progress bar.
    """
    length = min(_CHUNK, 1 + count // (4 * cores.available()))
    chunks = [range(start, min(start + length, count)) for start in range(0, count, length)]
    errors: dict[int, UserError] = {}

    def run(chunk: range) -> range:
        for index in chunk:
            try:
                task(index)
            except UserError as error:
                errors[index] = error
        return chunk

    with contextlib.ExitStack() as stack:
        threads = min(cores.available(), _THREADS)
        pool = stack.enter_context(ThreadPoolExecutor(threads, "decode"))
        if description:
            bar = Progress(count, unit="image", description=description, brief=True)
            stack.enter_context(bar)
        for chunk in pool.map(run, chunks):
            if description:
                bar.update(len(chunk))
    return dict(sorted(errors.items()))


def raise_all(errors: Mapping[int, UserError]) -> None:
    """Raises the first of `errors`, if any, and says how many more there are."""
    for error in errors.values():
        more = f" (and {len(errors) - 1} more like it)" if len(errors) > 1 else ""
        raise UserError(f"{error}{more}") from error


def resize_image(image: np.ndarray, size: int) -> np.ndarray:
    """Scales the short side to `size` and crops the center: uint8 [H, W] or [H, W, 3]."""
    return np.asarray(_fit(Image.fromarray(image), size).convert("RGB"))


def resize_images(images: np.ndarray, size: int) -> np.ndarray:
    """`resize_image` for uint8 [n, H, W, 3], in threads: [n, size, size, 3]."""
    if images.shape[1:3] == (size, size):
        return images
    resized = np.empty((len(images), size, size, 3), np.uint8)

    def resize(index: int) -> None:
        resized[index] = resize_image(images[index], size)

    run_all(resize, len(images))
    return resized


def _draft(
    image: ImageFile.ImageFile, content: BinaryIO, size: int, kind: _Kind, max_pixels: int
) -> int:
    """Prepares decoding at `size`; returns the bytes of memory it will take."""
    pixels, passes, kept = math.prod(image.size), 1, 0
    if isinstance(image, JpegImagePlugin.JpegImageFile):
        last = b""
        while block := content.read(_STRIP):  # the header has been read up to the first scan
            passes += (last + block).count(b"\xff\xda")
            last = block[-1:]
        kept = 8 * pixels if passes > 1 else 0  # coefficients of the image as stored
        # Large JPEG files are decoded at a reduced size, which is faster.
        image.draft(None, (2 * size, 2 * size))
    elif image.tile and image.tile[0].codec_name == "bmp_rle":
        passes = _RUN_LENGTH_PASSES
    if passes * pixels > _MAX_PASSES * max_pixels:
        raise ValueError(f"{pixels:,} pixels, {passes} times, would take too long")
    return kept + kind.cost * math.prod(image.size)


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Converts any mode to RGB or gray, on white; in strips, so that only one copy is made."""
    width, height = image.size
    rows = max(1, _STRIP // width)
    if rows >= height or (image.mode in ("RGB", "L") and not image.has_transparency_data):
        return _convert(image)
    whole = Image.new("1", (1, 1))
    for top in range(0, height, rows):
        strip = _convert(image.crop((0, top, width, min(top + rows, height))))
        whole = whole if top else Image.new(strip.mode, image.size)
        whole.paste(strip, (0, top))
    return whole


def _convert(image: Image.Image) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):
        # Gray with 16 bits (0 to 65535) or floats (0 to 1).
        pixels = np.asarray(image)
        limit = 1 if image.mode == "F" else 65535
        if not (pixels.min() >= 0 and pixels.max() <= limit):  # also rejects NaN
            raise ValueError(f"pixels of mode {image.mode} must lie between 0 and {limit}")
        return Image.fromarray(np.round(pixels * (255 / limit)).astype(np.uint8))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image if image.mode in ("RGB", "L") else image.convert("RGB")


def _fit(image: Image.Image, size: int) -> Image.Image:
    width, height = image.size
    if width == height == size:
        return image
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
