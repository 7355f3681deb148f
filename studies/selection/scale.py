"""Time, peak memory and recall of `tfvmf select` on simulated embeddings.

    .venv/bin/python -m studies.selection.scale --rows=50000 --dimension=128
    .venv/bin/python -m studies.selection.scale --rows=1000000 --strategies=duplicates@0.95,diverse

Embeddings are a mixture of 200 von Mises-Fisher distributions, of which one row in a hundred is a
near-duplicate of another (cosine around 0.987 for 128 dimensions); Parquet shards of 50,000 rows.
Each strategy is one command in a process of its own; `duplicates@0.95` has that threshold, all
others have `--count`, and `foreign` fits a familiarity to the first shard (`--reference`). Recall
is measured here, against what all cosines say: of 2,000 rows drawn among the planted ones and all
others, the share of those with a more certain neighbor above the threshold that were listed as
duplicates; and the share of 50 choices of `diverse` that are the farthest row from all choices
before. For `duplicates` with a count it is the share of planted pairs that are listed.
"""

import csv
import os
import pathlib
import shlex
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from absl import flags
from scipy.stats import vonmises_fisher

_FLAGS = flags.FlagValues()  # of its own: tests import this beside other programs
flags.DEFINE_integer("rows", 50_000, "of the table", 1000, flag_values=_FLAGS)
flags.DEFINE_integer("dimension", 128, "of the directions", 2, flag_values=_FLAGS)
flags.DEFINE_integer("count", 5000, "how many are selected", 1, flag_values=_FLAGS)
flags.DEFINE_list(
    "strategies",
    ["uncertain", "foreign", "duplicates", "duplicates@0.95", "diverse", "typical"],
    "to measure",
    flag_values=_FLAGS,
)
flags.DEFINE_string(
    "directory", "runs/selection", "of the table and the selections", flag_values=_FLAGS
)

SHARD = 50_000
CLUSTERS = 200
THRESHOLD = 0.95


def simulate(folder: pathlib.Path, rows: int, dimension: int) -> None:
    """Writes shards, and as npy directions, kappa, and the rows that are copies or were copied."""
    rng = np.random.default_rng(0)
    values = np.empty((rows, dimension), np.float32)
    cluster = np.sort(rng.integers(0, CLUSTERS, rows))
    for number in range(CLUSTERS):
        mean = rng.normal(size=dimension)
        spread = dimension * rng.uniform(0.5, 8.0)
        place = np.flatnonzero(cluster == number)
        drawn = vonmises_fisher(mean / np.linalg.norm(mean), spread, seed=rng)
        values[place] = drawn.rvs(max(len(place), 1))[: len(place)]
    values = values[rng.permutation(rows)]
    copies, originals = np.split(rng.permutation(rows)[: 2 * (rows // 100)], 2)
    noise = rng.normal(size=(len(copies), dimension)) / np.sqrt(40 * dimension)
    copied = values[originals] + noise
    values[copies] = copied / np.linalg.norm(copied, axis=1, keepdims=True)
    kappa = rng.uniform(0, 5, rows).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(0, rows, SHARD):
        part = slice(start, start + SHARD)
        flat = pa.FixedSizeListArray.from_arrays(pa.array(values[part].reshape(-1)), dimension)
        names = [f"images/{row:07}.jpg" for row in range(rows)[part]]
        table = {"file": names, "error": [""] * len(names), "mean_direction": flat}
        path = folder / f"{start // SHARD:04}.parquet"
        pq.write_table(pa.table({**table, "concentration": kappa[part]}), path)
    np.save(folder / "directions.npy", values)
    np.save(folder / "kappa.npy", kappa)
    np.save(folder / "planted.npy", np.concatenate([copies, originals]))


def run(folder: pathlib.Path, by: str, count: int) -> tuple[float, float, float, list[int], str]:
    """Seconds, processor seconds, peak MB, the rows that were selected, and what was printed."""
    output = folder / f"{by}.csv"
    name, _, threshold = by.partition("@")
    limit = f"--threshold={threshold}" if threshold else f"--count={count}"
    command = [sys.executable, "-m", "tfvmf", "select", str(folder), f"--by={name}", limit]
    command += [f"--output={output}"]
    command += [f"--reference={folder / '0000.parquet'}"] if by == "foreign" else []
    started = time.monotonic()
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    text = (folder / "said.txt").read_text()
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{shlex.join(command)}: {text}")
    with output.open(newline="") as file:
        rows = [int(line["file"][7:14]) for line in csv.DictReader(file)]
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, rows, text


def duplicates_recall(folder: pathlib.Path, rows: list[int]) -> str:
    """See above."""
    values, kappa = (
        np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("directions", "kappa")
    )
    rng = np.random.default_rng(1)
    planted = np.load(folder / "planted.npy")
    sample = np.concatenate([rng.permutation(planted)[:1000], rng.permutation(len(values))[:1000]])
    listed = np.isin(sample, rows)
    there = np.zeros(len(sample), bool)
    for start in range(0, len(sample), 16):
        part = sample[start : start + 16]
        cosines = values[part] @ values.T
        cosines[kappa <= kappa[part, None]] = -1
        there[start : start + 16] = cosines.max(axis=1) >= THRESHOLD
    wrong = int((listed & ~there).sum())
    return f"{listed[there].mean():.4f} of {there.sum():,}, {wrong} wrong"


def pairs_recall(folder: pathlib.Path, rows: list[int]) -> str:
    """See above."""
    pairs = np.load(folder / "planted.npy").reshape(2, -1)
    return f"{np.isin(pairs, rows).any(axis=0).mean():.4f} of {pairs.shape[1]:,} pairs"


def diverse_recall(folder: pathlib.Path, rows: list[int]) -> str:
    """See above."""
    values = np.load(folder / "directions.npy", mmap_mode="r")
    covered, done, right = np.full(len(values), -1, np.float32), 0, 0
    checks = np.sort(np.random.default_rng(1).permutation(np.arange(1, len(rows)))[:50])
    for place in checks:
        centers = values[rows[done:place]].T
        for start in range(0, len(values), 20_000):
            part = slice(start, start + 20_000)
            covered[part] = np.maximum(covered[part], (values[part] @ centers).max(axis=1))
        done = place
        right += covered[rows[place]] <= covered.min() + 1e-5
    return f"{right / len(checks):.4f} of {len(checks)}"


def main() -> None:
    """Simulates, measures, prints the table."""
    name = f"{_FLAGS.rows}x{_FLAGS.dimension}"
    folder = pathlib.Path(_FLAGS.directory) / name
    if not (folder / "planted.npy").exists():
        simulate(folder, _FLAGS.rows, _FLAGS.dimension)
    print("| rows | strategy | seconds | CPU seconds / 2 | peak MB | recall |")
    print("| --- | --- | ---: | ---: | ---: | --- |", flush=True)
    recalls = {
        "duplicates": pairs_recall,
        f"duplicates@{THRESHOLD}": duplicates_recall,
        "diverse": diverse_recall,
    }
    for by in _FLAGS.strategies:
        seconds, used, memory, rows, text = run(folder, by, _FLAGS.count)
        recall = recalls[by](folder, rows) if by in recalls else ""
        print(f"| {name} | {by} | {seconds:.0f} | {used / 2:.0f} | {memory:.0f} | {recall} |")
        print("\n".join(f"    {line}" for line in text.splitlines()), file=sys.stderr, flush=True)


if __name__ == "__main__":
    _FLAGS(sys.argv)
    main()
