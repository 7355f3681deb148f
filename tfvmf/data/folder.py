"""Images in a folder: `folder:/path`."""

import contextlib
import hashlib
import json
import os
import pathlib
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfvmf.data.base import ArraySource, Request, Source, check_split, choose_split
from tfvmf.data.cache import cache_dir
from tfvmf.data.images import raise_all, read_image, read_images, run_all
from tfvmf.errors import UserError
from tfvmf.files import write_json

EXTENSIONS = (".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
_TRAIN, _TEST = ("train",), ("test", "val", "valid", "validation")


class Listing(NamedTuple):
    """The files of a split, before any is opened; see `Source` for the fields."""

    paths: list[str]
    labels: np.ndarray | None
    classes: list[str] | None
    divided: bool


class FolderSource(Source):
    """Images that are decoded from their files on each access."""

    def take(self, indices: np.ndarray) -> np.ndarray:
        """The images at `indices`: uint8 [n, H, W, 3]."""
        assert self.files is not None
        paths = [self.files[index] for index in indices]
        return read_images(paths, self.image_shape[0], max_pixels=self._request.max_pixels)


def load(request: Request) -> Source:
    """`folder:/path`: all images below a folder, sorted by name.

    Files are found by extension and decoded by content. Hidden files are skipped and links are
    followed. Special files and images of more than `max_pixels` are errors.

    Splits: if there is a sub-folder `train`, or nothing else, the sub-folders `train` and `test`
    (or `val`, `valid`, `validation`, in any case). Otherwise a hash of the path relative to the
    folder makes one file in ten a test image. `all` is both.

    Labels: if all images are in sub-folders (of the folder, or of `train` and `test`), and there
    are at least two, their sorted names are the classes. Otherwise there are no labels.

    Every file is decoded once, here. A broken file is an error, or is skipped with `skip_broken`
    and listed in `Source.broken`. For data that stays on disk the result is kept in `cache_dir()`.
    """
    paths, labels, classes, divided = list_files(request)
    size, limit, told = request.image_size, request.max_pixels, "reading images"
    in_memory = request.fits(len(paths))
    if in_memory:
        broken: dict[int, str] = {}
        images = read_images(paths, size, max_pixels=limit, description=told, broken=broken)
    else:
        broken = _check(paths, request)
    errors = {i: UserError(f"{paths[i]}: {reason}") for i, reason in broken.items()}
    if not request.skip_broken:
        raise_all(errors)
    if errors and len(errors) == len(paths):
        raise UserError(f"{request.spec}: all {len(errors)} images are broken, such as {errors[0]}")
    good = [index for index in range(len(paths)) if index not in broken]
    about: dict[str, Any] = {
        "files": [paths[index] for index in good],
        "labels": None if labels is None else labels[good],
        "class_names": classes,
        "divided": divided,
        "broken": {paths[index]: reason for index, reason in broken.items()},
    }
    if not in_memory:
        return FolderSource(request, size=len(good), **about)
    for place, index in enumerate(good if broken else ()):  # in place: there is only one copy
        images[place] = images[index]
    return ArraySource(request, images[: len(good)], **about)


def _check(paths: Sequence[str], request: Request) -> dict[int, str]:
    """Position and reason of each unreadable file."""
    options = f"{request.image_size}-{request.max_pixels}"
    note = cache_dir() / f"checked-{files_identity(paths)}-{options}.json"
    with contextlib.suppress(OSError, ValueError):
        return {int(index): str(reason) for index, reason in json.loads(note.read_text()).items()}

    def decode(index: int) -> None:
        read_image(paths[index], request.image_size, max_pixels=request.max_pixels)

    errors = run_all(decode, len(paths), description="checking images")
    found = {i: str(error).removeprefix(f"{paths[i]}: ") for i, error in errors.items()}
    with contextlib.suppress(UserError):  # without a cache, the next load just takes longer
        write_json(note, found)
    return found


def files_identity(paths: Sequence[str]) -> str:
    """A hash of file names, sizes and times."""
    digest = hashlib.sha256()
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            digest.update(f"{status.st_size} {status.st_mtime_ns} ".encode())
        digest.update(os.fsencode(path) + b"\0")
    return digest.hexdigest()[:16]


def list_files(request: Request) -> Listing:
    """The files that `load` reads, without opening them."""
    root = pathlib.Path(request.target).expanduser()
    if not request.target or not root.is_dir():
        what = "is not a folder" if root.exists() and request.target else "there is no such folder"
        raise UserError(f"{request.spec}: {what}; write folder:/path/of/images")
    return arrange_files(request, find_images(root), lambda file: str(root / file))


def arrange_files(request: Request, files: list[str], path: Callable[[str], str]) -> Listing:
    """The split and labels of files, given relative to their folder; `path` makes them absolute."""
    if not files:
        raise UserError(f"{request.target}: no images in this folder ({' '.join(EXTENSIONS)})")
    tops = sorted(_top_folders(files))
    parts = [top for top in tops if top.lower() in _TRAIN + _TEST]  # folders named like splits
    if parts == tops or any(part.lower() in _TRAIN for part in parts):
        chosen, classes = _of_split(request, files, parts)
    else:
        parts = []
        check_split(request.spec, request.split)
        kept = choose_split([unicodedata.normalize("NFC", file) for file in files], request.split)
        chosen, classes = [files[index] for index in kept], _classes(files)
    labels = None
    if classes:
        numbers = {name: number for number, name in enumerate(classes)}
        depth = 1 if parts else 0
        labels = np.array([numbers[file.split("/")[depth]] for file in chosen], np.int32)
    return Listing([path(file) for file in chosen], labels, classes or None, not parts)


def find_images(root: str | os.PathLike[str]) -> list[str]:
    """Paths of all images, relative to `root`, with slashes, sorted by code points."""

    def stop(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be listed: {error.strerror}") from error

    found: list[str] = []
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=stop):
        real = os.path.realpath(folder)
        if real in seen:  # a link to a parent folder would never end
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n != "__MACOSX")
        below = pathlib.Path(folder).relative_to(root)
        images = (name for name in names if name.lower().endswith(EXTENSIONS))
        found += [(below / name).as_posix() for name in images if not name.startswith(".")]
    return sorted(found)


def _of_split(request: Request, files: list[str], parts: list[str]) -> tuple[list[str], list[str]]:
    """The files of the split, and the classes of all splits together."""
    split = request.split.lower()
    wanted = {"all": parts, "train": _TRAIN, "test": _TEST}.get(split, (split,))
    names = [part for name in wanted for part in parts if part.lower() == name.lower()]
    if split != "all":
        names = [name for name in names if name.lower() == names[0].lower()]
    if not names:
        raise UserError(
            f"{request.spec}: no images for split '{request.split}' (sub-folders: "
            f"{', '.join(parts)}); add {request.split}/ or choose another split"
        )
    inside: dict[str, list[str]] = {part: [] for part in parts}
    for part, _, file in (file.partition("/") for file in files):
        inside.get(part, []).append(file)
    classes = set().union(*(_classes(inside[part]) for part in parts))
    labeled = all(_top_folders(inside[name]) <= classes for name in names)
    chosen = [file for file in files if file.split("/")[0] in names]
    return chosen, sorted(classes) if labeled else []


def _classes(files: list[str]) -> list[str]:
    """Sorted names of the class folders; empty when the images are not sorted into classes."""
    names = _top_folders(files)
    return sorted(names) if len(names) > 1 and "" not in names else []


def _top_folders(files: list[str]) -> set[str]:
    """Names of the first folder of each path; "" for images in no folder."""
    return {file.split("/")[0] if "/" in file else "" for file in files}
