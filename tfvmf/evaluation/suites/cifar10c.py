"""Does kappa fall as corruption grows? The paper's Table 1, and what six points cannot say.

An encoder without a concentration is followed by another score (`scores`): the suite compares.
Corrupted images are made here, or read from CIFAR-10-C's files or TFDS.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib
import numpy as np
import scipy.stats
from matplotlib.figure import Figure

from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES
from tfvmf.data.corruptions.cache import Corrupted, open_corrupted
from tfvmf.errors import UserError
from tfvmf.evaluation import paper, plots
from tfvmf.evaluation.scores import SCORES
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, Options, Results, Suite, at_step
from tfvmf.evaluation.tables import Cell, Page, Table
from tfvmf.files import write_json, write_text
from tfvmf.progress import Progress
from tfvmf.training import checkpoints

_CHUNK = 1000
_SHOWN = ("gaussian_blur", "fog", "gaussian_noise", "pixelate", "zoom_blur")

Scores = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Correlation:
    """Correlations of one corruption.

    Attributes:
        means: Mean score [6] of the clean images and at severities 1 to 5.
        spearman: Rank correlation of these six points with 0 ... 5, as in the paper's Table 1.
        pearson: Linear correlation of the same points, as in its appendix.
        per_image: Rank correlation over all (image, severity) pairs: what six means cannot say.
        interval: Its 95 % interval, by a bootstrap over images.
    """

    means: list[float]
    spearman: float
    pearson: float
    per_image: float
    interval: tuple[float, float]


def correlate(scores: np.ndarray, *, rounds: int = 1000, seed: int = 0) -> Correlation:
    """Correlates scores [6, N] (clean, severities 1 to 5) with severity.

    A score that does not change at all has no correlation: NaN.
    """
    levels = np.arange(len(scores))
    means = scores.mean(axis=1)
    moves = np.ptp(means) > 0
    spearman = scipy.stats.spearmanr(levels, means).statistic if moves else np.nan
    pearson = np.corrcoef(levels, means)[0, 1] if moves else np.nan
    per_image, interval = _per_image(scores, rounds, seed)
    return Correlation(means.tolist(), float(spearman), float(pearson), per_image, interval)


def _per_image(scores: np.ndarray, rounds: int, seed: int) -> tuple[float, tuple[float, float]]:
    # Ranks are made once, over all pairs; a bootstrap round only weights the images, which
    # needs three sums per image instead of another sort.
    ranks = scipy.stats.rankdata(scores).reshape(scores.shape)
    ranks -= ranks.mean()
    levels = (np.arange(len(scores)) - (len(scores) - 1) / 2)[:, None]
    sums = np.stack([(ranks * levels).sum(0), (ranks**2).sum(0), ranks.sum(0)])
    level_square = float((levels**2).sum())
    count = scores.shape[1]

    def value(weighted: np.ndarray) -> np.ndarray:
        product, square, total = weighted
        pairs = count * len(scores)
        spread = np.sqrt(np.maximum(square - total**2 / pairs, 0.0) * level_square * count)
        with np.errstate(invalid="ignore", divide="ignore"):
            return product / spread

    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), rounds)
    sampled = value(sums @ weights.T)
    low, high = np.quantile(sampled, [0.025, 0.975])
    return float(value(sums.sum(axis=1))), (float(low), float(high))


def _measure(subject: Subject, options: Options) -> Measured:
    """Measures the scores on clean and corrupted test images."""
    corrupted = corrupted_images(subject, options)
    results, correlations, scores = measure_corruption(subject, options, corrupted)
    shown = min(results["images"], _CHUNK)

    def draw(path: pathlib.Path) -> None:
        draw_examples(
            path,
            subject.test.images(0, shown),
            lambda name, severity: corrupted.read(name, severity, 0, shown),
            {name: values[:, :shown] for name, values in scores.items()},
            score=results["score"],
        )

    return Measured(
        results,
        {
            "examples.png": draw,
            "kappa.png": lambda path: draw_means(path, correlations, score=results["score"]),
        },
    )


def corrupted_images(subject: Subject, options: Options) -> Corrupted:
    """The corrupted test images that options ask for; problems with files show here."""
    return open_corrupted(
        subject.test,
        kind=options.corruptions,
        directory=options.corrupted_dir,
        fill=options.cache_corrupted,
        load=subject.open,
        part=bool(options.max_images),
    )


def measure_corruption(
    subject: Subject, options: Options, corrupted: Corrupted | None = None
) -> tuple[Results, dict[str, Correlation], Scores]:
    """The suite's numbers without its files.

    Args:
        subject: What to measure.
        options: How.
        corrupted: The images; those of `corrupted_images` by default.

    Returns:
        The results, and for the main score the correlations and the values [6, N] by corruption.
    """
    corrupted = corrupted or corrupted_images(subject, options)
    measured = measure_scores(subject, options, corrupted)
    score, source = subject.score(options), subject.test
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
        "method": subject.name,
        **subject.facts,
        "scores": {
            name: {"expected_sign": SCORES[name].expected_sign, **summarize(values)}
            for name, values in correlations.items()
        },
    }
    return results, main, measured[score.name]


def measure_scores(subject: Subject, options: Options, corrupted: Corrupted) -> dict[str, Scores]:
    """Every score that is asked for under every corruption: {score: {corruption: [6, N]}}."""
    uncertainty, source = subject.uncertainty(options), subject.test
    size = min(source.size, options.max_images or source.size)
    measured = {
        name: {corruption: np.empty((1 + len(SEVERITIES), size)) for corruption in CORRUPTIONS}
        for name in uncertainty.scores
    }
    total = size * (1 + len(SEVERITIES) * len(CORRUPTIONS))
    with Progress(total, unit="image", description="corruptions") as progress:
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
        "mean_score": {name: c.means for name, c in correlations.items()},
    }


def _chunks(size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, _CHUNK):
        yield start, min(start + _CHUNK, size)


def _table(results: Results) -> Table:
    """One row per corruption: correlations, and the mean score at the six levels."""
    levels = ["score_clean", *(f"score_{severity}" for severity in SEVERITIES)]
    names = ["spearman", "pearson", "per_image", "per_image_low", "per_image_high"]
    rows: list[list[Cell]] = []
    for name, means in results["mean_score"].items():
        entry = results["per_image"][name]
        correlations = [results["spearman"][name], results["pearson"][name], entry["spearman"]]
        rows.append([name, *correlations, *entry["interval"], *means])
    return Table(columns=["corruption", *names, *levels], rows=rows)


def _page(results: Results) -> Page:
    """The paper's Table 1 and its appendix table with ours beside, and the other correlations."""
    sign = "minus" if results["expected_sign"] < 0 else "plus"
    blocks: list[str | Table] = [
        f"{results['images']:,} images{at_step(results)}; {results['corruptions']}.",
        f"A negative correlation says that {results['score']} falls as the corruption grows; the "
        f"expected sign is {sign}. The columns of the paper are its 1000 epochs of ResNet-50 on "
        "CIFAR-10-C.",
    ]
    if not results["data"].startswith("cifar10 "):
        blocks.append("The images are not CIFAR-10's: the protocol is the same, the data are not.")
    words = {name: name.replace("_", " ") for name in results["spearman"]}
    for key, printed in (("spearman", paper.TABLE_1), ("pearson", paper.TABLE_1_PEARSON)):
        beside = printed.values()
        blocks.append(
            Table(
                title=f"{key.capitalize()} correlation of six points",
                columns=["corruption", "tfvmf", *(f"paper: {row}" for row in printed)],
                rows=[
                    [words[name], value, *(row[name] for row in beside)]
                    for name, value in results[key].items()
                ],
                footer=[
                    [
                        "mean",
                        results[f"mean_{key}"],
                        *(float(np.mean(list(row.values()))) for row in beside),
                    ]
                ],
            )
        )
    rows: list[list[Cell]] = []
    for name, entry in results["per_image"].items():
        low, high = entry["interval"]
        rows.append([words[name], entry["spearman"], f"{low:.3f} to {high:.3f}"])
    blocks.append(
        Table(
            title="Spearman correlation over all (image, severity) pairs",
            columns=["corruption", "tfvmf", "95 % interval"],
            rows=rows,
            footer=[["mean", results["mean_per_image"], None]],
            align="lrr",
        )
    )
    if len(results["scores"]) > 1:
        blocks.append(_beside(results["scores"]))
    title = f"{results['score'].capitalize()} against corruption"
    return Page(f"{title}: {results['method']} on {results['data']}", blocks)


def _beside(scores: dict[str, dict[str, Any]]) -> Table:
    """Mean correlations of several scores, each with the sign that it should have."""
    keys = ("mean_spearman", "mean_pearson", "mean_per_image")
    return Table(
        title="Scores beside each other, means over the corruptions",
        columns=["score", "expected sign", "Spearman of six points", "Pearson", "over all images"],
        rows=[
            [
                SCORES[name].title,
                "minus" if entry["expected_sign"] < 0 else "plus",
                *(entry[key] for key in keys),
            ]
            for name, entry in scores.items()
        ],
    )


def draw_means(path: pathlib.Path, correlations: dict[str, Correlation], *, score: str) -> None:
    """The mean score against severity, one panel per corruption."""
    with matplotlib.rc_context(plots.STYLE):
        columns = 6
        rows = -(-len(correlations) // columns)
        figure = Figure(figsize=(11, 1.75 * rows))
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis in axes.flat[len(correlations) :]:
            axis.set_visible(False)
        for axis, (name, value) in zip(axes.flat, correlations.items(), strict=False):
            falls = value.spearman <= 0
            axis.plot(
                value.means, marker="o", markersize=3, color=plots.BLUE if falls else plots.ORANGE
            )
            axis.axhline(value.means[0], color=plots.GRAY, linewidth=0.8, linestyle=":")
            axis.set_title(f"{name.replace('_', ' ')}  {value.spearman:+.2f}", loc="left")
            axis.set_xticks(range(len(value.means)))
        mean = np.mean([value.spearman for value in correlations.values()])
        figure.suptitle(
            f"Mean {score} against severity (0: clean). Spearman in the titles, mean {mean:+.3f}; "
            f"orange: {score} rises",
            x=0.01, ha="left", fontsize=10,
        )  # fmt: skip
        figure.tight_layout()
        plots.save(figure, path)


def draw_examples(
    path: pathlib.Path,
    clean: np.ndarray,
    corrupted: Callable[[str, int], np.ndarray],
    scores: dict[str, np.ndarray],
    *,
    score: str,
) -> None:
    """One image from mild to severe under several corruptions, each with its score.

    Args:
        path: The PNG.
        clean: Images [N, H, W, 3].
        corrupted: (corruption, severity) -> the same images, corrupted.
        scores: Corruption -> scores [6, N] of these images.
        score: What they are called.
    """
    # An image with a typical score, not one that makes a point.
    clean_scores = next(iter(scores.values()))[0]
    chosen = int(np.argsort(clean_scores)[len(clean_scores) // 2])
    with matplotlib.rc_context({**plots.STYLE, "axes.grid": False}):
        columns = 1 + len(SEVERITIES)
        figure = Figure(figsize=(1.35 * columns, 1.6 * len(_SHOWN)))
        axes = figure.subplots(len(_SHOWN), columns)
        for row, name in zip(axes, _SHOWN, strict=True):
            images = [clean, *(corrupted(name, severity) for severity in SEVERITIES)]
            for level, (axis, batch) in enumerate(zip(row, images, strict=True)):
                axis.imshow(batch[chosen], interpolation="nearest")
                axis.set_xticks([])
                axis.set_yticks([])
                axis.set_xlabel(f"{scores[name][level, chosen]:.2f}", labelpad=2)
            row[0].set_ylabel(name.replace("_", " "))
        for level, axis in enumerate(axes[0]):
            axis.set_title("clean" if level == 0 else f"severity {level}")
        figure.suptitle(f"One image from mild to severe, with its {score} below", fontsize=10)
        figure.tight_layout()
        plots.save(figure, path)


def along_training(subject: Subject, options: Options | None = None, **changes: Any) -> Results:
    """The suite at every checkpoint that a run keeps: how soon kappa can be relied on.

    Writes `along_training.csv`, `.png` and `.json` into the suite's directory.

    Args:
        subject: A subject that was loaded from a run.
        options: How to measure; the defaults if left out.
        **changes: Fields of `Options` that replace these.
    """
    options = dataclasses.replace(options or Options(), **changes)
    if subject.workdir is None:
        raise UserError(f"{subject.name} was not loaded from a run: it has no checkpoints")
    directory = subject.directory_for(cifar10c.name)
    corrupted = corrupted_images(subject, options)
    keys = ("mean_spearman", "mean_pearson", "mean_per_image")
    rows: list[dict[str, Any]] = []
    for checkpoint in checkpoints.paths(subject.workdir):
        results, _, _ = measure_corruption(subject.at(checkpoint), options, corrupted)
        rows.append({"step": results["step"], **{key: results[key] for key in keys}})
        print(f"step {results['step']}: mean Spearman {results['mean_spearman']:.3f}", flush=True)
    if directory is not None:
        table = Table(columns=list(rows[0]), rows=[list(row.values()) for row in rows])
        write_text(directory / "along_training.csv", table.csv())
        _draw_along(directory / "along_training.png", rows)
        write_json(directory / "along_training.json", rows)
    return {"checkpoints": len(rows), "mean_spearman": rows[-1]["mean_spearman"]}


def _draw_along(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(6, 3))
        axis = figure.subplots()
        steps = [row["step"] for row in rows]
        axis.plot(steps, [row["mean_spearman"] for row in rows], "o-", label="six points")
        axis.plot(steps, [row["mean_per_image"] for row in rows], "o-", label="all images")
        axis.set_xlabel("training step")
        axis.set_title("mean Spearman correlation of kappa with severity", loc="left")
        axis.legend()
        plots.save(figure, path)


cifar10c = Suite(
    name="cifar10c",
    title="Corruptions",
    measure=_measure,
    page=_page,
    table=_table,
    headlines=lambda results: [
        Headline(
            "mean Spearman with corruption",
            results["mean_spearman"],
            printed=float(np.mean(list(paper.TABLE_1["Ours (-)"].values()))),
        )
    ],
)
