"""Tables of the suite agreement."""

import pathlib
from typing import Any

from tfvmf.data.corruptions import SEVERITIES
from tfvmf.files import write_json, write_text

_COLUMNS = ("images", "kappa", "predicted", "agreement", "error", "rank")


def write(directory: pathlib.Path, results: dict[str, Any]) -> None:
    """Writes `table.csv`, `table.md` and, last, `results.json`."""
    write_text(directory / "table.csv", table_csv(results))
    write_text(directory / "table.md", table_markdown(results))
    write_json(directory / "results.json", results)


def table_csv(results: dict[str, Any]) -> str:
    """A line a set of images: clean, every corruption and severity, all of them, foreign sets."""
    lines = [",".join(["images_of", "severity", *_COLUMNS])]

    def add(name: str, severity: int | str, entry: dict[str, Any]) -> None:
        numbers = ("" if entry[key] is None else f"{entry[key]:.6g}" for key in _COLUMNS)
        lines.append(",".join([f'"{name}"', str(severity), *numbers]))

    add("clean", 0, results["clean"])
    for name, entries in results["calibration"].items():
        for severity, entry in zip(SEVERITIES, entries, strict=True):
            add(name, severity, entry)
    add("corrupted", "", results["corrupted"])
    for spec, entry in results["out"].items():
        add(spec, "", entry)
    return "\n".join(lines) + "\n"


def table_markdown(results: dict[str, Any]) -> str:
    """What kappa predicts and what is measured, then both scores against severity."""
    scale = results["scale"]
    parts = [
        f"# Kappa and the agreement of views: {results['method']} on {results['data']}",
        f"{results['images']:,} images, step {results['step']}; {results['corruptions']}.",
        f"Agreement: the mean cosine E[cos] of the directions of {results['views']} augmented "
        f"views, measured. Foretold: {scale}, from the image alone. The error is the mean of "
        f"|{scale} - E[cos]| over the images (few views make the measurement itself uncertain); "
        "the rank correlation is Spearman's, of kappa with E[cos] over the images.",
    ]
    if "note" in results:
        parts.append(f"Note: {results['note']}.")
    parts.append(_calibration(results))
    parts.append(_correlations(results))
    if results["out"]:
        parts.append(_foreign(results))
    return "\n\n".join(parts) + "\n"


def _calibration(results: dict[str, Any]) -> str:
    lines = [
        "## What kappa predicts\n",
        "| images | predicted | agreement | error | rank correlation |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    named = {"clean": results["clean"], "corrupted": results["corrupted"], **results["out"]}
    for name, entry in named.items():
        rank = "" if entry["rank"] is None else f"{entry['rank']:.3f}"
        numbers = " | ".join(f"{entry[key]:.3f}" for key in ("predicted", "agreement", "error"))
        lines.append(f"| {name} | {numbers} | {rank} |")
    return "\n".join(lines)


def _correlations(results: dict[str, Any]) -> str:
    errors = " | ".join(f"error at {severity}" for severity in SEVERITIES)
    lines = [
        "## Spearman correlation with severity (six points), and the error at each severity\n",
        f"| corruption | kappa | agreement | {errors} |",
        "| --- |" + " ---: |" * (2 + len(SEVERITIES)),
    ]
    kappa, agreement = results["spearman"]["kappa"], results["spearman"]["agreement"]
    for name, entries in results["calibration"].items():
        numbers = " | ".join(f"{entry['error']:.3f}" for entry in entries)
        words = name.replace("_", " ")
        lines.append(f"| {words} | {kappa[name]:.3f} | {agreement[name]:.3f} | {numbers} |")
    means = f"**{results['kappa_spearman']:.3f}** | **{results['agreement_spearman']:.3f}**"
    lines.append(f"| **mean** | {means} |" + " |" * len(SEVERITIES))
    return "\n".join(lines)


def _foreign(results: dict[str, Any]) -> str:
    lines = [
        "## AUROC with foreign images positive\n",
        "| foreign | kappa | agreement |",
        "| --- | ---: | ---: |",
    ]
    for spec, entry in results["out"].items():
        lines.append(f"| {spec} | {entry['kappa_auroc']:.3f} | {entry['agreement_auroc']:.3f} |")
    return "\n".join(lines)
