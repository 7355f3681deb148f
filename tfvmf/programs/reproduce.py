"""Makes a table or figure of the paper; existing runs are reused.

  tfvmf reproduce table3 --budget=digits
  tfvmf reproduce table1 --budget=cpu --data_dir=DIR --dry_run
  tfvmf reproduce all --budget=cpu --data_dir=DIR --seeds=3

Experiments: table1 (Spearman correlations), table2 (foreign images), table3 (frameworks), table4
(dimensions), table5 (networks, of the appendix), pearson (of the appendix), figure1 (the
distribution), figure2 (examples and failures), figure3 (further augmentations), figure4 (along
training), and all, which share their runs. Budgets: digits (minutes, needs no data), cpu
(hours, CIFAR-10), paper (its settings, needs a GPU).

Prints the plan first: which runs are needed, and how long each will take. To continue a stopped
command, enter it again. Writes Markdown, CSV, LaTeX and a picture for each experiment.
"""

import textwrap

from absl import flags

from tfvmf.evaluation.scores import check_known
from tfvmf.programs import cli
from tfvmf.reproduction.experiments import BUDGETS, EXPERIMENTS, all_runs, sources

ARGUMENTS = ("experiment",)
REQUIRED = ("experiment",)
FLAGS: cli.Flags = {
    **dict.fromkeys(("data_dir", "download", "max_pixels"), ""),
    "max_images": "number of test images to measure; 0 for the budget's number",
    "workdir": "directory of runs and outputs; runs/reproduce/<budget> by default",
    "seed": "seed of all runs; 0 by default",
    "experiment": ("", f"one of {', '.join(EXPERIMENTS)}, or all", [*EXPERIMENTS, "all"]),
    "budget": ("digits", f"how much to spend: {', '.join(BUDGETS)}", [*BUDGETS]),
    "dry_run": (False, "print the plan, and stop"),
    "seeds": (1, "number of seeds; several give mean and standard deviation", 1),
    "repeat": ("", "runs to repeat with further seeds, separated by commas; all by default"),
    "reference_encoder": ("", "a pretrained encoder for a further row, as fit-kappa takes it"),
    "results": ("", "directory that also keeps results; those of the same settings are reused"),
    "strategy": ("default", "train on one device, or on all (mirrored)", ["default", "mirrored"]),
}


def main(values: flags.FlagValues) -> None:
    """Makes tables and figures and prints them."""
    budget, seed = BUDGETS[values.budget], values.seed or 0
    repeat = cli.listed(values.repeat)
    check_known("repeat", repeat, all_runs(budget))
    name = budget.name + (f"-seed{seed}" if seed else "")
    if not values.dry_run:
        cli.download(values, sources(values.experiment, budget))
    cli.import_tensorflow()
    from tfvmf.posthoc.kappa import kind_of
    from tfvmf.reproduction import execute
    from tfvmf.reproduction.plan import Workspace

    if values.reference_encoder:
        kind_of(values.reference_encoder)  # errors now, not after hours
    workspace = Workspace(
        budget=budget,
        directory=values.workdir or f"runs/reproduce/{name}",
        seed=seed,
        repeat=repeat,
        reference=values.reference_encoder,
        **cli.given(values, "data_dir max_pixels max_images seeds results strategy"),
    )
    for written in execute.reproduce(values.experiment, workspace, dry_run=values.dry_run):
        print(f"\n{textwrap.fill(written.title, 80)}\n\n{written.text}")
        print("written: " + ", ".join(map(str, written.paths)))
