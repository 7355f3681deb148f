"""What training adds to the bare step: making views, and waiting for images."""

from benchmarks.side_by_side import problem
from benchmarks.side_by_side.bench import Bench, our_step
from benchmarks.side_by_side.problem import Problem
from benchmarks.side_by_side.table import Row

_MAKER = "benchmarks.side_by_side.tfvmf_step"


def measure(bench: Bench) -> list[Row]:
    """Rates of the augmentation alone and of `training.loop`, as shares of the step's."""
    sizes = problem.QUICK if bench.quick else Problem()
    views = {"batch": sizes.batch, "image_size": sizes.image_size}
    training = {
        "bare": our_step(sizes),
        "resident": our_step(sizes, augmented=True),
        "loop": (f"{_MAKER}:loop", sizes.settings()),
    }
    with (
        bench.worker("augment", {"augment": (f"{_MAKER}:augment", views)}) as alone,
        bench.worker("pipeline", training) as worker,
    ):
        times = bench.interleave(f"pipeline, {sizes.title}", alone, worker, turn=2.0, share=8.0)

    def row(what: str, name: str, other: str, *, views: int = 1, goal: str = "") -> Row:
        images = views * sizes.batch
        return Row(
            section="pipeline",
            what=what,
            ours=images / times.median(name),
            theirs=images / times.median(other),
            unit="views/s" if views == 2 else "pairs/s",
            ratio=times.ratio(other, name),
            goal=goal,
        )

    return [
        row("augmentation alone against the bare step", "augment", "bare", views=2),
        row(f"training loop against the bare step, {sizes.title}", "loop", "bare", goal=">= 0.9"),
        row("training loop against step and augmentation on a resident batch", "loop", "resident"),
    ]
