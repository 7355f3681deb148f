"""A page to explore a table of embeddings: map, scores, decision, neighbors, duplicates.

It needs no network. Up to `INLINE` images it is one file with all thumbnails, otherwise a folder.
TensorFlow is only needed for the pictures of a TFDS data set.
"""

import base64
import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import os
import pathlib
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.neighbors import KNeighborsRegressor

from tfvmf import cores, files, pages
from tfvmf.data import Source, load_source
from tfvmf.data.images import open_image, read_image, run_all
from tfvmf.embedding.table import DIRECTIONS, TEXTS, VECTORS, Columns, Table, read_table
from tfvmf.errors import UserError
from tfvmf.progress import Progress
from tfvmf.selection.strategies import duplicate_groups, nearest
from tfvmf.settings import MAX_PIXELS

INLINE = 5_000  # maximum number of images of a single file
MOST = 100_000  # maximum number of images: a browser holds all their names and scores
PAGE_BYTES = 25_000_000  # maximum size of a single file
NEIGHBORS = 12
_SIDE = 96  # side of a thumbnail, in pixels
_THUMBNAIL_BYTES = 3_300
_LANDMARKS = 10_000  # images placed by t-SNE; others are placed by their nearest among these
_GROUPS = 200  # maximum number of duplicate groups
_CHUNK = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explored:
    """The result of `explore`."""

    page: pathlib.Path
    images: int  # number of images on the page
    left_out: int  # rows with an error, or with a vector that is not finite
    missing: int  # images without a picture
    sources: str  # the data set of the missing pictures, or ""
    groups: int  # groups of duplicates


def explore(
    table: str | os.PathLike[str],
    output: str | os.PathLike[str] = "",
    *,
    data: str = "",
    data_dir: str | os.PathLike[str] = "",
    max_images: int = 0,
    threshold: float = 0.95,
    max_pixels: int = MAX_PIXELS,
    seed: int = 0,
) -> Explored:
    """Writes a page that shows a table of embeddings from `tfvmf embed`, with vectors.

    Args:
        table: A table for `read_table`.
        output: An `.html` file for up to 5,000 images, or a folder; by default the table's name
            with `.html`, or with `-explore` for more. Map and neighbors are cached next to it.
        data: The source of pictures for rows like `cifar10/test:7`, for `load_source`.
        data_dir: Folder of prepared TFDS data sets.
        max_images: Number of rows to sample; 0 for all.
        threshold: Minimum cosine of duplicates.
        max_pixels: Larger pictures are not decoded.
        seed: Seed of the sample and the map.
    """
    if not -1 <= threshold <= 1:
        raise UserError(f"threshold={threshold}: expected a cosine between -1 and 1")
    found = read_table(table)
    rows = min(len(found), max_images or len(found))
    page = _page_path(found.path, output, rows)
    columns, directions, left_out = _read(found, rows, seed)
    count = len(directions)
    if not count:
        raise UserError(f"{found.path}: none of its {len(found):,} rows has a finite vector")
    positions, cosines, near = _kept(page, directions, seed)
    kept = duplicate_groups(directions, threshold, certainty=columns.get("concentration"))
    groups = _groups(kept)
    values = _values(columns) | {
        "name": found.path.stem,
        "table": found.path.name,
        "rows": count,
        "x": positions[:, 0].tolist(),
        "y": positions[:, 1].tolist(),
        "neighbors": near.tolist(),
        "cosines": np.round(cosines, 3).tolist(),
        "groups": groups[:_GROUPS],
        "threshold": threshold,
    }
    lead = f"{count:,} of {len(found):,} images" if rows < len(found) else f"{count:,} images"
    lead += f"; {left_out:,} rows left out: broken, or not finite" if left_out else ""
    pictures = _Pictures(values["file"], data, data_dir, max_pixels)
    sources = filter(None, (_parse(name)[0] for name in values["file"]))
    return Explored(
        page=_write(page, values, lead, pictures),
        images=count,
        left_out=left_out,
        missing=pictures.missing,
        sources="" if data else next(sources, ""),
        groups=len(groups),
    )


def _page_path(table: pathlib.Path, output: str | os.PathLike[str], rows: int) -> pathlib.Path:
    """The page, or the folder of page and thumbnails; errors come before any computation."""
    if rows > MOST:
        raise UserError(
            f"{table} has {rows:,} rows, and a page shows up to {MOST:,}: choose some with "
            f"`tfvmf select`, or a sample with --max_images={MOST}"
        )
    ending = ".html" if rows <= INLINE else "-explore"
    path = pathlib.Path(output or table.with_name(f"{table.stem}{ending}")).expanduser()
    if path.suffix == ".html" and rows > INLINE:
        raise UserError(
            f"output={path}: {rows:,} images do not fit into one file (at most {INLINE:,}): "
            "expected the name of a folder, or a sample with --max_images"
        )
    taken = path.is_dir() if path.suffix == ".html" else path.exists() and not path.is_dir()
    if taken or not path.parent.is_dir():
        raise UserError(f"output={path}: expected an .html file or a folder, in an existing folder")
    return path


def _read(table: Table, rows: int, seed: int) -> tuple[Columns, np.ndarray, int]:
    """Columns of the rows to show, their unit vectors, and the number of rows without one."""
    vector = next((name for name in reversed(DIRECTIONS) if name in table.columns), None)
    if vector is None:
        raise UserError(
            f"{table.path} has no column {' or '.join(reversed(DIRECTIONS))}: expected a table "
            "with vectors, as .parquet or .npz"
        )
    names = [name for name in table.columns if name not in VECTORS]
    shown = np.zeros(len(table), bool)
    shown[np.random.default_rng(seed).permutation(len(table))[:rows]] = True
    parts: list[Columns] = []
    start = left_out = 0
    for part in table.parts(*names, vector):
        wanted = shown[start : start + len(part["file"])]
        good = wanted & (part["error"] == "") & np.isfinite(part[vector]).all(axis=1)
        start += len(wanted)
        left_out += int(wanted.sum() - good.sum())
        parts.append({name: values[good] for name, values in part.items()})
    if not parts:
        raise UserError(f"{table.path} has no rows")
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    directions = columns.pop(vector).astype(np.float32, copy=False)
    directions /= np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-12)
    return columns, directions, left_out


def _kept(
    page: pathlib.Path, directions: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions on the map [N, 2], cosines and rows of neighbors [N, k], cached on disk."""
    path = page.with_suffix(".map.npz") if page.suffix == ".html" else page / "map.npz"
    key = hashlib.sha256(directions.tobytes() + bytes([1, seed % 256, NEIGHBORS])).hexdigest()
    with contextlib.suppress(UserError), files.arrays(path) as stored:  # missing, or not ours
        if str(stored["key"]) == key:
            return stored["positions"], stored["cosines"], stored["neighbors"]
    k = min(NEIGHBORS, len(directions) - 1)
    cosines, near = nearest(directions, k) if k else np.zeros((2, 1, 0), np.int64)
    found = {"positions": project(directions, seed=seed), "cosines": cosines, "neighbors": near}
    with files.replacing(path) as file:
        np.savez_compressed(file, allow_pickle=False, key=np.array(key), **found)
    return found["positions"], cosines, near


def project(directions: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """A map of unit vectors [N, d]: int [N, 2] from 0 to 9999, by PCA and then t-SNE.

    t-SNE uses up to 10,000 random rows. Each other row is placed at the weighted mean of its three
    nearest among these, in the space of 50 principal components.
    """
    if not np.ptp(directions, axis=0).any():
        return np.zeros((len(directions), 2), np.int32)
    rows = np.random.default_rng(seed).permutation(len(directions))
    placed, others = rows[:_LANDMARKS], rows[_LANDMARKS:]
    pca = PCA(min(50, len(placed), directions.shape[1]), random_state=seed).fit(directions[placed])
    flat = pca.transform(directions[placed])
    spread = len(np.unique(flat.round(6), axis=0))
    positions = np.zeros((len(directions), 2))
    if spread > 8:  # fewer points have no neighborhoods
        tsne = TSNE(
            perplexity=min(30.0, (len(placed) - 1) / 3),
            init="pca" if flat.shape[1] > 1 else "random",
            random_state=seed,
            n_jobs=cores.available(),
        )
        positions[placed] = tsne.fit_transform(flat)
    else:
        positions[placed, : min(2, flat.shape[1])] = flat[:, :2]
    if len(others):
        model = KNeighborsRegressor(3, weights="distance").fit(flat, positions[placed])
        for part in np.array_split(others, 1 + len(others) // _LANDMARKS):
            positions[part] = model.predict(pca.transform(directions[part]))
    positions -= positions.min(axis=0)
    return np.round(positions * (9999 / max(positions.max(), 1e-12))).astype(np.int32)


def _groups(kept: np.ndarray) -> list[list[int]]:
    """Rows of each group of duplicates, the kept one first, largest groups first."""
    groups: dict[int, list[int]] = {}
    for row, root in enumerate(kept.tolist()):
        if row != root:
            groups.setdefault(root, [root]).append(row)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0]))


def _values(columns: Columns) -> dict[str, Any]:
    """Names and scores for JSON: numbers that are not finite become null."""
    scores = {
        name: [float(f"{x:.7g}") if np.isfinite(x) else None for x in values.tolist()]
        for name, values in columns.items()
        if name not in (*TEXTS, "accept")
    }
    texts = [columns[name] for name in ("label", "class") if name in columns]
    classes = sorted(set(itertools.chain.from_iterable(texts)) - {""}, key=_natural)
    number = {name: place for place, name in enumerate(classes)} | {"": -1}
    values: dict[str, Any] = {"file": columns["file"].tolist(), "scores": scores}
    values["classes"] = classes
    for name in ("label", "class"):
        values[name] = [number[text] for text in columns[name]] if name in columns else None
    values["alpha"] = 0.05
    if {"confidence", "accept"} <= {*columns}:
        # alpha: 0.05 if it gives the decisions of the table, else the highest rejected confidence.
        confidence, accept = columns["confidence"], columns["accept"]
        highest = confidence[~accept].max(initial=0)
        if not highest <= np.float32(0.05) < confidence[accept].min(initial=1):
            values["alpha"] = float(f"{highest:.7g}")
    return values


def _natural(name: str) -> tuple[bool, int, str]:
    """A sort key that puts numbers, by value, before words."""
    digits = re.fullmatch(r"\d{1,18}", name, re.ASCII)
    return not digits, int(name) if digits else 0, name


class _Pictures:
    """Thumbnails of rows, in order, from files or a data set; `missing` counts rows without one."""

    def __init__(
        self, names: Sequence[str], data: str, data_dir: str | os.PathLike[str], max_pixels: int
    ) -> None:
        self.missing, self._names, self._max_pixels = 0, names, max_pixels
        self._sources: dict[str, Source] = {}
        splits = {_parse(name)[1]: None for name in names} if data else {}
        for split in filter(None, splits):  # errors in `data` come before any output
            load = functools.partial(load_source, data, split, data_dir=data_dir)
            source = load(image_size=32, max_pixels=max_pixels)
            size = max(8, min(source.native_size or _SIDE, _SIDE))
            source = source if size == 32 else load(image_size=size, max_pixels=max_pixels)
            self._sources[split] = source

    def encoded(self, limit: int) -> Iterator[bytes | None]:
        """A WebP file of at most `limit` bytes per row; None if there is no picture."""
        with Progress(len(self._names), unit="image", description="thumbnails", brief=True) as bar:
            for start in range(0, len(self._names), _CHUNK):
                part = self._encode(self._names[start : start + _CHUNK], limit)
                bar.update(len(part))
                yield from part

    def _encode(self, names: Sequence[str], limit: int) -> list[bytes | None]:
        pixels, result = self._from_sources(names), list[bytes | None]([None] * len(names))

        def encode(place: int) -> None:
            found = pixels.get(place)
            result[place] = _encode(self._read(names[place]) if found is None else found, limit)

        self.missing += len(run_all(encode, len(names)))
        return result

    def _read(self, name: str) -> np.ndarray:
        path = os.path.expanduser(name)
        with open_image(path, max_pixels=self._max_pixels) as image:
            side = min(*image.size, _SIDE)
        return read_image(path, side, max_pixels=self._max_pixels)

    def _from_sources(self, names: Sequence[str]) -> dict[int, np.ndarray]:
        """Pixels of the rows that are images of `data`, by position."""
        mine: dict[str, dict[int, int]] = {}
        for place, name in enumerate(names):
            _, split, index = _parse(name)
            source = self._sources.get(split)
            if source and index < source.size and source.file(index) == name:
                mine.setdefault(split, {})[place] = index
        found: dict[int, np.ndarray] = {}
        for split, places in mine.items():
            pixels = self._sources[split].take(np.array([*places.values()]))
            found |= dict(zip(places, pixels, strict=True))
        return found


def _parse(name: str) -> tuple[str, str, int]:
    """`cifar10/test:7` as source, split and index; empty for anything else."""
    found = re.fullmatch(r"(.+)/([^/]+):(\d{1,18})", name, re.ASCII | re.DOTALL)
    return (found[1], found[2], int(found[3])) if found else ("", "", -1)


def _encode(pixels: np.ndarray, limit: int) -> bytes:
    """A picture as WebP, with lower quality or size if it would exceed `limit` bytes."""
    image = Image.fromarray(pixels)
    for side, quality in ((_SIDE, 82), (_SIDE, 60), (64, 60), (48, 50), (32, 40), (16, 20)):
        if image.width > side:
            image = image.resize((side, side), Image.Resampling.BICUBIC, reducing_gap=3.0)
        file = io.BytesIO()
        image.save(file, format="WEBP", quality=max(quality, 90 - image.width // 4))
        if file.tell() <= limit:
            break
    return file.getvalue()


def _write(
    page: pathlib.Path, values: dict[str, Any], lead: str, pictures: _Pictures
) -> pathlib.Path:
    """Writes one file, or a folder of the page and its thumbnails; returns the page."""

    def render(thumbnails: Sequence[str | int | None]) -> str:
        missing = f"; {pictures.missing:,} without a picture" if pictures.missing else ""
        shown = {"title": values["table"], "lead": lead + missing, "thumbnails": thumbnails}
        return pages.render("explore.html.j2", values=values, **shown)

    if page.suffix == ".html":
        frame = len(render([]).encode())
        room = (PAGE_BYTES - 10_000 - frame) // values["rows"] * 3 // 4 - 6
        if room < 400:
            raise UserError(
                f"output={page}: the names of its {values['rows']:,} images take {frame / 1e6:.0f} "
                "MB, which leaves no room for pictures: name a folder"
            )
        encoded = pictures.encoded(min(room, _THUMBNAIL_BYTES))
        inline = [base64.b64encode(each).decode("ascii") if each else None for each in encoded]
        files.write_text(page, render(inline))
        return page
    with files.scratch(page) as place:
        there: list[int] = []
        (place / "thumbnails").mkdir()
        for row, content in enumerate(pictures.encoded(_THUMBNAIL_BYTES)):
            there.append(int(content is not None))
            if content is not None:
                path = place / "thumbnails" / f"{row // 1000:03}" / f"{row:06}.webp"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
        shutil.rmtree(page / "thumbnails", ignore_errors=True)
        (place / "thumbnails").replace(page / "thumbnails")
    files.write_text(page / "index.html", render(there))
    return page / "index.html"
