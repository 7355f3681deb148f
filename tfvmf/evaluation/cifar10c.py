"""Does kappa fall as corruption grows? The paper's Table 1, and what six points cannot say."""

from collections.abc import Callable, Iterator

import numpy as np

from tfvmf.data.base import Source
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES, SOURCE, corrupt, frost_source
from tfvmf.data.corruptions.cache import cache_source, open_cache
from tfvmf.errors import UserError
from tfvmf.evaluation import cifar10c_output
from tfvmf.evaluation.correlation import Correlation, correlate
from tfvmf.evaluation.run import Evaluation
from tfvmf.progress import Progress

_CHUNK = 1000

Corrupted = Callable[[str, int, int, int], np.ndarray]


def run(evaluation: Evaluation) -> dict[str, object]:
    """Measures kappa on the clean and corrupted test images; writes tables and plots."""
    source = evaluation.test
    if not evaluation.method.probabilistic:
        raise UserError(
            f"method {evaluation.config.method} has no concentration: the suite cifar10c needs "
            "a method that ends in _vmf"
        )
    size = min(source.size, evaluation.images or source.size)
    described, corrupted = _corruptions(evaluation, source)

    kappa = {name: np.empty((1 + len(SEVERITIES), size)) for name in CORRUPTIONS}
    with Progress(size * (1 + len(SEVERITIES) * len(CORRUPTIONS)), unit="image") as progress:
        for start, stop in _chunks(size):
            clean = _kappa(evaluation, source.images(start, stop))
            for name in CORRUPTIONS:
                kappa[name][0, start:stop] = clean
            progress.update(stop - start)
        for name in CORRUPTIONS:
            for severity in SEVERITIES:
                for start, stop in _chunks(size):
                    images = corrupted(name, severity, start, stop)
                    kappa[name][severity, start:stop] = _kappa(evaluation, images)
                    progress.update(stop - start, f"{name} {severity}")
    correlations = {name: correlate(scores) for name, scores in kappa.items()}
    results = summarise(correlations)
    results |= {
        "corruptions": described,
        "data": f"{source.name} ({source.split})",
        "images": size,
        "step": evaluation.step,
        "method": evaluation.config.method,
    }
    directory = evaluation.directory("cifar10c")
    cifar10c_output.write(directory, results, correlations)
    cifar10c_output.draw_examples(
        directory / "examples.png",
        source.images(0, min(size, _CHUNK)),
        lambda name, severity: corrupted(name, severity, 0, min(size, _CHUNK)),
        {name: scores[:, :_CHUNK] for name, scores in kappa.items()},
    )
    return results


def summarise(correlations: dict[str, Correlation]) -> dict[str, object]:
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


def _corruptions(evaluation: Evaluation, source: Source) -> tuple[str, Corrupted]:
    """Where corrupted images come from, in words and as a function."""
    if evaluation.corrupted_dir:
        files = {
            name: open_cache(evaluation.corrupted_dir, name, expected_images=source.size)
            for name in CORRUPTIONS
        }
        described = cache_source(evaluation.corrupted_dir)
        return described, lambda name, severity, start, stop: files[name](severity)[start:stop]

    def generate(name: str, severity: int, start: int, stop: int) -> np.ndarray:
        return corrupt(source.images(start, stop), name, severity, first_index=start)

    return f"{SOURCE}; frost: {frost_source()}", generate


def _kappa(evaluation: Evaluation, images: np.ndarray) -> np.ndarray:
    return evaluation.embedder(images)["concentration"]


def _chunks(size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, _CHUNK):
        yield start, min(start + _CHUNK, size)
