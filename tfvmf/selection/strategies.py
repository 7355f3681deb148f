"""Strategies on directions [N, d], rows of unit length: neighbors, duplicates, diversity.

Exact up to `EXACT` rows; above that nearest neighbors come from an inverted file of faiss, and
their recall is measured on a sample. Arrays may be memory maps: they are read block by block.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tfvmf.errors import UserError
from tfvmf.progress import Progress

EXACT = 50_000
_CELLS = 1 << 24  # cosines in memory at a time: 64 MB
_PROBES = 16  # lists of the inverted file that are searched, of about sqrt(N)
_BLOCK = 4096  # queries at a time
_SAMPLE = 2000  # rows whose exact answer tells the recall
_GROUP = 64  # columns of which one maximum is taken

Note = Callable[[str], None]


def nearest(
    directions: np.ndarray, k: int, *, note: Note | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The k rows with the largest cosine to each row, itself left out.

    Args:
        directions: Unit vectors [N, d].
        k: How many, below N.
        note: Is told the recall where the answer is approximate.

    Returns:
        Cosines float32 [N, k] in falling order, and their rows int64 [N, k].
    """
    count = len(directions)
    if not 1 <= k < count:
        raise ValueError(f"k must be between 1 and {count - 1} for {count} rows, not {k}")
    cosines, rows = np.empty((count, k), np.float32), np.empty((count, k), np.int64)
    if count <= EXACT:
        for block in _blocks(count, count, "neighbors"):
            found = directions[block] @ directions.T
            found[np.arange(len(found)), np.arange(block.start, block.stop)] = -np.inf
            cosines[block], rows[block] = _largest(found, k)
        return np.minimum(cosines, 1), rows
    index = _inverted_file(directions)
    for block in _blocks(count, _CELLS // _BLOCK, "index"):
        index.add(directions[block])
    for block in _blocks(count, _CELLS // _BLOCK, "neighbors"):
        found, near = index.search(directions[block], k + 1)
        own = near == np.arange(block.start, block.stop)[:, None]
        own[~own.any(axis=1), -1] = True  # of copies more than k, the row may not be among them
        cosines[block], rows[block] = found[~own].reshape(-1, k), near[~own].reshape(-1, k)
    if note:
        sample = _sample(count)
        exact = np.empty((len(sample), k), np.float32)
        for block in _blocks(len(sample), count):
            found = directions[sample[block]] @ directions.T
            found[np.arange(len(found)), sample[block]] = -np.inf
            exact[block] = _largest(found, k)[0]
        recall = float(np.mean(cosines[sample] >= exact[:, -1:] - 1e-5))
        note(f"neighbors by faiss: recall {recall:.4f} of {k} nearest, {len(sample):,} rows")
    return np.minimum(cosines, 1), rows


def nearest_more_certain(
    directions: np.ndarray, certainty: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each row the nearest among the rows that are more certain; ties count in row order.

    Args:
        directions: Unit vectors [N, d].
        certainty: [N].

    Returns:
        Cosines float32 [N], and their rows int64 [N]. The most certain row has -inf, and itself.
    """
    order = np.argsort(-certainty, kind="stable")
    count = len(order)
    cosines, places = np.empty(count, np.float32), np.empty(count, np.int64)
    if count <= EXACT:
        ordered = directions[order]
        for block in _blocks(count, count, "duplicates"):
            found = ordered[block] @ ordered[: block.stop].T
            found[:, block][_not_before(len(found))] = -np.inf
            places[block] = found.argmax(axis=1)
            cosines[block] = found.max(axis=1)
    else:
        index = _inverted_file(directions)  # of the rows before a block: all of them more certain
        for block in _blocks(count, _CELLS // _BLOCK, "duplicates"):
            part = directions[order[block]]
            found = part @ part.T
            found[_not_before(len(found))] = -np.inf
            places[block] = found.argmax(axis=1) + block.start
            cosines[block] = found.max(axis=1)
            if block.start:
                before, near = (each[:, 0] for each in index.search(part, 1))
                better = before > cosines[block]
                cosines[block] = np.where(better, before, cosines[block])
                places[block] = np.where(better, near, places[block])
            index.add(part)
    if count:
        cosines[0], places[0] = -np.inf, 0
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
    """Groups of near-duplicates, each around its most certain row.

    A chain of images of which each resembles the next is not one group: every row of a group has
    at least the cosine `threshold` to the row that is kept.

    Args:
        directions: Unit vectors [N, d].
        threshold: Smallest cosine of a duplicate, in [-1, 1].
        certainty: [N], for instance the concentration; by default earlier rows are more certain.
        note: See `nearest`.

    Returns:
        For each row the row int64 [N] that is kept of its group: its own where it is that one, or
        alone.
    """
    sure = np.zeros(len(directions)) if certainty is None else certainty
    return keepers(directions, *nearest_more_certain(directions, sure), sure, threshold, note=note)


def keepers(
    directions: np.ndarray,
    cosines: np.ndarray,
    rows: np.ndarray,
    certainty: np.ndarray,
    threshold: float,
    *,
    note: Note | None = None,
) -> np.ndarray:
    """`duplicate_groups` from what `nearest_more_certain` returned."""
    kept = np.arange(len(rows))
    order = np.argsort(-certainty, kind="stable")
    for row in order[cosines[order] >= threshold]:  # the root of a more certain row is known
        root = kept[rows[row]]
        if root == rows[row] or directions[row] @ directions[root] >= threshold:
            kept[row] = root
    if note and len(rows) > EXACT:
        note(_recall(directions, order, cosines[order], threshold))
    return kept


def total(directions: np.ndarray) -> np.ndarray:
    """The sum of all rows [d], in float64."""
    blocks = _blocks(len(directions), _BLOCK)
    return sum(
        (directions[block].sum(axis=0, dtype=np.float64) for block in blocks),
        np.zeros(directions.shape[1]),
    )


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

    Exact for every N. A value can only fall while rows are chosen, so an old one is a bound: among
    the rows with the largest old values the next choice is certain as long as it beats the bound
    of all others. Many choices share one matrix product with the whole table that way.

    Args:
        directions: Unit vectors [N, d].
        count: How many to choose.
        bonus: [N], added to the value of each row.
        chosen: Rows that count as chosen before.
        allowed: bool [N], which rows may be chosen; all by default.
        threshold: Stop when each row has at least this cosine to a choice.

    Returns:
        The rows int64 [M] in the order of choice, M at most `count`, and their cosine float32 [M]
        to the nearest choice before; that of the first is -1 where nothing was chosen before.
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
        if not len(fresh) and count and size:  # first of all the row next to the mean
            center = total(directions)
            center = (center / max(np.linalg.norm(center), 1e-12)).astype(np.float32)
            pick(int((directions @ center + extra).argmax()), -1.0)
            fresh = np.array(picked)
        many = max(2048, size // 100)
        while len(picked) < count:
            for part in (fresh[at : at + _BLOCK] for at in range(0, len(fresh), _BLOCK)):
                columns = directions[part].T
                for block in _blocks(size, len(part)):
                    np.maximum(
                        covered[block], (directions[block] @ columns).max(1), out=covered[block]
                    )
            bound = extra - covered
            top = np.argpartition(bound, -many)[-many:] if many < size else np.arange(size)
            bound[top] = -np.inf
            limit, start = bound.max(), len(picked)
            near, values, best = directions[top], covered[top], 0
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
    directions: np.ndarray, order: np.ndarray, cosines: np.ndarray, threshold: float
) -> str:
    """What share of the neighbors was found; `cosines` are in the order of certainty."""
    sample = _sample(len(order))
    exact = np.full(len(sample), -np.inf, np.float32)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    for block in _blocks(len(sample), len(order)):
        found = directions[order[sample[block]]] @ directions.T
        found[place >= sample[block, None]] = -np.inf
        exact[block] = found.max(axis=1)
    there = exact >= threshold
    hit = cosines[sample][there] >= threshold
    share = f"recall {hit.mean():.4f}" if there.any() else "no recall"
    return (
        f"neighbors by faiss: {share} of {there.sum():,} rows with a more certain neighbor above "
        f"{threshold:.4f}, in a sample of {len(sample):,}"
    )


def _inverted_file(directions: np.ndarray) -> Any:
    """An empty inverted file whose lists divide the directions."""
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            f"{len(directions):,} rows: above {EXACT:,} neighbors are searched by faiss: "
            "pip install 'tfvmf[select]'"
        ) from error
    lists = int(len(directions) ** 0.5)
    width = directions.shape[1]
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, 64
    index.train(directions[_sample(len(directions), 64 * lists)])
    index.nprobe = min(_PROBES, lists)
    return index


def _not_before(count: int) -> np.ndarray:
    """Bools [count, count]: the column is the row itself or follows it."""
    places = np.arange(count)
    return places >= places[:, None]


def _sample(count: int, most: int = _SAMPLE) -> np.ndarray:
    """Some rows, in order."""
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


def _blocks(count: int, width: int, what: str = "") -> Iterator[slice]:
    """Slices of rows such that a block of `width` columns has at most `_CELLS` cells."""
    step = max(1, _CELLS // max(width, 1))
    bar = Progress(count, unit="row", description=what, brief=True) if what else None
    for start in range(0, count, step):
        stop = min(start + step, count)
        yield slice(start, stop)
        if bar:
            bar.update(stop - start)
    if bar:
        bar.__exit__()


def _largest(values: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest of each row in falling order, and their columns.

    They are in the k groups of columns with the largest maxima, or in the columns that are left.
    """
    size, count = values.shape
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
    # Equal cosines in the order of rows: the same table gives the same answer everywhere.
    rows = np.take_along_axis(columns, part, axis=1)
    order = np.lexsort((rows, -cosines), axis=1)
    return np.take_along_axis(cosines, order, axis=1), np.take_along_axis(rows, order, axis=1)
