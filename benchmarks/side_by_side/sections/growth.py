"""How step time and memory grow with the batch, the dimension, the network and the samples.

Every point is a process of its own, whose peak memory is read, and takes turns with the same base,
ResNet-18 of width 16, batch 256, dimension 128, `simclr_vmf`: its seconds are the ratio to the base
times the base's.
"""

import dataclasses
import pathlib
from typing import Any

from benchmarks.side_by_side import problem
from benchmarks.side_by_side.bench import Bench, our_step
from benchmarks.side_by_side.interleaved import Worker
from benchmarks.side_by_side.problem import Problem
from benchmarks.side_by_side.table import Row


@dataclasses.dataclass(frozen=True)
class Point:
    """One measured size: its place on the axis, seconds per step, peak memory in MiB."""

    value: str
    seconds: float
    peak: float


@dataclasses.dataclass(frozen=True)
class Axis:
    """What grows: the values, and the settings of a step at each."""

    title: str
    points: dict[str, dict[str, Any]]


def axes(quick: bool) -> list[Axis]:
    """The four panels."""
    batches, dimensions, samples = [64, 128, 256, 512, 1024], [64, 128, 512, 2048], [1, 4, 16, 64]
    networks = ["resnet10", "resnet18", "resnet34", "resnet50"]
    if quick:
        batches, dimensions, networks, samples = [16], [16], ["resnet18"], [2]
    drawn = {
        str(count): {"method": "mc_infonce", "changes": {"mc_infonce.num_samples": count}}
        for count in samples
    }
    return [
        Axis("batch", {str(batch): {"batch": batch} for batch in batches}),
        Axis("dimension", {str(d): {"dimension": d} for d in dimensions}),
        Axis("network", {name: {"backbone": name} for name in networks}),
        Axis("samples of mc_infonce", drawn),
    ]


def measure(bench: Bench) -> list[Row]:
    """A row a panel, from its first to its last point; the plot has all."""
    base = problem.QUICK if bench.quick else Problem()
    chosen = axes(bench.quick)
    with bench.worker("base", {"base": our_step(base)}) as reference:
        seconds = bench.interleave("base", reference, share=0.5).median("base")
        panels = {axis.title: _points(bench, axis, base, reference, seconds) for axis in chosen}
    bench.details["growth"] = {
        title: [dataclasses.asdict(point) for point in points] for title, points in panels.items()
    }
    draw(bench.directory / "growth.png", panels, base)
    rows = []
    for title, points in panels.items():
        first, last = points[0], points[-1]
        span = f"{title} {last.value} against {first.value}"
        rows += [
            Row(
                section="growth",
                what=span,
                ours=1000 * last.seconds,
                theirs=1000 * first.seconds,
                unit="ms per step",
                ratio=last.seconds / first.seconds,
            ),
            Row(
                section="growth",
                what=span,
                ours=last.peak,
                theirs=first.peak,
                unit="MiB at peak",
                ratio=last.peak / first.peak,
            ),
        ]
    return rows


def _points(
    bench: Bench, axis: Axis, base: Problem, reference: Worker, seconds: float
) -> list[Point]:
    """The points of a panel; the base itself is measured already, and takes `seconds`."""
    points = []
    for value, changes in axis.points.items():
        step = our_step(base, **changes)
        if step == our_step(base):
            points.append(Point(value, seconds, reference.peak))
            continue
        with bench.worker("point", {"point": step}) as worker:
            times = bench.interleave(f"{axis.title} {value}", reference, worker, share=0.3)
            points.append(Point(value, seconds * times.ratio("point", "base"), worker.peak))
    return points


def draw(path: pathlib.Path, panels: dict[str, list[Point]], base: Problem) -> None:
    """Four panels: seconds per step on the left, peak memory on the right."""
    import matplotlib
    from matplotlib.figure import Figure

    from tfvmf.evaluation import plots

    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(9, 6), layout="constrained")
        grid = figure.subplots(2, 2)
        for (title, points), axis in zip(panels.items(), grid.flat, strict=True):
            values = [point.value for point in points]
            seconds = [point.seconds for point in points]
            gibibytes = [point.peak / 1024 for point in points]
            axis.plot(values, seconds, "o-", color=plots.BLUE)
            axis.set(xlabel=title, ylim=(0, 1.1 * max(seconds)))
            axis.set_ylabel("seconds per step", color=plots.BLUE)
            memory = axis.twinx()
            memory.plot(values, gibibytes, "s--", color=plots.ORANGE)
            memory.set_ylim(0, 1.1 * max(gibibytes))
            memory.set_ylabel("peak memory, GiB", color=plots.ORANGE)
            memory.grid(False)
            memory.spines["right"].set_visible(True)
        figure.suptitle(f"{base.title}, dimension {base.dimension}, unless the axis says otherwise")
        plots.save(figure, path)
