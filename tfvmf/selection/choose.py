"""Selects images of a table, in order and with reasons: the library behind `tfvmf select`."""

import contextlib
import csv
import dataclasses
import io
import itertools
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from tfvmf import files
from tfvmf.data.cache import cache_dir
from tfvmf.embedding import Table, read_table
from tfvmf.embedding.table import DIRECTIONS
from tfvmf.errors import UserError
from tfvmf.selection import strategies
from tfvmf.settings import MAX_PIXELS

_SCORES = ("concentration", "familiarity", "confidence", "accept")
_NEEDED = {"uncertain": "concentration", "foreign": "familiarity"}
_COSINES = ("duplicates", "diverse", "typical")  # strategies with a cosine as threshold
STRATEGIES = (*_NEEDED, *_COSINES)
_REFERENCE = 15_000  # maximum rows for fitting familiarity (two thirds) and decision


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """The selected rows, best first, as columns of equal length.

    Attributes:
        columns: `file`; `score`, which orders the rows; `concentration`, `familiarity`,
            `confidence` and `accept`, if known; `reason`, in words; `group`, the number of a group
            of duplicates, or "".
        rows: Row numbers in the table [M].
        of: Number of rows that could have been chosen.
        notes: Lines to print about rows left out, recall and groups.
    """

    columns: dict[str, np.ndarray]
    rows: np.ndarray
    of: int
    notes: list[str]

    def __len__(self) -> int:
        return len(self.rows)

    def csv(self) -> Iterator[str]:
        """Lines of a CSV file, with text that a spreadsheet does not take for formulas."""
        text = io.StringIO(newline="")
        for cells in itertools.chain([self.columns], zip(*self.columns.values(), strict=True)):
            csv.writer(text).writerow([_cell(cell) for cell in cells])
            yield text.getvalue()
            text.seek(text.truncate(0))

    def write(self, output: str | os.PathLike[str]) -> None:
        """Writes the CSV file atomically."""
        with files.replacing(output) as file:
            file.writelines(line.encode("utf-8", "backslashreplace") for line in self.csv())

    def gather(self, directory: str | os.PathLike[str], *, link: bool = False) -> None:
        """Copies or links all files, or none, into a new folder; names start with the rank."""
        folder, names = pathlib.Path(directory).expanduser(), list(map(str, self.columns["file"]))
        check_folder(folder)
        for row, name in zip(self.rows, names, strict=True):
            if not os.path.isfile(name):
                raise UserError(f"{name} (row {row} of the table) is not a file: nothing is copied")
        with files.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for place, name in enumerate(names, 1):
                target = folder / f"{place:0{len(str(len(names)))}}_{os.path.basename(name)}"
                target.symlink_to(os.path.abspath(name)) if link else files.copy(name, target)


def select(
    table: str | os.PathLike[str],
    *,
    by: str = "",
    like: str = "",
    count: int = 0,
    threshold: float | None = None,
    reference: str | os.PathLike[str] = "",
    exclude: Sequence[str | os.PathLike[str]] = (),
    model: str | os.PathLike[str] = "",
    trust_model: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> Selection:
    """Selects rows of a table of embeddings.

    TensorFlow is used only with `reference` or `model`. Directions are the column
    `mean_direction`, or else unit-length `features`; they are memory-mapped from a file.

    Args:
        table: A table for `tfvmf.embedding.read_table`.
        by: One of `STRATEGIES`, or several with weights, `diverse:1,uncertain:0.5`: a sum of ranks
            from 0 to 1; `diverse` adds the distance to the nearest choice in units of the mean
            distance.
        like: Instead of `by`, selects the rows nearest to a file of the table or, with `model`, to
            any picture.
        count: Number of rows; 0 for all that pass the threshold. For `duplicates` the maximum;
            without a threshold these are the rows that stand out most as copies
            (`strategies.stand_out`), compared by the column `levels` if the table has it.
        threshold: A cosine: the minimum for a duplicate or neighbor, or the minimum mean for a
            typical image; `diverse` stops when each image has this cosine to a choice.
        reference: A table of in-distribution images, embedded by the same model: familiarity and
            a decision are fitted to it, and replace those of the table.
        exclude: CSV files of earlier selections, which are not chosen again. For `diverse` they
            count as chosen, unless they were duplicates.
        model: A model for `tfvmf.load`, see `like`.
        trust_model: See `tfvmf.load`.
        max_pixels: Larger pictures for `like` are rejected.
    """
    weights = check(by=by, like=like, count=count, threshold=threshold, model=os.fspath(model))
    opened = read_table(table)
    vectors = [name for name in reversed(DIRECTIONS) if name in opened.columns][:1]
    if not (like or reference or {*weights} & {*_COSINES}):
        vectors = []
    elif not vectors:
        raise UserError(f"{opened.path} has no column {' or '.join(DIRECTIONS)}: expected vectors")
    elif "duplicates" in weights and threshold is None and "levels" in opened.columns:
        vectors.append("levels")
    known = {*opened.columns, *(["familiarity"] if reference else [])}
    for name in weights:
        if (column := _NEEDED.get(name, "file")) not in known:
            hint = ", or --reference=TABLE to fit it to" if name == "foreign" else ""
            raise UserError(
                f"{opened.path} has no column {column}, which --by={name} needs: it has "
                f"{', '.join(opened.columns)}{hint}"
            )
    notes: list[str] = []
    earlier = read_exclusions(exclude)
    with files.scratch(cache_dir(), advice="set TFVMF_CACHE to another folder") as place:
        pool = _Pool(opened, weights, vectors, earlier, place, notes)
        if reference:
            pool.fit(reference)
        free = int(pool.allowed.sum())
        if not free or count > free:
            start = f"count={count}: " if count else ""
            left_out = "".join(f"; {note}" for note in notes)
            raise UserError(f"{start}{opened.path} has {free:,} rows that can be chosen{left_out}")
        if like:
            cosines = pool.cosines(like, model, trust_model=trust_model, max_pixels=max_pixels)
            found = _ranked(pool, np.minimum(cosines, 1), "cosine {:.4f}")
        elif len(weights) > 1:
            found = _weighted(pool, weights, count)
        elif (name := next(iter(weights))) == "duplicates":
            found = _duplicates(pool, count, threshold)
        elif name == "diverse":
            found = _diverse(pool, count, threshold)
        else:
            text = f"{_NEEDED.get(name, 'mean cosine to the nearest')} {{:.4g}}"
            found = _ranked(pool, _values(pool, name), text, lowest=name in _NEEDED)
        size = count or free
        if threshold is not None and (like or "typical" in weights):
            size = min(size, int((found.scores >= threshold).sum()))
        rows = found.rows[:size]
        scores = {name: pool.scores[name][rows] for name in _SCORES if name in pool.scores}
        columns = {"file": pool.names[rows], "score": found.scores[:size], **scores}
        columns["reason"] = np.array([found.reason(at) for at in range(len(rows))], object)
        columns["group"] = np.array(found.groups[:size] or [""] * len(rows), object)
        return Selection(columns=columns, rows=pool.rows[rows], of=free, notes=notes)


def check(
    *, by: str, like: str, count: int, threshold: float | None, model: str
) -> dict[str, float]:
    """The weights of the strategies; UserError if the arguments are inconsistent."""
    if bool(by) == bool(like):
        raise UserError(f"expected either --by ({', '.join(STRATEGIES)}) or --like")
    if model and not like:
        raise UserError(f"model={model}: only used to embed the picture of --like")
    weights: dict[str, float] = {}
    for part in filter(None, by.split(",")):
        name, _, weight = (piece.strip() for piece in part.partition(":"))
        if name not in STRATEGIES or name in weights:
            problem = "named twice" if name in weights else "unknown"
            raise UserError(f"by={by}: {name!r} is {problem}: use some of {', '.join(STRATEGIES)}")
        if not files.is_number(weight or "1") or not 0 < float(weight or "1") < math.inf:
            raise UserError(f"by={by}: the weight {weight!r} is not a number above 0")
        weights[name] = float(weight or "1")
    if threshold is not None and not -1 <= threshold <= 1:
        raise UserError(f"threshold={threshold:g}: expected a cosine, from -1 to 1")
    if threshold is not None and not like and (len(weights) > 1 or not {*weights} & {*_COSINES}):
        raise UserError(
            f"threshold={threshold:g}: a cosine, for --like or one of {', '.join(_COSINES)} alone: "
            f"give --count for --by={by}"
        )
    if count < 0 or (not count and threshold is None):
        raise UserError("--count is missing: the number of images (or --threshold, a cosine)")
    return weights


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raises UserError if files cannot be gathered there: it is a file or not empty."""
    path = pathlib.Path(folder).expanduser()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} is not an empty folder: expected a new one for the selected files")


class _Pool:
    """The rows that can be chosen: without errors, with finite numbers, and not excluded.

    For `diverse`, rows of earlier selections stay, because they count as chosen. `directions` is
    the column `vectors[0]` at unit length [N, d], mapped from a file.
    """

    def __init__(
        self,
        table: Table,
        weights: Mapping[str, float],
        vectors: Sequence[str],
        earlier: Mapping[str, bool],
        place: pathlib.Path,
        notes: list[str],
    ) -> None:
        scores = [name for name in _SCORES if name in table.columns]
        used = {_NEEDED[name] for name in weights if name in _NEEDED}
        used |= {"concentration"} if "duplicates" in weights else set()
        found: dict[str, list[np.ndarray]] = {name: [] for name in ("row", "file", *scores)}
        widths: dict[str, int] = {}
        left, excluded, start = 0, 0, 0
        with contextlib.ExitStack() as stack:
            # On a full disk a plain write raises an error, but a memory map kills the process.
            outputs = {name: stack.enter_context((place / name).open("wb")) for name in vectors}
            for part in table.parts("file", "error", *scores, *vectors):
                good = part["error"] == ""
                for name in used & {*scores}:
                    good &= ~np.isnan(part[name])
                lengths = {n: np.linalg.norm(part[n].astype(float), axis=1) for n in vectors}
                for each in lengths.values():
                    good &= np.isfinite(each) & (each > 0)
                left += int((~good).sum())
                seen = np.array([name in earlier for name in part["file"]], bool) & good
                excluded += int(seen.sum())
                # Earlier choices keep the next ones at a distance.
                good[seen] = [earlier[n] and "diverse" in weights for n in part["file"][seen]]
                for name, file in outputs.items() if good.any() else ():
                    values = part[name][good]
                    width = widths.setdefault(name, values.shape[1])
                    if width != values.shape[1]:
                        raise UserError(
                            f"{table.path}: {name} has {width} or {values.shape[1]} values per row"
                        )
                    if name in DIRECTIONS:
                        values = values / lengths[name][good, None]
                    file.write(np.ascontiguousarray(values, np.float32).data)
                part["row"] = np.arange(start, start := start + len(good))
                for name, parts in found.items():
                    parts.append(part[name][good])
        columns = {k: np.concatenate(v) if v else np.zeros(0) for k, v in found.items()}
        self.rows, self.names = columns.pop("row"), columns.pop("file")
        self.path, self.vectors, self.scores = table.path, "".join(vectors[:1]), columns
        self.notes, self._place = notes, place
        maps: dict[str, np.ndarray] = {}
        for name, width in widths.items():
            shape = len(self.rows), width
            maps[name] = np.memmap(place / name, np.float32, "r", shape=shape)
        self.directions = maps.get(self.vectors, np.zeros((0, 0), np.float32))
        self._compared = maps.get("levels", self.directions)
        self.allowed = np.array([name not in earlier for name in self.names], bool)
        self.certainty = columns.get("concentration", np.zeros(len(self.rows)))
        what = self.vectors or "score"
        if left:
            notes.append(f"rows left out: {left:,} broken, or without a finite {what}")
        if earlier:
            notes.append(
                f"rows left out: {excluded:,} of {len(earlier):,} files of earlier selections"
            )
        if "duplicates" in weights and "concentration" not in scores:
            notes.append("no concentration: the first row of each group of duplicates is kept")

    def whitened(self) -> np.ndarray:
        """The vectors for comparing duplicates: `levels`, or else directions, decorrelated."""
        return strategies.whiten(self._compared, self._place / "whitened")

    def cosines(
        self, like: str, model: str | os.PathLike[str], *, trust_model: bool, max_pixels: int
    ) -> np.ndarray:
        """Cosines [N] to a row, which is then not chosen itself, or to any picture."""
        rows = np.flatnonzero(self.names == like)
        if len(rows):
            self.allowed[rows] = False
            return self.directions @ self.directions[rows[0]]
        if not model:
            raise UserError(
                f"like={like}: no such row of {self.path} can be chosen; to compare another "
                "picture, name the --model that embeds it"
            )
        from tfvmf import serving

        loaded = serving.load(model, trust_model=trust_model)
        found = loaded.embed([like], max_pixels=max_pixels)[self.vectors][0]
        if len(found) != self.directions.shape[1]:
            raise UserError(
                f"model={model}: its {self.vectors} have {len(found)} numbers, those of "
                f"{self.path} {self.directions.shape[1]}: expected the model of the table"
            )
        return self.directions @ (found / np.linalg.norm(found))

    def fit(self, reference: str | os.PathLike[str]) -> None:
        """Fits familiarity and a decision to a table of in-distribution images, and scores rows."""
        from tfvmf.posthoc import Decision, Familiarity

        table, parts, start = read_table(reference), [], 0
        kappa = ["concentration"] if "concentration" in {*table.columns} & {*self.scores} else []
        wanted = np.zeros(len(table), bool)
        wanted[np.random.default_rng(0).permutation(len(table))[:_REFERENCE]] = True
        for part in table.parts(self.vectors, *kappa):
            values = np.column_stack(list(part.values()))
            good = wanted[start : (start := start + len(values))] & np.isfinite(values).all(axis=1)
            parts.append(values[good])
        width = parts[0].shape[1] - len(kappa) if parts else 0
        if width != self.directions.shape[1]:
            raise UserError(
                f"reference={reference}: its {self.vectors} have {width} numbers, those of "
                f"{self.path} {self.directions.shape[1]}: expected the same model"
            )
        found = np.random.default_rng(0).permutation(np.concatenate(parts))
        known, other = found[: 2 * len(found) // 3], found[2 * len(found) // 3 :]
        familiarity = Familiarity.fit(known[:, :width])
        decision = Decision.fit(*other[:, width:].T, familiarity(other[:, :width]).numpy())
        made: list[dict[str, np.ndarray]] = []
        for at in range(0, len(self.rows), 1024):
            rows = slice(at, at + 1024)
            scores = {"familiarity": familiarity(self.directions[rows])}
            scores |= decision(*(self.scores[k][rows] for k in kappa), scores["familiarity"])
            made.append({name: value.numpy() for name, value in scores.items()})
        self.scores |= {name: np.concatenate([part[name] for part in made]) for name in made[0]}
        self.notes.append(
            f"familiarity fitted to {len(known):,} rows of {table.path}, the decision to "
            f"{len(other):,} others: {int(np.sum(self.scores['accept'] == 0)):,} rows are rejected"
        )


class _Found(NamedTuple):
    """Rows of the pool in order, with their values, reasons and groups."""

    rows: np.ndarray
    scores: np.ndarray
    reason: Callable[[int], str]
    groups: Sequence[int | str] = ()


def _values(pool: _Pool, name: str) -> np.ndarray:
    """The values by which a strategy other than `diverse` orders rows."""
    if name in _NEEDED:
        return pool.scores[_NEEDED[name]]
    if name == "duplicates":
        return strategies.stand_out(pool.whitened(), pool.certainty, note=pool.notes.append)[0]
    k = min(strategies.NEIGHBORS, len(pool.rows) - 1)
    if not k:
        raise UserError(f"{pool.path} has one row that can be chosen: typical needs neighbors")
    return strategies.nearest(pool.directions, k, note=pool.notes.append)[0].mean(axis=1)


def _ranked(pool: _Pool, values: np.ndarray, text: str, *, lowest: bool = False) -> _Found:
    """The allowed rows, ordered by a value; `text` formats it for the reason."""
    rows = np.argsort(values if lowest else -values, kind="stable")
    rows = rows[pool.allowed[rows]]
    scores, end = values[rows], f" of {len(rows):,}"
    return _Found(rows, scores, lambda at: f"{text.format(scores[at])}: {at + 1:,}{end}")


def _duplicates(pool: _Pool, count: int, threshold: float | None) -> _Found:
    sure, note = pool.certainty, pool.notes.append
    if threshold is None:
        compared = pool.whitened()
        scores, near, crowd = strategies.stand_out(compared, sure, note=note)
        limit = np.sort(scores)[-min(count, max(len(sure) - 1, 1))]
        kept = strategies.keepers(compared, scores, near, sure, limit, crowd)
    else:
        kept = strategies.duplicate_groups(pool.directions, threshold, certainty=sure, note=note)
    rows = np.flatnonzero(kept != np.arange(len(kept)))
    values = cosines = np.minimum(_products(pool.directions, rows, kept[rows]), 1)
    least, above = threshold, ""
    if threshold is None:
        values = _products(compared, rows, kept[rows]) - crowd[rows] - crowd[kept[rows]]
        least, above = cosines.min(initial=1), " ({:.4f} nearer than others)"
    order = np.argsort(-values, kind="stable")
    rows, values, cosines = rows[order], values[order], cosines[order]
    _, first, number = np.unique(kept[rows], return_index=True, return_inverse=True)
    groups = rankdata(first, "ordinal")[number] if len(rows) else number
    note(f"{len(rows):,} duplicates in {len(first):,} groups: cosine at least {least:.4f}")

    def reason(at: int) -> str:
        told = above.format(values[at])
        return f"cosine {cosines[at]:.4f}{told} to {pool.names[kept[rows[at]]]}, which is kept"

    return _Found(rows, values, reason, groups.tolist())


def _products(vectors: np.ndarray, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Inner products of pairs of rows."""
    blocks = np.array_split(np.stack([rows, others]), 1 + len(rows) // 4096, axis=1)
    return np.concatenate([np.einsum("nd,nd->n", vectors[a], vectors[b]) for a, b in blocks])


def _diverse(
    pool: _Pool, count: int, threshold: float | None, bonus: np.ndarray | None = None
) -> _Found:
    rows, cosines = strategies.diverse(
        pool.directions,
        count or int(pool.allowed.sum()),
        bonus=bonus,
        chosen=np.flatnonzero(~pool.allowed),
        allowed=pool.allowed,
        threshold=2.0 if threshold is None else threshold,
    )

    def reason(at: int) -> str:
        first = at == 0 and pool.allowed.all()
        return "next to the mean" if first else f"cosine {cosines[at]:.4f} to the nearest before"

    return _Found(rows, cosines, reason)


def _weighted(pool: _Pool, weights: Mapping[str, float], count: int) -> _Found:
    total, ranks = np.zeros(len(pool.rows)), {}
    for name in (name for name in weights if name != "diverse"):
        values = _values(pool, name) * (-1 if name in _NEEDED else 1)
        ranks[name] = (rankdata(values) - 1) / max(len(values) - 1, 1)
        total += weights[name] * ranks[name]
    found = _ranked(pool, total, "")
    scores = found.scores
    if "diverse" in weights:
        # 1 - |mean|^2 is the mean distance 1 - cosine of two images.
        mean = pool.directions.mean(axis=0, dtype=np.float64)
        unit = max(1 - float(mean @ mean), 1e-6)
        found = _diverse(pool, count, None, total * unit / weights["diverse"])
        gaps = (1 - found.scores) / unit
        scores = total[found.rows] + weights["diverse"] * gaps
    told = {name: rank[found.rows] for name, rank in ranks.items()}
    told |= {"diverse": gaps} if "diverse" in weights else {}

    def reason(at: int) -> str:
        return ", ".join(f"{name} {told[name][at]:.3f}" for name in weights)

    return _Found(found.rows, scores, reason)


def read_exclusions(names: Sequence[str | os.PathLike[str]]) -> dict[str, bool]:
    """Files of earlier selections: {name: whether it counts as chosen}; duplicates do not."""
    found: dict[str, bool] = {}
    for name in names:
        try:
            with open(os.path.expanduser(name), encoding="utf-8-sig", newline="") as file:
                rows = csv.DictReader(file, strict=True)
                if "file" not in (rows.fieldnames or ()):
                    raise UserError(f"exclude={name} has no column file: expected a CSV of select")
                for row in rows:
                    found[files.csv_text_back(row["file"] or "")] = not row.get("group")
        except (OSError, UnicodeError, csv.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"exclude={name} cannot be read as CSV: {reason}") from error
    return found


def _cell(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.6g}"
    return files.csv_text(str(value))
