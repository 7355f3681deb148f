"""Loads image sources by name, such as `load('digits', 'train')`; `SOURCES` lists their kinds."""

import difflib
import os
from collections.abc import Callable

import numpy as np

from tfvmf.data import folder, npz, tfds_source
from tfvmf.data.base import ArraySource, Request, Source, check_split
from tfvmf.data.images import resize_image
from tfvmf.errors import UserError
from tfvmf.settings import MAX_PIXELS

MEMORY_LIMIT = 2 * 2**30


def load_digits(request: Request) -> Source:
    """`digits`: 1,397 (train) and 400 (test) RGB images, enlarged from 8x8 with 17 gray levels."""
    if request.target:
        raise UserError(f"{request.spec}: digits takes nothing after the colon; write 'digits'")
    check_split(request.spec, request.split)
    from sklearn import datasets

    digits = datasets.load_digits()
    count, side = len(digits.target), request.image_size
    if not request.fits(count):
        raise UserError(
            f"digits: {count:,} images of {side}x{side} need {request.bytes(count) / 2**30:,.1f} "
            f"GiB, and memory_limit is {request.memory_limit / 2**30:,.1f} GiB: lower image_size, "
            "or raise memory_limit"
        )
    # Two of every nine digits are test digits. Nine shares no factor with the runs of ten digits
    # that the writers filled in, so the classes stay balanced.
    test = np.isin(np.arange(count) % 9, (1, 5))
    chosen = {"train": ~test, "test": test, "all": np.ones_like(test)}[request.split]
    gray = np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8)
    images = np.stack([resize_image(image, request.image_size) for image in gray])
    names = [str(digit) for digit in range(10)]
    about = {"labels": digits.target[chosen], "class_names": names, "native_size": gray.shape[1]}
    return ArraySource(request, images, **about)


# The part of a spec before the colon. A new source is a function of a Request and one line here.
SOURCES: dict[str, Callable[[Request], Source]] = {
    "digits": load_digits,
    "folder": folder.load,
    "npz": npz.load,
    "tfds": tfds_source.load,
}


def load(
    spec: str | os.PathLike[str],
    split: str = "train",
    *,
    data_dir: str | os.PathLike[str] = "",
    download: bool = False,
    image_size: int = 32,
    memory_limit: int = MEMORY_LIMIT,
    max_pixels: int = MAX_PIXELS,
    skip_broken: bool = False,
) -> Source:
    """Opens and checks an image source, so that training does not start on broken data.

    Args:
        spec: `digits`; an image data set of tensorflow-datasets (`cifar10`, `name/config`,
            `name:1.0.0`, or `tfds:name` if the name is also a scheme); `folder:/path`;
            `npz:/path`. A `pathlib.Path` is an npz file if it ends in .npz, else a folder.
        split: `train`, `test` or `all`; with TFDS any split expression, such as `train[:45000]`.
        data_dir: folder of prepared TFDS data sets; by default TFDS's own.
        download: downloads and prepares a missing TFDS data set.
        image_size: images are uint8 RGB [image_size, image_size, 3].
        memory_limit: bytes; larger data sets stay on disk.
        max_pixels: larger images are rejected before they are decoded.
        skip_broken: skips unreadable files of a folder and lists them in `Source.broken`;
            otherwise they are an error.
    """
    if not isinstance(image_size, int) or isinstance(image_size, bool) or image_size < 8:
        raise UserError(f"image_size={image_size!r}: expected a whole number of pixels, 8 or more")
    for name, value, least in (("memory_limit", memory_limit, 0), ("max_pixels", max_pixels, 1)):
        if value < least:
            raise UserError(f"{name}={value}: expected a number, {least} or more")
    spec, scheme, target = parse(spec)
    return SOURCES[scheme](
        Request(
            spec=spec,
            target=target,
            split=split,
            data_dir=os.fspath(data_dir),
            download=download,
            image_size=image_size,
            memory_limit=memory_limit,
            max_pixels=max_pixels,
            skip_broken=skip_broken,
        )
    )


def download(spec: str | os.PathLike[str], *, data_dir: str | os.PathLike[str] = "") -> None:
    """Downloads and prepares a missing TFDS data set; does nothing for other sources.

    TFDS runs TensorFlow: set up devices first, or call this in another process.
    """
    spec, scheme, target = parse(spec)
    if scheme == "tfds":
        place = os.fspath(data_dir)
        request = Request(spec=spec, target=target, data_dir=place, download=True)
        tfds_source.open_builder(request)


def parse(spec: str | os.PathLike[str]) -> tuple[str, str, str]:
    """The spec as a string, its scheme, and the rest; UserError if the scheme is unknown."""
    if isinstance(spec, os.PathLike):
        path = os.fspath(spec)
        spec = f"{'npz' if path.endswith('.npz') else 'folder'}:{path}"
    scheme, _, target = spec.partition(":")
    if scheme in SOURCES:
        return spec, scheme, target
    if tfds_source.NAME.fullmatch(spec):
        return spec, "tfds", spec
    meant = ""
    if spec.endswith(".npz"):
        meant = f"npz:{spec}"
    elif "/" in spec and os.path.isdir(os.path.expanduser(spec)):
        meant = f"folder:{spec}"
    elif close := difflib.get_close_matches(scheme, list(SOURCES), n=1):
        meant = spec.replace(scheme, close[0], 1)
    advice = f"did you mean '{meant}'?" if meant else tfds_source.KNOWN
    if not meant and spec.startswith(("/", "./", "../", "~")):
        advice = f"there is no such file or folder; {advice}"
    raise UserError(f"'{spec}': unknown source; {advice}")
