"""What uncertainty costs, by method: in training and at inference."""

from benchmarks.side_by_side import problem
from benchmarks.side_by_side.bench import Bench, our_step
from benchmarks.side_by_side.interleaved import Times
from benchmarks.side_by_side.problem import Problem
from benchmarks.side_by_side.table import Row

MEMBERS = 5
# Score -> how it is called in the table; passes and views are the defaults of tfvmf evaluate.
SCORES = {
    "kappa": "kappa",
    "dropout": "dropout, 16 passes",
    "ensemble": f"ensemble of {MEMBERS}",
    "agreement": "agreement of 8 views",
}


def measure(bench: Bench) -> list[Row]:
    """Time of train steps over SimCLR's, then images per second over the bare forward pass's."""
    sizes = problem.QUICK if bench.quick else Problem()
    return [*_training(bench, sizes), *_inference(bench, sizes)]


def _training(bench: Bench, sizes: Problem) -> list[Row]:
    # A difference of 3 % is to be seen, among others of 10 % from round to round: two alone, long.
    simclr = our_step(sizes, method="simclr")
    pair = {"simclr": simclr, "simclr_vmf": our_step(sizes, method="simclr_vmf")}
    others = {
        "simclr": simclr,
        "mc_infonce": our_step(sizes, method="mc_infonce"),
        "dropout": our_step(sizes, method="simclr", changes={"model.dropout": 0.1}),
    }
    with bench.worker("pair", pair) as worker:
        close = bench.interleave(f"simclr_vmf, {sizes.title}", worker, share=6.0)
    with bench.worker("methods", others) as worker:
        far = bench.interleave(f"methods, {sizes.title}", worker, share=1.5)

    def row(what: str, times: Times, name: str, *, times_as_much: int = 1, goal: str = "") -> Row:
        return Row(
            section="uncertainty",
            what=f"{what} against simclr, {sizes.title}",
            ours=1000 * times_as_much * times.median(name),
            theirs=1000 * times.median("simclr"),
            unit="ms per step",
            ratio=times_as_much * times.ratio(name, "simclr"),
            goal=goal,
        )

    return [
        row("training simclr_vmf", close, "simclr_vmf", goal="<= 1.03"),
        row("training mc_infonce, 64 samples,", far, "mc_infonce"),
        row("training with dropout", far, "dropout"),
        row(f"training {MEMBERS} members (by definition)", far, "simclr", times_as_much=MEMBERS),
    ]


def _inference(bench: Bench, sizes: Problem) -> list[Row]:
    images = 8 if bench.quick else 250  # what evaluation passes at a time
    settings = {"images": images, **sizes.settings()}
    module = "benchmarks.side_by_side.tfvmf_scores"
    with bench.worker(
        "scores",
        {
            "forward": (f"{module}:forward", {"method": "simclr", **settings}),
            **{
                name: (f"{module}:score", {"name": name, "members": MEMBERS, **settings})
                for name in SCORES
            },
        },
    ) as worker:
        times = bench.interleave(f"scores, {sizes.network}", worker)
    return [
        Row(
            section="uncertainty",
            what=f"{title} against the bare forward pass of simclr, {sizes.network}",
            ours=images / times.median(name),
            theirs=images / times.median("forward"),
            unit="images/s",
            ratio=times.ratio("forward", name),
        )
        for name, title in SCORES.items()
    ]
