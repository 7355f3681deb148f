"""Image files and arrays to uint8 RGB squares: decode, orient, convert, resize."""

import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from tfvmf import cores
from tfvmf.errors import UserError
from tfvmf.progress import Progress

_ORIENTATION = 0x0112
# Below this many bytes decoding is mostly Python, and a second thread only waits for the first.
_SMALL = 8192
_CHUNK = 64
# Threads at most. Python's part of decoding is done by one at a time.
_THREADS = 32


def read_image(source: str | os.PathLike | bytes, size: int, *, name: str = "") -> np.ndarray:
    """Decodes one image file: uint8 [size, size, 3].

    The EXIF orientation is applied. Gray becomes RGB, transparency is laid on white, CMYK and
    palettes are converted, 16-bit gray is scaled to 8 bits, of an animation the first frame is
    taken. The short side is scaled to `size` (bicubic, anti-aliased), then the center is cropped.

    Args:
        source: path of a file, or its content.
        size: height and width to return.
        name: what to call the image in an error; by default the path.

    Raises:
        UserError: the file cannot be read as an image; the message names it.
    """
    name = name or ("image" if isinstance(source, bytes) else os.fspath(source))
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            # A JPEG much larger than needed is decoded at a fraction of its size, which is quick.
            image.draft(None, (2 * size, 2 * size))
            image.load()
            if image.getexif().get(_ORIENTATION, 1) != 1:
                ImageOps.exif_transpose(image, in_place=True)
            return np.asarray(_fit(_to_rgb(image), size))
    except UnidentifiedImageError as error:
        raise UserError(f"{name}: not an image, or not of a known format") from error
    except Exception as error:  # decoders raise anything at all on a broken file
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"{name}: broken image: {' '.join(reason.split())}") from error


def read_images(
    sources: Sequence[str] | Sequence[bytes], size: int, *, names: Sequence[str] = ()
) -> np.ndarray:
    """`read_image` of many, in parallel where that helps: uint8 [n, size, size, 3].

    Every image is tried before an error is raised, so that one message counts all broken files.

    Args:
        sources: paths, or contents of files.
        size: height and width to return.
        names: what to call the images in an error; by default the paths.
    """
    images = np.empty((len(sources), size, size, 3), np.uint8)

    def read(index: int) -> None:
        name = names[index] if names else ""
        images[index] = read_image(sources[index], size, name=name)

    first = sources[0] if sources else b""
    if isinstance(first, bytes) and sum(map(len, sources)) < _SMALL * len(sources):
        raise_all(_errors(read, range(len(sources))))
    else:
        run_all(read, len(sources))
    return images


def run_all(task: Callable[[int], None], count: int, *, description: str = "") -> None:
    """Calls `task` with 0 ... `count - 1` in threads, one per processor and at most 32.

    The threads end with the call: 0.2 ms of the 20 ms that a batch of 64 photographs takes, and
    nothing is left that a forked process could wait for.

    Args:
        task: Gets an index.
        count: Number of calls.
        description: Shows a bar of this name when it takes more than 2 seconds.

    Raises:
        UserError: The first UserError of a task, with the number of the others.
    """
    length = min(_CHUNK, 1 + count // (4 * cores.available()))
    chunks = [range(start, min(start + length, count)) for start in range(0, count, length)]
    errors: list[UserError] = []
    Image.init()  # registers every format now: threads that all do it at first use may collide
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(min(cores.available(), _THREADS), "decode"))
        bar = None
        if description:
            bar = stack.enter_context(
                Progress(count, unit="image", description=f"{description} ", brief=True)
            )
        for chunk, found in zip(
            chunks, pool.map(functools.partial(_errors, task), chunks), strict=True
        ):
            errors += found
            if bar is not None:
                bar.update(len(chunk))
    raise_all(errors)


def raise_all(errors: Sequence[UserError]) -> None:
    """Raises the first of `errors`, if any, and says how many there are."""
    if errors:
        more = f" (and {len(errors) - 1} more like it)" if len(errors) > 1 else ""
        raise UserError(f"{errors[0]}{more}") from errors[0]


def resize_image(image: np.ndarray, size: int) -> np.ndarray:
    """Short side to `size`, then center crop, of uint8 [H, W] or [H, W, 3]: [size, size, 3]."""
    return np.asarray(_fit(Image.fromarray(image), size).convert("RGB"))


def _errors(task: Callable[[int], None], indices: Iterable[int]) -> list[UserError]:
    found = []
    for index in indices:
        try:
            task(index)
        except UserError as error:
            found.append(error)
    return found


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):
        image = _to_8_bits(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Scales gray pixels of 16 bits (0 to 65535) or floats (0 to 1) to 0 to 255."""
    pixels = np.asarray(image)
    limit = 1 if image.mode == "F" else 65535
    if not (pixels.min() >= 0 and pixels.max() <= limit):  # also refuses NaN
        raise ValueError(f"pixels of mode {image.mode} must lie between 0 and {limit}")
    return Image.fromarray(np.round(pixels * (255 / limit)).astype(np.uint8))


def _fit(image: Image.Image, size: int) -> Image.Image:
    width, height = image.size
    if width == height == size:
        return image
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize(
        (size, size),
        Image.Resampling.BICUBIC,
        box=(left, top, left + side, top + side),
        reducing_gap=3.0,
    )
