"""Lists which command made which number of the README and of docs/, and writes some tables.

    python docs/results.py           # the list
    python docs/results.py --write   # makes the tables and pictures of README, kappa.md, paper.md

`docs/data/results_*.json` hold measured results, one file per column of README's table: `title`,
`commands` (in order), `machine` and `numbers`, by the names in `ROWS`. The other JSON files there
are measurements of `tfvmf reproduce --results=docs/data`: the source of kappa.md and paper.md. A
test compares the pages with them. The tables of the other pages are printed by the commands in
`PAGES`.
"""

import json
import pathlib
import shutil
import sys
import tempfile
from typing import Any

from tfvmf.reproduction.experiments import BUDGETS, EXPERIMENTS

HERE = pathlib.Path(__file__).parent
README = HERE.parent / "README.md"
BEGIN, END = "<!-- numbers: made by docs/results.py -->\n", "<!-- end -->"
COLUMNS = ("results_scratch.json", "results_pretrained.json")
ROWS = {
    "knn": ("k-NN accuracy (k = 20)", "{:.3f}"),
    "linear": ("accuracy of a linear probe", "{:.3f}"),
    "spearman_kappa": ("mean Spearman over 18 corruptions, kappa", "{:.2f}"),
    "spearman_confidence": ("the same, confidence", "{:.2f}"),
    "auroc_kappa": ("AUROC of single images, clean against severity 5, kappa", "{:.3f}"),
    "auroc_confidence": ("the same, confidence", "{:.3f}"),
    "auroc_cifar100": ("AUROC of confidence against CIFAR-100", "{:.3f}"),
    "auroc_mnist": ("AUROC of confidence against MNIST", "{:.3f}"),
    "auroc_errors": ("AUROC of confidence for errors of the probe", "{:.3f}"),
    "rejected_clean": ("clean test images rejected at alpha = 0.05", "{:.3f}"),
    "accuracy_all": ("accuracy of the probe at severity 5, all images", "{:.3f}"),
    "accuracy_accepted": ("the same, accepted images", "{:.3f}"),
}
# What kappa.md compares: title of a column, and its measurement.
HEADS = {
    "the paper's head": "corruption-simclr_vmf-1122-26481c0d6ac7.json",
    "`fit-kappa`": "corruption-simclr_vmf-kappa-1-b96a8d7bb9dc.json",
}
# The runs of paper.md with three seeds, and the fingerprint of its pretrained encoder's file.
REPEATED = ("simclr_vmf", "simclr_vmf-kappa", "mc_infonce")
REFERENCE = "4beb75b4279fb64acb4b40297cefc8ec"
# Page: what its numbers are, and the command that prints them.
PAGES = {
    "training.md": (("time and memory of mc_infonce", "python benchmarks/mc_infonce.py"),),
    "kappa.md": (
        ("recipes of the concentration head", "python -m studies.kappa.study --data_dir=DIR"),
        ("what the head is taught by", "python -m studies.kappa.teaching --run=RUN --data_dir=DIR"),
        ("two heads of one encoder", "tfvmf reproduce table3 --budget=cpu --data_dir=DIR"),
    ),
    "paper.md": (("tables and figures", "tfvmf reproduce all --budget=cpu --data_dir=DIR"),),
    "vmf.md": (("errors against mpmath", "python benchmarks/vmf_accuracy.py"),),
    "scaling.md": (
        ("differences between layouts", "python -m tests.slow.equality"),
        ("cost of the global loss", "python benchmarks/global_loss.py"),
        ("rate and memory of Ray", "python benchmarks/ray_embedding.py --model=M --place=P"),
    ),
    "serving.md": (("latency and throughput", "python benchmarks/serving.py"),),
    "speed.md": (("all tables", "make bench"),),
    "pretrained.md": (("rates beside the bare network", "python benchmarks/frozen.py --run=RUN"),),
    "models.md": (("all numbers", "python tools/ship.py"),),
}


def results() -> dict[str, dict[str, Any]]:
    """The measured results that exist, by the name of their file."""
    paths = [HERE / "data" / name for name in COLUMNS]
    return {path.name: json.loads(path.read_text("utf-8")) for path in paths if path.exists()}


def table() -> str:
    """README's table in Markdown, a row for each number that is there, and its commands."""
    found = list(results().values())
    unknown = {name for column in found for name in column["numbers"]} - ROWS.keys()
    if unknown:
        raise SystemExit(f"docs/results.py: ROWS has no line for {', '.join(sorted(unknown))}")
    lines = ["| | " + " | ".join(column["title"] for column in found) + " |"]
    lines.append("| --- |" + " ---: |" * len(found))
    for name, (meaning, form) in ROWS.items():
        cells = [column["numbers"].get(name) for column in found]
        if any(cell is not None for cell in cells):
            shown = [form.format(cell) if cell is not None else "not measured" for cell in cells]
            lines.append(f"| {meaning} | {' | '.join(shown)} |")
    commands = dict.fromkeys(command for column in found for command in column["commands"])
    return "\n".join([*lines, "", "```", *commands, "```"]) + "\n"


def heads() -> str:
    """The table of kappa.md: two heads of one encoder, by corruption."""
    paths = [HERE / "data" / file for file in HEADS.values()]
    found = [json.loads(path.read_text("utf-8"))["results"] for path in paths]
    kinds = {"Spearman": ("spearman", "{:+.2f}"), "AUROC": ("auroc", "{:.3f}")}
    titles = [f"{kind}, {head}" for kind in kinds for head in HEADS]
    lines = [f"| corruption | {' | '.join(titles)} |", "| --- |" + " ---: |" * len(titles)]
    for name in found[0]["spearman"]:
        cells = [form.format(each[key][name]) for key, form in kinds.values() for each in found]
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    cells = [form.format(each[f"mean_{key}"]) for key, form in kinds.values() for each in found]
    return "\n".join([*lines, f"| **mean** | {' | '.join(cells)} |"]) + "\n"


def replace_results(page: pathlib.Path, text: str) -> None:
    """Puts text between the marks of a page."""
    before, mark, rest = page.read_text("utf-8").partition(BEGIN)
    if not mark:
        raise SystemExit(f"docs/results.py: {page.name} has no line {BEGIN.strip()}")
    page.write_text(before + BEGIN + text + END + rest.partition(END)[2], "utf-8")


def paper(directory: pathlib.Path) -> str:
    """The tables and figures of paper.md, from docs/data; writes them into a directory, too."""
    from tfvmf.reproduction import plan, reports  # they import TensorFlow

    workspace = plan.Workspace(
        budget=BUDGETS["cpu"],
        directory=directory,
        reference=REFERENCE,
        results=str(HERE / "data"),
        seeds=3,
        repeat=REPEATED,
    )
    sections = []
    for name, experiment in EXPERIMENTS.items():
        items = plan.make_plan(workspace, experiment).measurements
        reports.write(experiment, workspace, reports.of_seeds(items, workspace))
        text = "\n" + (directory / f"{name}.md").read_text("utf-8")
        text = text.replace(f"]({name}.", f"](paper/{name}.")
        text = text.replace(f"{reports.PAPER}\n\n", "")  # the page says it once
        sections.append(text.replace("\n#", "\n##"))
    return "".join(sections)


def main() -> None:
    """Prints the list; with --write, makes the tables and pictures first."""
    if "--write" in sys.argv[1:]:
        replace_results(README, table())
        replace_results(HERE / "kappa.md", heads())
        with tempfile.TemporaryDirectory() as made:
            replace_results(HERE / "paper.md", paper(pathlib.Path(made)))
            for picture in pathlib.Path(made).glob("*.png"):
                shutil.copy(picture, HERE / "paper" / picture.name)
    for file, column in results().items():
        print(f"README.md: {column['title']} (docs/data/{file}, {column['machine']})")
        print("".join(f"  {command}\n" for command in column["commands"]))
    for page, entries in PAGES.items():
        for what, command in entries:
            print(f"docs/{page}: {what}\n  {command}\n")


if __name__ == "__main__":
    main()
