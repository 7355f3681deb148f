"""Which images is the encoder sure of, and which not? The extremes, with their files."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, Options, Results, Suite, Tile
from tfvmf.evaluation.suites.probe import linear_probe
from tfvmf.evaluation.tables import Table
from tfvmf.files import replacing

_SHOWN = 18  # images in a row
_GROUPS = {
    "most": "Most certain ({score} below each)",
    "least": "Least certain",
    "failures": "Worst failures: the probe is wrong where {score} is surest",
}


def _measure(subject: Subject, options: Options) -> Measured:
    """The most and the least certain images; with labels, the surest mistakes of the probe."""
    source, score = subject.test, subject.score(options)
    embeddings = subject.embed(source)
    values = subject.main_score(source, embeddings, options)
    order = np.argsort(score.uncertainty(values), kind="stable")
    shown = min(_SHOWN, len(order) // 2)  # no image is among both
    groups = {"most": order[:shown], "least": order[::-1][:shown]}
    predicted = None
    if subject.train.labels is not None and source.labels is not None:
        predicted = linear_probe(subject).predict(embeddings["features"])
        groups["failures"] = order[(predicted != source.labels)[order]][:_SHOWN]

    def name(label: int) -> str:
        return source.class_names[label] if source.class_names else str(label)

    def entry(row: int, group: str) -> dict[str, Any]:
        found: dict[str, Any] = {"file": source.file(row), "value": float(values[row])}
        if source.labels is not None:
            found["label"] = name(source.labels[row])
        if group == "failures" and predicted is not None:
            found["predicted"] = name(predicted[row])
        return found

    rows = np.concatenate(list(groups.values()))
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    results: Results = {
        "score": score.title,
        "quantiles": {"5 %": float(low), "50 %": float(middle), "95 %": float(high)},
        "groups": {
            group: [entry(int(row), group) for row in members] for group, members in groups.items()
        },
    }
    return Measured(results, {"sprite.png": lambda path: _write(path, source.take(rows))})


def _write(path: pathlib.Path, images: np.ndarray) -> None:
    """Images [N, H, W, 3], one below the other."""
    with replacing(path) as file:
        Image.fromarray(images.reshape(-1, *images.shape[2:])).save(file, format="PNG")


def _gallery(results: Results) -> Mapping[str, Sequence[Tile]]:
    gallery, place = {}, 0
    for group, entries in results["groups"].items():
        tiles = []
        for entry in entries:
            caption = f"{entry['value']:.3g}"
            if "predicted" in entry:
                caption += f", said {entry['predicted']}, is {entry['label']}"
            hint = ", ".join(filter(None, (entry["file"], entry.get("label"))))
            tiles.append(Tile(place, f"{caption}\n{_short(entry['file'])}", hint))
            place += 1
        gallery[_GROUPS[group].format(score=results["score"])] = tiles
    return gallery


def _short(file: str) -> str:
    """The end of a path: the file, or `test:7` of `cifar10/test:7`."""
    return file.rsplit("/", 1)[-1]


def _verdict(results: Results) -> str:
    ends = [results["groups"][group][:1] for group in ("most", "least")]
    if not all(ends):
        return "too few images to compare"
    (most,), (least,) = ends
    return (
        f"the encoder is surest of {most['file']} ({results['score']} {most['value']:.3g}) and "
        f"least sure of {least['file']} ({least['value']:.3g})"
    )


def _table(results: Results) -> Table:
    keys = ("file", "value", "label", "predicted")
    return Table(
        columns=["group", *keys],
        rows=[
            [group, *(entry.get(key) for key in keys)]
            for group, entries in results["groups"].items()
            for entry in entries
        ],
    )


images = Suite(
    name="images",
    title="Images",
    measure=_measure,
    verdict=_verdict,
    headlines=lambda results: [
        Headline(f"{results['score']}, quantile {share}", value)
        for share, value in results["quantiles"].items()
    ],
    table=_table,
    gallery=_gallery,
)
