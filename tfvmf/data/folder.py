"""Images in a folder of the user's: `folder:/path`."""

import io
import os
import pathlib
import unicodedata

import numpy as np

from tfvmf.data.base import ArraySource, Request, Source, check_split, choose_split
from tfvmf.data.images import open_image, read_image, read_images, run_all
from tfvmf.errors import UserError

EXTENSIONS = (".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
_TRAIN, _TEST = ("train",), ("test", "val", "valid", "validation")
_END_MARKS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}


class FolderSource(Source):
    """Images that are decoded from their files each time they are asked for.

    Args:
        request: what was asked for.
        paths: one file per example.
        labels: int [N], or None.
        class_names: one name per class, or None.
    """

    def __init__(
        self,
        request: Request,
        paths: list[str],
        *,
        labels: np.ndarray | None,
        class_names: list[str] | None,
    ) -> None:
        super().__init__(
            request, size=len(paths), labels=labels, class_names=class_names, files=paths
        )
        self._max_pixels = request.max_pixels

    def take(self, indices: np.ndarray) -> np.ndarray:
        """The images at `indices`: uint8 [n, H, W, 3]."""
        assert self.files is not None
        paths = [self.files[index] for index in indices]
        return read_images(paths, self.image_shape[0], max_pixels=self._max_pixels)


def load(request: Request) -> Source:
    """`folder:/path`: all images below a folder, in the order of their names.

    Files are recognized by their extension, and opened by their content; hidden ones are left out;
    links are followed. What is not a regular file, or of more than `max_pixels`, is refused.

    Splits: sub-folders `train` and `test` (or `val`, `valid`, `validation`) when there is a
    `train`, or when there is nothing else; otherwise one file in ten, by a hash of its path
    relative to the folder, is for testing. `all` is both.

    Labels: when all images lie in sub-folders (of the folder, or of `train` and `test`), and there
    are at least two of these, their sorted names are the classes. Otherwise there are no labels.

    Large sets are not decoded before they are used: their headers, and that the files are
    complete, are checked here.
    """
    return _open(request, *list_files(request))


def list_files(request: Request) -> tuple[list[str], np.ndarray | None, list[str] | None]:
    """The paths of the files that `load` reads, their labels [N] and the classes; opens none."""
    root = pathlib.Path(request.target).expanduser()
    if not request.target or not root.is_dir():
        what = "is not a folder" if root.exists() and request.target else "there is no such folder"
        raise UserError(f"{request.spec}: {what}; write folder:/path/of/images")
    files = find_images(root)
    if not files:
        raise UserError(f"{root}: no images in this folder ({' '.join(EXTENSIONS)})")
    parts = _split_folders(files)
    if parts:
        chosen, classes = _of_split(request, files, parts)
    else:
        check_split(request.spec, request.split)
        kept = choose_split([unicodedata.normalize("NFC", file) for file in files], request.split)
        chosen, classes = [files[index] for index in kept], _classes(files)
    labels = None
    if classes:
        numbers = {name: number for number, name in enumerate(classes)}
        depth = 1 if parts else 0
        labels = np.array([numbers[file.split("/")[depth]] for file in chosen], np.int32)
    return [str(root / file) for file in chosen], labels, classes or None


def _open(
    request: Request, paths: list[str], labels: np.ndarray | None, classes: list[str] | None
) -> Source:
    limit = request.max_pixels
    if not request.fits(len(paths)):
        run_all(
            lambda index: _check(paths[index], limit), len(paths), description="checking images"
        )
        return FolderSource(request, paths, labels=labels, class_names=classes)
    size = request.image_size
    images = np.empty((len(paths), size, size, 3), np.uint8)

    def read(index: int) -> None:
        images[index] = read_image(paths[index], size, max_pixels=limit)

    run_all(read, len(paths), description="reading images")
    return ArraySource(request, images, labels=labels, class_names=classes, files=paths)


def find_images(root: str | os.PathLike[str]) -> list[str]:
    """Paths of all images, relative to `root`, with slashes, sorted by code points."""

    def stop(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be listed: {error.strerror}") from error

    found: list[str] = []
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=stop):
        real = os.path.realpath(folder)
        if real in seen:  # a link that leads back up would never end
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n != "__MACOSX")
        below = pathlib.Path(folder).relative_to(root)
        found += [
            (below / name).as_posix()
            for name in names
            if not name.startswith(".") and name.lower().endswith(EXTENSIONS)
        ]
    return sorted(found)


def _split_folders(files: list[str]) -> list[str]:
    """The top folders that are splits; empty when the folder is not laid out that way."""
    tops = sorted(_top_folders(files))
    known = [top for top in tops if top in _TRAIN + _TEST]
    return known if "train" in known or known == tops else []


def _of_split(request: Request, files: list[str], parts: list[str]) -> tuple[list[str], list[str]]:
    """The files of the split, and the classes, which are those of all splits together."""
    wanted = {"all": parts, "train": list(_TRAIN), "test": list(_TEST)}
    names = [part for part in wanted.get(request.split, [request.split]) if part in parts]
    if request.split != "all":
        names = names[:1]
    if not names:
        raise UserError(
            f"{request.spec}: no images for split '{request.split}' (sub-folders: "
            f"{', '.join(parts)}); add {request.split}/ or name a split that is there"
        )
    inside = {
        part: [f[len(part) + 1 :] for f in files if f.startswith(part + "/")] for part in parts
    }
    classes = set().union(*(_classes(inside[part]) for part in parts))
    labeled = all(_top_folders(inside[name]) <= classes for name in names)
    chosen = [file for file in files if file.split("/")[0] in names]
    return chosen, sorted(classes) if labeled else []


def _classes(files: list[str]) -> list[str]:
    """Sorted names of the class folders; empty when the images are not sorted into classes."""
    names = _top_folders(files)
    return sorted(names) if len(names) > 1 and "" not in names else []


def _top_folders(files: list[str]) -> set[str]:
    """Names of the first folders on the paths; "" for images that lie in none."""
    return {file.split("/")[0] if "/" in file else "" for file in files}


def _check(path: str, max_pixels: int) -> None:
    """Reads the header; decodes the file only when its end looks cut off."""
    with open_image(path, max_pixels=max_pixels) as image:
        mark = _END_MARKS.get(image.format or "")
        if mark is not None and image.fp is not None:
            image.fp.seek(-min(64, os.path.getsize(path)), io.SEEK_END)
            if mark in image.fp.read():
                return
    read_image(path, 8, max_pixels=max_pixels)
