"""The suite cifar10c against the bare forward pass, and the generator of corrupted images."""

from benchmarks.side_by_side import problem
from benchmarks.side_by_side.bench import Bench
from benchmarks.side_by_side.problem import Problem
from benchmarks.side_by_side.table import Row

_SETS = 18 * 5  # corruptions and severities
_MAKER = "benchmarks.side_by_side.tfvmf_scores"


def measure(bench: Bench) -> list[Row]:
    """Images per second.

    The published generator is not here: its rate is a number that was measured once, on one core of
    another machine.
    """
    from benchmarks import corruption_speed  # defines flags of its own

    sizes = problem.QUICK if bench.quick else Problem()
    images = 8 if bench.quick else 250  # what evaluation passes at a time
    settings = {"images": images, **sizes.settings()}
    with bench.worker(
        "suite",
        {
            "forward": (f"{_MAKER}:forward", {"method": "simclr_vmf", **settings}),
            "generated": (f"{_MAKER}:suite", settings),
            "corrupt": (f"{_MAKER}:corrupt", {"images": images, "image_size": sizes.image_size}),
        },
    ) as worker:
        times = bench.interleave(f"suite, {sizes.network}", worker, turn=3.0)
    forward = images / times.median("forward")

    def suite(name: str, what: str) -> Row:
        passed = _SETS + 1
        return Row(
            section="evaluation",
            what=f"suite cifar10c, {what}, against the bare forward pass, {sizes.network}",
            ours=passed * images / times.median(name),
            theirs=forward,
            unit="images/s",
            ratio=passed * times.ratio("forward", name),
            goal=">= 0.85",
        )

    published = corruption_speed.PUBLISHED_RATE
    made = _SETS * images / times.median("corrupt")
    return [
        suite("generated", "corruptions generated"),
        Row(
            section="evaluation",
            what=f"generator of corruptions, {bench.threads} cores, against the published on one",
            ours=made,
            theirs=published,
            unit="images/s",
            ratio=made / published,
        ),
    ]
