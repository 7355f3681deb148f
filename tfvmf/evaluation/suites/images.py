"""Which images is the encoder most and least certain of? The extremes, with their files."""

from typing import Any

import numpy as np

from tfvmf.evaluation import plots
from tfvmf.evaluation.scores import JUDGED
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, Options
from tfvmf.evaluation.suites.probe import linear_probe
from tfvmf.evaluation.tables import Table

_SHOWN = 18  # images per row


def measure(subject: Subject, options: Options) -> Measured:
    """The most and the least certain images; with labels, the probe's most certain mistakes."""
    source, score = subject.test, subject.score(options)
    embeddings = subject.embed(source)
    values = subject.main_score(source, embeddings, options)
    order = np.argsort(score.uncertainty(values), kind="stable")
    shown = min(_SHOWN, len(order) // 2)  # no image is in both
    groups = {"most": order[:shown], "least": order[::-1][:shown]}
    headings = {
        "most": f"Most certain ({score.title} below each)",
        "least": "Least certain",
        "failures": f"Worst failures: the probe is wrong where {score.title} is surest",
    }
    judged = [name for name in JUDGED if name in embeddings]
    predicted = None
    if subject.train.labels is not None and source.labels is not None:
        predicted = linear_probe(subject).predict(embeddings["features"])
        groups["failures"] = order[(predicted != source.labels)[order]][:_SHOWN]

    def entry(row: int, group: str) -> dict[str, Any]:
        found: dict[str, Any] = {"file": source.file(row), "value": float(values[row])}
        found |= {name: float(embeddings[name][row]) for name in judged}
        if source.labels is not None:
            found["label"] = source.class_name(source.labels[row])
        if group == "failures" and predicted is not None:
            found["predicted"] = source.class_name(predicted[row])
        return found

    entries = {group: [entry(int(row), group) for row in rows] for group, rows in groups.items()}
    quantiles = dict(zip(("5 %", "50 %", "95 %"), np.quantile(values, [0.05, 0.5, 0.95])))  # noqa: B905
    verdict = "too few images to compare"
    if shown:
        most, least = entries["most"][0], entries["least"][0]
        verdict = (
            f"the encoder is surest of {most['file']} ({score.title} {most['value']:.3g}) and "
            f"least sure of {least['file']} ({least['value']:.3g})"
        )
    keys = ("file", "value", *judged, "label", "predicted")
    rows = [[group, *map(each.get, keys)] for group in entries for each in entries[group]]
    images = source.take(np.concatenate(list(groups.values())))
    sheet = images.reshape(-1, *images.shape[2:])  # stacked vertically
    return Measured(
        verdict=verdict,
        results={"score": score.title, "quantiles": quantiles, "groups": entries},
        headlines=[Headline(f"{score.title}, quantile {q}", x) for q, x in quantiles.items()],
        blocks=[Table(["group", *keys], rows)],
        gallery={headings[group]: [_tile(each) for each in entries[group]] for group in entries},
        files={"sprite.png": lambda path: plots.save_pixels(sheet, path)},
    )


def _tile(entry: dict[str, Any]) -> tuple[str, str]:
    """Caption and hint; the caption is the end of the path, `test:7` for `cifar10/test:7`."""
    said = ", said {predicted}, is {label}".format(**entry) if "predicted" in entry else ""
    hint = ", ".join(filter(None, (entry["file"], entry.get("label"))))
    return f"{entry['value']:.3g}{said}\n{entry['file'].rsplit('/', 1)[-1]}", hint
