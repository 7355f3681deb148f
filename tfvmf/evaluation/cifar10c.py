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
from tfvmf.evaluation.scores import SCORES
from tfvmf.progress import Progress

_CHUNK = 1000

Scores = dict[str, np.ndarray]


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
) -> tuple[dict[str, Any], dict[str, Correlation], Scores]:
    """The results, and of the main score the correlations and the values [6, N] by corruption."""
    measured = measure_scores(evaluation, corrupted)
    score, source = evaluation.score, evaluation.test
    correlations = {
        name: {corruption: correlate(values) for corruption, values in by_corruption.items()}
        for name, by_corruption in measured.items()
    }
    main = correlations[score.name]
    results = summarize(main) | {
        "score": score.title,
        "expected_sign": score.expected_sign,
        "corruptions": corrupted.described,
        "data": f"{source.name} ({source.split})",
        "images": next(iter(measured[score.name].values())).shape[1],
        "checkpoint": evaluation.checkpoint,
        "step": evaluation.step,
        "method": evaluation.config.method,
        "scores": {
            name: {"expected_sign": SCORES[name].expected_sign, **summarize(values)}
            for name, values in correlations.items()
        },
    }
    return results, main, measured[score.name]


def measure_scores(evaluation: Evaluation, corrupted: Corrupted) -> dict[str, Scores]:
    """Every score of the evaluation under every corruption: {score: {corruption: [6, N]}}."""
    uncertainty, source = evaluation.uncertainty, evaluation.test
    size = min(source.size, evaluation.images or source.size)
    measured = {
        name: {corruption: np.empty((1 + len(SEVERITIES), size)) for corruption in CORRUPTIONS}
        for name in uncertainty.scores
    }
    with Progress(size * (1 + len(SEVERITIES) * len(CORRUPTIONS)), unit="image") as progress:
        for start, stop in _chunks(size):
            for name, values in uncertainty(source.images(start, stop)).items():
                for by_severity in measured[name].values():
                    by_severity[0, start:stop] = values
            progress.update(stop - start)
        parts = [
            (corruption, severity, *chunk)
            for corruption in CORRUPTIONS
            for severity in SEVERITIES
            for chunk in _chunks(size)
        ]
        for (corruption, severity, start, stop), images in corrupted.read_ahead(parts):
            for name, values in uncertainty(images).items():
                measured[name][corruption][severity, start:stop] = values
            progress.update(stop - start, f"{corruption} {severity}")
    return measured


def summarize(correlations: dict[str, Correlation]) -> dict[str, Any]:
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
