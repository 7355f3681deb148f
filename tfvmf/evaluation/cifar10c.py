"""Does kappa fall as corruption grows? The paper's Table 1, and what six points cannot say.

An encoder without a concentration is followed by another score (`scores`): the suite compares.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES
from tfvmf.evaluation import cifar10c_output
from tfvmf.evaluation.correlation import Correlation, correlate
from tfvmf.evaluation.corrupted import Corrupted, open_corrupted
from tfvmf.evaluation.run import Evaluation
from tfvmf.evaluation.scores import score_of
from tfvmf.progress import Progress

_CHUNK = 1000

Kappa = dict[str, np.ndarray]


def run(evaluation: Evaluation) -> dict[str, Any]:
    """Measures kappa on the clean and corrupted test images; writes tables and plots."""
    corrupted = open_corrupted(evaluation)
    results, correlations, kappa = measure(evaluation, corrupted)
    shown = min(results["images"], _CHUNK)
    directory = evaluation.directory("cifar10c")
    cifar10c_output.draw_examples(
        directory / "examples.png",
        evaluation.test.images(0, shown),
        lambda name, severity: corrupted.read(name, severity, 0, shown),
        {name: scores[:, :shown] for name, scores in kappa.items()},
    )
    cifar10c_output.write(directory, results, correlations)
    return results


def measure(
    evaluation: Evaluation, corrupted: Corrupted
) -> tuple[dict[str, Any], dict[str, Correlation], Kappa]:
    """Under every corruption: the results, the correlations and the scores [6, N] of each."""
    score = score_of(evaluation.method)
    source = evaluation.test
    size = min(source.size, evaluation.images or source.size)
    kappa = {name: np.empty((1 + len(SEVERITIES), size)) for name in CORRUPTIONS}
    with Progress(size * (1 + len(SEVERITIES) * len(CORRUPTIONS)), unit="image") as progress:
        for start, stop in _chunks(size):
            clean = score.of(evaluation.embedder(source.images(start, stop)))
            for name in CORRUPTIONS:
                kappa[name][0, start:stop] = clean
            progress.update(stop - start)
        for name in CORRUPTIONS:
            for severity in SEVERITIES:
                for start, stop in _chunks(size):
                    images = corrupted.read(name, severity, start, stop)
                    kappa[name][severity, start:stop] = score.of(evaluation.embedder(images))
                    progress.update(stop - start, f"{name} {severity}")
    correlations = {name: correlate(scores) for name, scores in kappa.items()}
    results = summarise(correlations) | {
        "score": score.name,
        "expected_sign": score.expected_sign,
        "corruptions": corrupted.described,
        "data": f"{source.name} ({source.split})",
        "images": size,
        "checkpoint": evaluation.checkpoint,
        "step": evaluation.step,
        "method": evaluation.config.method,
    }
    return results, correlations, kappa


def summarise(correlations: dict[str, Correlation]) -> dict[str, Any]:
    """The numbers of `results.json`."""
    return {
        "mean_spearman": float(np.mean([c.spearman for c in correlations.values()])),
        "mean_pearson": float(np.mean([c.pearson for c in correlations.values()])),
        "mean_per_image": float(np.mean([c.per_image for c in correlations.values()])),
        "spearman": {name: c.spearman for name, c in correlations.items()},
        "pearson": {name: c.pearson for name, c in correlations.items()},
        "per_image": {
            name: {"spearman": c.per_image, "interval": list(c.interval)}
            for name, c in correlations.items()
        },
        "kappa": {name: c.means for name, c in correlations.items()},
    }


def _chunks(size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, _CHUNK):
        yield start, min(start + _CHUNK, size)
