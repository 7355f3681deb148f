"""Lists which command made which number of the README and of docs/, and writes README's table.

    python docs/numbers.py           # the list
    python docs/numbers.py --write   # makes README's table of results again from docs/data
    python docs/numbers.py --paper=runs/reproduce/cpu   # puts what `reproduce` wrote into paper.md

`docs/data/results_*.json` hold measured results, one file per column of the table: `title`,
`commands` (in order), `machine` and `numbers`, by the names in `ROWS`. A test compares the README
with them. The tables of the other pages are printed by the commands in `PAGES`.
"""

import json
import pathlib
import shutil
import sys
from typing import Any

from tfvmf.reproduction.experiments import EXPERIMENTS

HERE = pathlib.Path(__file__).parent
README = HERE.parent / "README.md"
BEGIN, END = "<!-- numbers: made by docs/numbers.py -->\n", "<!-- end -->"
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
# Page: what its numbers are, and the command that prints them.
PAGES = {
    "training.md": (
        ("k-NN, spread, rank and kappa of eight methods", "python benchmarks/methods.py"),
        ("time and memory of mc_infonce", "python benchmarks/mc_infonce.py"),
    ),
    "kappa.md": (
        ("recipes of the concentration head", "python -m studies.kappa.study --data_dir=DIR"),
        ("the fitted head", "tfvmf fit-kappa RUN; tfvmf evaluate RUN-kappa --max_images=1000"),
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
        raise SystemExit(f"docs/numbers.py: ROWS has no line for {', '.join(sorted(unknown))}")
    lines = ["| | " + " | ".join(column["title"] for column in found) + " |"]
    lines.append("| --- |" + " ---: |" * len(found))
    for name, (meaning, form) in ROWS.items():
        cells = [column["numbers"].get(name) for column in found]
        if any(cell is not None for cell in cells):
            shown = [form.format(cell) if cell is not None else "not measured" for cell in cells]
            lines.append(f"| {meaning} | {' | '.join(shown)} |")
    commands = dict.fromkeys(command for column in found for command in column["commands"])
    return "\n".join([*lines, "", "```", *commands, "```"]) + "\n"


def replace_results(page: pathlib.Path, text: str) -> None:
    """Puts text between the marks of a page."""
    before, mark, rest = page.read_text("utf-8").partition(BEGIN)
    if not mark:
        raise SystemExit(f"docs/numbers.py: {page.name} has no line {BEGIN.strip()}")
    page.write_text(before + BEGIN + text + END + rest.partition(END)[2], "utf-8")


def write_paper(workdir: pathlib.Path) -> None:
    """Puts the tables and pictures of a reproduction into docs/paper.md."""
    found = [name for name in EXPERIMENTS if (workdir / f"{name}.md").exists()]
    if not found:
        raise SystemExit(f"docs/numbers.py: --paper={workdir} has no results of tfvmf reproduce")
    sections = []
    (HERE / "paper").mkdir(exist_ok=True)
    for name in found:
        text = "\n" + (workdir / f"{name}.md").read_text("utf-8")
        sections.append(text.replace("\n#", "\n##").replace(f"]({name}.", f"](paper/{name}."))
        shutil.copy(workdir / f"{name}.png", HERE / "paper" / f"{name}.png")
    replace_results(HERE / "paper.md", "".join(sections))


def main() -> None:
    """Prints the list; with --write or --paper, rewrites README's table or the page first."""
    for given in sys.argv[1:]:
        if given.startswith("--paper="):
            write_paper(pathlib.Path(given.partition("=")[2]).expanduser())
    if "--write" in sys.argv[1:]:
        replace_results(README, table())
    for file, column in results().items():
        print(f"README.md: {column['title']} (docs/data/{file}, {column['machine']})")
        print("".join(f"  {command}\n" for command in column["commands"]))
    for page, entries in PAGES.items():
        for what, command in entries:
            print(f"docs/{page}: {what}\n  {command}\n")


if __name__ == "__main__":
    main()
