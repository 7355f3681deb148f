"""Test images worth looking at: the most and the least certain, and the surest mistakes."""

import dataclasses

import numpy as np

from tfvmf.evaluation.run import Evaluation

_SHOWN = 18


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image with what to say of it."""

    image: np.ndarray
    caption: str
    hint: str = ""


Gallery = dict[str, list[Picture]]


def choose(evaluation: Evaluation, *, shown: int = _SHOWN) -> Gallery:
    """Headings with their pictures.

    Always the most and the least certain test images; with labels, the mistakes of the linear
    probe that the encoder was surest of.
    """
    source, score = evaluation.test, evaluation.score
    values = evaluation.main_score(source, evaluation.test_embeddings)
    order = np.argsort(score.uncertainty(values), kind="stable")
    names = _names(evaluation)

    def pictures(rows: np.ndarray, said: np.ndarray | None = None) -> list[Picture]:
        chosen = []
        for row in rows:
            caption, hint = f"{values[row]:.3g}", f"image {row}"
            if said is not None:
                caption += f", said {names[said[row]]}"
            if names and source.labels is not None:
                hint += f", {names[source.labels[row]]}"
                if said is not None:
                    caption += f", is {names[source.labels[row]]}"
            chosen.append(Picture(source.images(row, row + 1)[0], caption, hint))
        return chosen

    chosen = {
        f"Most certain ({score.title} below each)": pictures(order[:shown]),
        "Least certain": pictures(order[::-1][:shown]),
    }
    if names:
        predicted = evaluation.linear_probe.predict(evaluation.test_embeddings["features"])
        _, labels = evaluation.labels("report")
        surest = order[(predicted != labels)[order]][:shown]
        heading = f"Worst failures: the probe is wrong where {score.title} is surest"
        chosen[heading] = pictures(surest, predicted)
    return chosen


def _names(evaluation: Evaluation) -> list[str]:
    """Names of the classes; [] without labels."""
    train, test = evaluation.train, evaluation.test
    if train.labels is None or test.labels is None:
        return []
    return test.class_names or [str(number) for number in range(int(train.labels.max()) + 1)]
