"""Strategies on directions [N, d], rows of unit length: neighbors, duplicates, diversity.

Exact up to `EXACT` rows; for more, nearest neighbors come from an inverted file of faiss, and their
recall is measured on a sample. Arrays may be memory maps: they are read in blocks.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tfvmf.errors import UserError
from tfvmf.progress import Progress

EXACT = 50_000
NEIGHBORS = 10  # number of neighbors for `typical`, and for the crowdedness in `stand_out`
_CELLS = 1 << 24  # cosines in memory at a time: 64 MB
_PROBES = 16  # lists of the inverted file to search, among about sqrt(N)
_BLOCK = 4096  # queries at a time
_SAMPLE = 2000  # rows with an exact answer, for the recall
_GROUP = 64  # columns per maximum
_RIDGE = 0.1  # added to each eigenvalue by `whiten`, relative to the variance 1
_CROWDED = 0.75  # quantile at which crowdedness is capped

Note = Callable[[str], None]


def nearest(
    directions: np.ndarray, k: int, *, note: Note | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Descending cosines [N, k] and rows [N, k] of the k nearest others; `note` gets the recall."""
    count = len(directions)
    if not 1 <= k < count:
        raise ValueError(f"k must be between 1 and {count - 1} for {count} rows, not {k}")
    cosines, rows = np.empty((count, k), np.float32), np.empty((count, k), np.int64)
    if count <= EXACT:
        for block in _blocks(count, count, "neighbors"):
            cosines[block], rows[block] = _exact(directions, np.arange(count)[block], k)
        return np.minimum(cosines, 1), rows
    index = _inverted_file(directions)
    for block in _blocks(count, _CELLS // _BLOCK, "index"):
        index.add(directions[block])
    for block in _blocks(count, _CELLS // _BLOCK, "neighbors"):
        found, near = index.search(directions[block], k + 1)
        own = near == np.arange(block.start, block.stop)[:, None]
        own[~own.any(axis=1), -1] = True  # with more than k copies, the row itself may be missing
        cosines[block], rows[block] = found[~own].reshape(-1, k), near[~own].reshape(-1, k)
    if note:
        sample = _sample(count)
        parts = [_exact(directions, sample[part], k)[0] for part in _blocks(len(sample), count)]
        recall = float(np.mean(cosines[sample] >= np.concatenate(parts)[:, -1:] - 1e-5))
        note(f"neighbors by faiss: recall {recall:.4f} of {k} nearest, {len(sample):,} rows")
    return np.minimum(cosines, 1), rows


def nearest_more_certain(
    directions: np.ndarray, certainty: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine [N] and row [N] of the nearest more certain row; -inf and itself for the first."""
    order = np.argsort(-certainty, kind="stable")
    count = len(order)
    cosines, places = np.empty(count, np.float32), np.empty(count, np.int64)
    exact = count <= EXACT
    # Rows before a block are all more certain, and searched as a whole.
    ordered, index = (directions[order], None) if exact else (None, _inverted_file(directions))
    for block in _blocks(count, count if exact else _CELLS // _BLOCK, "duplicates"):
        part = directions[order[block]]
        first = 0 if exact else block.start
        found = part @ (part if ordered is None else ordered[: block.stop]).T
        found[:, block.start - first :][~np.tri(len(part), k=-1, dtype=bool)] = -np.inf
        places[block], cosines[block] = found.argmax(axis=1) + first, found.max(axis=1)
        if index is not None:
            if block.start:
                before, near = (each[:, 0] for each in index.search(part, 1))
                places[block] = np.where(before > cosines[block], near, places[block])
                cosines[block] = np.maximum(before, cosines[block])
            index.add(part)
    places[:1] = 0
    result, rows = np.empty_like(cosines), np.empty_like(places)
    result[order], rows[order] = np.minimum(cosines, 1), order[places]
    return result, rows


def duplicate_groups(
    directions: np.ndarray,
    threshold: float,
    *,
    certainty: np.ndarray | None = None,
    note: Note | None = None,
) -> np.ndarray:
    """For each row, the row of its group of near-duplicates that is kept, int64 [N].

    All rows of a group have at least the cosine `threshold` to its most certain row: a chain of
    similar images is not one group. `certainty` [N] is for instance the concentration; by default
    earlier rows are more certain. `note`: see `nearest`.
    """
    sure = np.zeros(len(directions)) if certainty is None else certainty
    cosines, rows = nearest_more_certain(directions, sure)
    if note and len(rows) > EXACT:
        note(_recall(directions, sure, cosines, threshold))
    return keepers(directions, cosines, rows, sure, threshold, np.zeros(len(rows)))


def keepers(
    directions: np.ndarray,
    scores: np.ndarray,
    rows: np.ndarray,
    certainty: np.ndarray,
    threshold: float,
    crowd: np.ndarray,
) -> np.ndarray:
    """As `duplicate_groups`, by `scores` with more certain `rows`: cosine minus both `crowd`."""
    kept = np.arange(len(rows))
    order = np.argsort(-certainty, kind="stable")
    for row in order[scores[order] >= threshold]:  # the roots of more certain rows are known
        root = kept[rows[row]]
        score = directions[row] @ directions[root] - crowd[row] - crowd[root]
        if root == rows[row] or score >= threshold:
            kept[row] = root
    return kept


def stand_out(
    directions: np.ndarray, certainty: np.ndarray, *, note: Note | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How much closer each row is to a more certain row than both are to other rows.

    Many similar images (cars, planes in the sky) have cosines as large as those of copies. So the
    score of a pair is cosine(a, b) - (c_a + c_b) / 2, where c is the cosine to the 10th nearest
    row, at most its upper quartile, which permits groups of more than 10 copies. (Compare CSLS,
    Conneau et al., 2018.) Returns scores [N], the more certain rows [N], and c / 2 [N].
    """
    count = len(directions)
    crowd = np.zeros(count, np.float32)
    if count > 2:
        crowd[:] = nearest(directions, min(NEIGHBORS, count - 1), note=note)[0][:, -1] / 2
        np.minimum(crowd, np.quantile(crowd, _CROWDED), out=crowd)
    cosines, rows = nearest_more_certain(directions, certainty)
    return cosines - crowd - crowd[rows], rows, crowd


def whiten(vectors: np.ndarray, scratch: str | os.PathLike[str]) -> np.ndarray:
    """Unit vectors without correlations [N, d], mapped from a new file: z (C + 0.1 I)^(-1/2).

    z are the `vectors` with mean 0 and variance 1 per column, C is their covariance. Components
    that vary between all images get less weight, those that only two images share get more.
    """
    size, width = vectors.shape
    total, square = vectors.sum(axis=0, dtype=np.float64), np.zeros((width, width))
    mean = (total / max(size, 1)).astype(np.float32)
    for block in _blocks(size, width):
        part = vectors[block] - mean
        square += part.T @ part
    deviation = np.sqrt(np.diag(square) / max(size, 1))
    scale = 1 / np.maximum(deviation, 1e-6 * deviation.max(initial=1e-6))
    values, axes = np.linalg.eigh(square * np.outer(scale, scale) / max(size, 1))
    turn = scale[:, None] * axes / np.sqrt(np.maximum(values, 0) + _RIDGE)
    with open(scratch, "wb") as file:
        for block in _blocks(size, width):
            part = (vectors[block] - mean) @ turn.astype(np.float32)
            part /= np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)
            file.write(np.ascontiguousarray(part, np.float32).data)
    return np.memmap(scratch, np.float32, "r", shape=(size, width))


def diverse(
    directions: np.ndarray,
    count: int,
    *,
    bonus: np.ndarray | None = None,
    chosen: Sequence[int] | np.ndarray = (),
    allowed: np.ndarray | None = None,
    threshold: float = 2.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Greedy k-center: the next row is the one with the largest 1 - cosine to its nearest choice.

    Exact for every N. Values can only fall while rows are chosen, so old values are bounds: among
    the rows with the largest old values, the next choice is certain while it beats the bound of all
    others. So many choices share one matrix product with the whole table.

    Args:
        directions: Unit vectors [N, d].
        count: Number of rows to choose.
        bonus: Added to the value of each row, [N].
        chosen: Rows that count as already chosen.
        allowed: Which rows may be chosen, bool [N]; all by default.
        threshold: Stop when each row has at least this cosine to a choice.

    Returns:
        The rows int64 [M] in the order of choice, M at most `count`, and their cosine float32 [M]
        to the nearest earlier choice; -1 for the first, if nothing was chosen before.
    """
    size = len(directions)
    extra = np.zeros(size, np.float32) if bonus is None else bonus.astype(np.float32)
    extra = extra if allowed is None else np.where(allowed, extra, -np.inf)
    covered, fresh = np.full(size, -1, np.float32), np.asarray(chosen, np.int64)
    picked: list[int] = []
    found: list[float] = []

    def pick(row: int, cosine: float) -> None:
        picked.append(row)
        found.append(cosine)
        extra[row] = -np.inf
        bar.update()

    with Progress(count, unit="image", description="diverse", brief=True) as bar:
        if not len(fresh) and count and size:  # the first is the row closest to the mean
            center = directions.sum(axis=0, dtype=np.float64)
            center = (center / max(np.linalg.norm(center), 1e-12)).astype(np.float32)
            pick(int((directions @ center + extra).argmax()), -1.0)
            fresh = np.array(picked)
        many = max(2048, size // 100)
        while len(picked) < count:
            for part in (fresh[at : at + _BLOCK] for at in range(0, len(fresh), _BLOCK)):
                columns = directions[part].T
                for block in _blocks(size, len(part)):
                    cosines = (directions[block] @ columns).max(1)
                    covered[block] = np.maximum(covered[block], cosines)
            bound = extra - covered
            top = np.argpartition(bound, -many)[-many:] if many < size else np.arange(size)
            bound[top] = -np.inf
            limit, start = bound.max(), len(picked)
            near, values = directions[top], covered[top]
            while len(picked) < count:
                value = extra[top] - values
                best = int(value.argmax())
                done = value[best] == -np.inf or values[best] >= threshold
                if done or value[best] < limit or len(picked) - start == _BLOCK:
                    break
                pick(int(top[best]), float(values[best]))
                np.maximum(values, near @ near[best], out=values)
            fresh = np.array(picked[start:], np.int64)
            if not len(fresh):
                break
    return np.array(picked, np.int64), np.minimum(np.array(found, np.float32), 1)


def _recall(
    directions: np.ndarray, certainty: np.ndarray, cosines: np.ndarray, threshold: float
) -> str:
    """The share of more certain neighbors that were found, measured on a sample."""
    sample = _sample(len(cosines))
    place = np.empty(len(cosines), np.int64)
    place[np.argsort(-certainty, kind="stable")] = np.arange(len(cosines))
    there = np.zeros(len(sample), bool)
    for block in _blocks(len(sample), len(cosines)):
        found = directions[sample[block]] @ directions.T
        found[place >= place[sample[block], None]] = -np.inf
        there[block] = found.max(axis=1) >= threshold
    hit = cosines[sample][there] >= threshold
    share = f"recall {hit.mean():.4f}" if there.any() else "no recall"
    return (
        f"neighbors by faiss: {share} of {there.sum():,} rows with a more certain neighbor above "
        f"{threshold:.4f}, in a sample of {len(sample):,}"
    )


def _inverted_file(directions: np.ndarray) -> Any:
    """An empty inverted file whose lists partition the directions."""
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            f"{len(directions):,} rows: neighbors among more than {EXACT:,} need faiss: "
            "pip install 'tfvmf[select]'"
        ) from error
    lists, width = int(len(directions) ** 0.5), directions.shape[1]
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, 64
    index.train(directions[_sample(len(directions), 64 * lists)])
    index.nprobe = min(_PROBES, lists)
    return index


def _sample(count: int, most: int = _SAMPLE) -> np.ndarray:
    """A sample of rows, in order."""
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


def _blocks(count: int, width: int, what: str = "") -> Iterator[slice]:
    """Slices of rows, so that a block of `width` columns has at most `_CELLS` cells."""
    step = max(1, _CELLS // max(width, 1))
    bar = Progress(count, unit="row", description=what, brief=True) if what else None
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
        if bar:
            bar.update(min(step, count - start))
    if bar:
        bar.__exit__()


def _exact(directions: np.ndarray, own: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest cosines of the rows `own` to all others, descending, and their rows.

    They are in the k groups of columns with the largest maxima, or in the remaining columns.
    """
    values = directions[own] @ directions.T
    size, count = values.shape
    values[np.arange(size), own] = -np.inf
    groups = count // _GROUP
    columns = np.broadcast_to(np.arange(count), values.shape)
    if groups > k:
        maxima = values[:, : groups * _GROUP].reshape(size, _GROUP, groups).max(axis=1)
        top = np.argpartition(maxima, -k, axis=1)[:, -k:]
        inside = top[:, None, :] + groups * np.arange(_GROUP)[:, None]
        columns = np.concatenate([inside.reshape(size, -1), columns[:, groups * _GROUP :]], axis=1)
        values = np.take_along_axis(values, columns, axis=1)
    part = np.argpartition(values, -k, axis=1)[:, -k:]
    cosines = np.take_along_axis(values, part, axis=1)
    # Ties are in row order, so that the same table gives the same answer everywhere.
    rows = np.take_along_axis(columns, part, axis=1)
    order = np.lexsort((rows, -cosines), axis=1)
    return np.take_along_axis(cosines, order, axis=1), np.take_along_axis(rows, order, axis=1)
