"""The bare train step, views already made, against the paper's program in PyTorch.

The first line of a group is measured against all variants of the program, the other lines against
the two that were fastest on it; the faster one is the opponent. A network of width 64 is 16 times
the work, so that its group starts with a batch of 32, and ResNet-50 gets no other.
"""

import dataclasses
from collections.abc import Sequence

from benchmarks.side_by_side import problem
from benchmarks.side_by_side.bench import Bench, Candidates, our_step
from benchmarks.side_by_side.interleaved import Times
from benchmarks.side_by_side.problem import Problem
from benchmarks.side_by_side.table import Row
from benchmarks.side_by_side.variants import VARIANTS

GROUPS = (
    tuple(Problem(width=16, batch=batch) for batch in (128, 256)),
    tuple(Problem(width=64, batch=batch) for batch in (32, 128, 256)),
    (
        *(Problem(backbone="resnet50", batch=batch) for batch in (128, 256)),
        Problem(backbone="resnet50", width=64, batch=32),
    ),
)
TRUNK = tuple(  # that of cifar10_cpu, on its views, and the narrower one of `reproduce`
    Problem(backbone="convnet8", width=width, batch=256, image_size=24) for width in (16, 24)
)
GOALS = {16: ">= 1.3", 24: ">= 1.3", 64: ">= 1.15"}


def measure(bench: Bench) -> list[Row]:
    """One row per network and batch: image pairs per second."""
    groups = ((problem.QUICK,),) if bench.quick else GROUPS
    return [*_rows(bench, groups, "train_step"), _passes(bench, groups[0][0])]


def measure_trunk(bench: Bench) -> list[Row]:
    """The same of the network for CPUs."""
    small = dataclasses.replace(problem.QUICK, backbone="convnet8")
    return _rows(bench, ((small,),) if bench.quick else (TRUNK,), "trunk")


def _rows(bench: Bench, groups: Sequence[Sequence[Problem]], section: str) -> list[Row]:
    rows = []
    for group in groups:
        variants = [name for name, v in VARIANTS.items() if not (bench.quick and v.compiled)]
        for sizes in group:
            row, ranked = _compare(bench, sizes, variants)
            rows.append(dataclasses.replace(row, section=section))
            variants = ranked[:2]
    return rows


def _passes(bench: Bench, sizes: Problem) -> Row:
    """Our step, which has a pass for every view, against one pass of both: other threads."""
    together = our_step(sizes, changes={"model.one_pass": True})
    with (
        bench.worker("tfvmf", {"tfvmf": our_step(sizes)}) as ours,
        bench.worker("one_pass", {"one pass": together}) as other,
    ):
        times = bench.interleave(f"passes, {sizes.title}", ours, other)
    return _row(sizes, times, "one pass", "a pass for every view against one pass of both")


def _compare(bench: Bench, sizes: Problem, variants: list[str]) -> tuple[Row, list[str]]:
    """Our step against variants of theirs; gives also these, the fastest first."""
    theirs: Candidates = {
        name: (
            "benchmarks.side_by_side.torch_simclr:train_step",
            {"variant": name, **sizes.settings()},
        )
        for name in variants
    }
    # What torch.compile makes takes minutes, and is kept.
    cache = {"TORCHINDUCTOR_CACHE_DIR": str((bench.directory / "torchinductor").resolve())}
    with (
        bench.worker("tfvmf", {"tfvmf": our_step(sizes)}) as ours,
        bench.worker("torch", theirs, cache) as torch,
    ):
        times = bench.interleave(sizes.title, ours, torch, share=2.0)
    ranked = times.ranked(variants)
    what = f"train step against PyTorch ({VARIANTS[ranked[0]].title})"
    return _row(sizes, times, ranked[0], what, goal=GOALS.get(sizes.width, "")), ranked


def _row(sizes: Problem, times: Times, other: str, what: str, *, goal: str = "") -> Row:
    """Our step against another candidate."""
    return Row(
        section="train_step",
        what=f"{sizes.title}: {what}",
        ours=sizes.batch / times.median("tfvmf"),
        theirs=sizes.batch / times.median(other),
        unit="pairs/s",
        ratio=times.ratio(other, "tfvmf"),
        goal=goal,
    )
