"""All results of a run on one page that opens from disk: no network, no other files."""

import base64
import html
import io
import pathlib
from typing import Any

import keras
import markdown
import numpy as np
import tensorflow as tf
from PIL import Image

from tfvmf.config import flatten
from tfvmf.evaluation import gallery, paper
from tfvmf.evaluation.run import Evaluation
from tfvmf.files import write_text

# (suite, key of its results, words, the paper's value or None)
_HEADLINES = (
    ("probe", "knn_20_accuracy", "k-NN accuracy (20)", None),
    ("probe", "linear_accuracy", "linear accuracy", None),
    ("cifar10c", "mean_spearman", "mean Spearman with corruption", "TABLE_1"),
    ("failure", "auroc", "AUROC of failures", None),
    ("failure", "largest_p", "largest p, right against wrong", "FAILURE"),
)

_TITLES = {
    "curves": "Training",
    "probe": "Features",
    "failure": "Failures",
    "ood": "Foreign images",
    "cifar10c": "Corruptions",
    "projector": "Projector",
    "agreement": "Agreement of views",
}

_STYLE = """
:root { --ink: #1c2330; --soft: #5d6675; --line: #e1e5ea; --blue: #2f6db3; --wash: #f6f8fa; }
* { box-sizing: border-box; }
body { font: 15px/1.55 system-ui, sans-serif; color: var(--ink); margin: 0; background: #fff; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 27px; margin: 0 0 4px; } h2 { font-size: 20px; margin: 44px 0 8px; }
h2 { padding-top: 14px; border-top: 1px solid var(--line); } h3 { font-size: 16px; }
p.lead, .note { color: var(--soft); margin: 0 0 20px; }
nav { margin: 14px 0 22px; } nav a { color: var(--blue); margin-right: 16px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; }
.tile { background: var(--wash); border-radius: 8px; padding: 12px 14px; }
.tile b { display: block; font-size: 25px; font-weight: 600; }
.tile span { color: var(--soft); font-size: 13px; }
.strip { display: flex; flex-wrap: wrap; gap: 8px; margin: 6px 0 18px; }
.strip figure { margin: 0; width: 82px; }
.strip img { width: 82px; height: 82px; image-rendering: pixelated; border-radius: 4px; }
.strip figcaption { font-size: 11px; line-height: 1.3; color: var(--soft); text-align: center; }
table { border-collapse: collapse; margin: 10px 0 18px; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); font-size: 14px; }
th { text-align: left; color: var(--soft); font-weight: 600; vertical-align: bottom; }
img.plot { max-width: 100%; margin: 8px 0; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--blue); }
code { font-size: 13px; }
"""


def write(evaluation: Evaluation, results: dict[str, dict[str, Any]]) -> pathlib.Path:
    """Writes `<workdir>/eval/report.html`.

    Args:
        evaluation: The run.
        results: What the suites returned, by name, in the order of the page. Their `table.md` and
            PNGs are taken from their directories.
    """
    config, source = evaluation.config, evaluation.test
    title = f"{config.method} on {source.name}"
    images = f"{min(evaluation.images or source.size, source.size):,} test images"
    sections = {"Images": _images(evaluation)}
    for name, measured in results.items():
        content = _suite(evaluation.directory(name))
        if "open" in measured:  # what the suite wrote is for another program
            content = f"<p>Open it with <code>{html.escape(measured['open'])}</code></p>"
        sections[_TITLES.get(name, name)] = content
    sections["Data and settings"] = _settings(evaluation)
    links = "".join(f'<a href="#{_anchor(name)}">{html.escape(name)}</a>' for name in sections)
    body = "".join(
        f'<h2 id="{_anchor(name)}">{html.escape(name)}</h2>{content}'
        for name, content in sections.items()
    )
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{html.escape(title)}</h1>"
        f'<p class="lead">{html.escape(evaluation.method.describe_encoder())}, '
        f"step {evaluation.step:,}, {images}</p>"
        f"{_tiles(results)}<nav>{links}</nav>{body}</main></body></html>\n"
    )
    path = evaluation.workdir / "eval" / "report.html"
    write_text(path, page)
    return path


def _tiles(results: dict[str, dict[str, Any]]) -> str:
    """The headline numbers; the paper's beside where it prints one."""
    tiles = []
    for suite, key, words, printed in _HEADLINES:
        value = results.get(suite, {}).get(key)
        if value is None:
            continue
        if printed == "TABLE_1":
            words += f" (paper: {np.mean(list(paper.TABLE_1['Ours (-)'].values())):.3f})"
        elif printed == "FAILURE":
            words += f" (paper: {paper.FAILURE['largest_p']:.1e})"
        shown = f"{value:.1e}" if key.endswith("_p") else f"{value:.3f}"
        tiles.append(f'<div class="tile"><b>{shown}</b><span>{html.escape(words)}</span></div>')
    for spec, entry in results.get("ood", {}).get("out", {}).items():
        best = max(entry["scores"].values(), key=lambda values: values["auroc"])
        words = f"best AUROC against {spec}"
        tiles.append(
            f'<div class="tile"><b>{best["auroc"]:.3f}</b><span>{html.escape(words)}</span></div>'
        )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _images(evaluation: Evaluation) -> str:
    parts = []
    for heading, pictures in gallery.choose(evaluation).items():
        strip = "".join(
            f'<figure title="{html.escape(picture.hint)}"><img alt="{html.escape(picture.hint)}" '
            f'src="{_png(picture.image)}"><figcaption>{html.escape(picture.caption)}</figcaption>'
            "</figure>"
            for picture in pictures
        )
        strip = strip or '<p class="note">none</p>'
        parts.append(f'<h3>{html.escape(heading)}</h3><div class="strip">{strip}</div>')
    return "".join(parts)


def _suite(directory: pathlib.Path) -> str:
    """A suite's plots, and its table behind them."""
    parts = [
        f'<img class="plot" alt="{html.escape(path.stem)}" src="{_data(path.read_bytes())}">'
        for path in sorted(directory.glob("*.png"))
    ]
    table = directory / "table.md"
    if table.exists():
        text = markdown.markdown(table.read_text(encoding="utf-8"), extensions=["tables"])
        text = text.replace("<h2>", "<h4>").replace("</h2>", "</h4>")
        text = text.replace("<h1>", "<h3>").replace("</h1>", "</h3>")
        text = text.replace("<table>", '<div class="scroll"><table>')
        parts.append(text.replace("</table>", "</table></div>"))
    return "".join(parts)


def _settings(evaluation: Evaluation) -> str:
    source = evaluation.test
    facts = {
        "run directory": evaluation.workdir,
        "checkpoint": evaluation.checkpoint,
        "training images": f"{evaluation.train.size:,} of {evaluation.train.name}",
        "test images": f"{source.size:,} of {source.name} ({source.split})",
        "score": evaluation.score.title,
        "tensorflow, keras": f"{tf.__version__}, {keras.__version__}",
    }
    return (
        _table(facts)
        + "<details><summary>All settings of the run</summary>"
        + _table(flatten(evaluation.config))
        + "</details>"
    )


def _table(entries: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(key)}</td><td><code>{html.escape(str(value))}</code></td></tr>"
        for key, value in entries.items()
    )
    return f"<table>{rows}</table>"


def _png(image: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG")
    return _data(file.getvalue())


def _data(content: bytes) -> str:
    """A PNG as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")
