"""How much of the machine the train step uses: operations per second against the best there are.

Operations are counted from the shapes of the layers (`flops.py`). The best matrix product and the
best 3x3 convolution of several sizes run in a process of their own, with oneDNN switched on, in
turn with the step.
"""

from collections.abc import Sequence

from benchmarks.side_by_side import flops, problem
from benchmarks.side_by_side.bench import Bench, Candidates, our_step
from benchmarks.side_by_side.problem import Problem
from benchmarks.side_by_side.table import Row

_GIGA = 1e9
MATRICES: Sequence[int] = (512, 1024, 2048)
# Batch, side, channels: the four stages of a ResNet-18 of width 64, and wider.
CONVOLUTIONS: Sequence[tuple[int, int, int]] = (
    (32, 32, 64),
    (32, 16, 128),
    (32, 8, 256),
    (32, 16, 256),
)


def measure(bench: Bench) -> list[Row]:
    """GFLOP/s of the step, as a share of the best product's and the best convolution's."""
    problems = [Problem(), Problem(width=64, batch=32)]
    matrices, convolutions = MATRICES, CONVOLUTIONS
    if bench.quick:
        problems, matrices, convolutions = [problem.QUICK], (64,), ((2, 8, 8),)
    operations: dict[str, float] = {}
    steps: Candidates = {}
    for sizes in problems:
        operations[sizes.title] = flops.train_step(sizes)
        steps[sizes.title] = our_step(sizes)
    peaks: Candidates = {}
    for size in matrices:
        peaks[f"matmul {size}"] = ("benchmarks.side_by_side.peak:matmul", {"size": size})
        operations[f"matmul {size}"] = 2 * size**3
    for batch, side, channels in convolutions:
        name = f"conv {batch}x{side}x{side}x{channels}"
        shape = {"batch": batch, "side": side, "channels": channels}
        peaks[name] = ("benchmarks.side_by_side.peak:convolution", shape)
        operations[name] = 18 * batch * side**2 * channels**2
    with (
        bench.worker("steps", steps) as ours,
        bench.worker("peaks", peaks, {"TF_ENABLE_ONEDNN_OPTS": "1"}) as best,
    ):
        times = bench.interleave("limit", ours, best)
    rates = {name: count / times.median(name) / _GIGA for name, count in operations.items()}
    bench.details["limit"]["gflops"] = rates
    rows = []
    for sizes in problems:
        for kind, called in (("matmul", "matrix product"), ("conv", "3x3 convolution")):
            peak = max((name for name in peaks if name.startswith(kind)), key=rates.__getitem__)
            work = operations[sizes.title] / operations[peak]
            rows.append(
                Row(
                    section="limit",
                    what=f"train step, {sizes.title}, against the best {called} ({peak})",
                    ours=rates[sizes.title],
                    theirs=rates[peak],
                    unit="GFLOP/s",
                    ratio=work * times.ratio(peak, sizes.title),
                )
            )
    return rows
