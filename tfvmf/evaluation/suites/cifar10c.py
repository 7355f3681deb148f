"""Does kappa fall as corruption grows? The paper's Table 1, and statistics beyond its six points.

An encoder without a concentration is measured by another score (see `scores`). Corrupted images
are generated, or read from CIFAR-10-C's files or TFDS.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from tfvmf.data import Source
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES
from tfvmf.data.corruptions.corrupted import Corrupted, open_corrupted
from tfvmf.evaluation import paper, plots
from tfvmf.evaluation.scores import SCORES, Uncertainty, one_pass
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Measured, Options, Results
from tfvmf.evaluation.tables import Table
from tfvmf.progress import Progress

_CHUNK = 1000
_SHOWN = ("gaussian_blur", "fog", "gaussian_noise", "pixelate", "zoom_blur")
MEANS = ("mean_spearman", "mean_pearson", "mean_per_image", "mean_auroc")
_PAPER_ROWS = {
    "kappa": "Ours (-)",
    "ensemble variance": "Model ensembles (+)",
    "dropout variance": "MC dropout (+)",
}

# By score, [18, 6, N]: corruptions; clean (the same for each) and severities 1 to 5; images.
Scores = dict[str, np.ndarray]


class Correlation(NamedTuple):
    """Correlations of one corruption."""

    means: list[float]  # mean score [6] of clean images and at severities 1 to 5
    spearman: float  # rank correlation of these six points with 0 ... 5, as in the paper's Table 1
    pearson: float  # linear correlation of the same points, as in its appendix
    per_image: float  # rank correlation over all (image, severity) pairs
    interval: tuple[float, float]  # its 95 % interval, by a bootstrap over images
    falls: float  # AUROC for telling severity 5 from clean by a score that should fall


def correlate(scores: np.ndarray, *, rounds: int = 1000, seed: int = 0) -> Correlation:
    """Correlates scores [6, N] (clean, severities 1 to 5) with severity; NaN if all are equal."""
    scores = scores.astype(np.float64)
    levels, means = np.arange(len(scores)), scores.mean(axis=1)
    moves, count = np.ptp(means) > 0, scores.shape[1]
    spearman = scipy.stats.spearmanr(levels, means).statistic if moves else np.nan
    pearson = np.corrcoef(levels, means)[0, 1] if moves else np.nan
    # Ranks are made once, over all pairs. A bootstrap round only weights the images, which needs
    # three sums per image instead of another sort.
    ranks = scipy.stats.rankdata(scores).reshape(scores.shape)
    ranks -= ranks.mean()
    centered = (levels - (len(scores) - 1) / 2)[:, None]
    sums = np.stack([(ranks * centered).sum(0), (ranks**2).sum(0), ranks.sum(0)])
    level_square = float((centered**2).sum())

    def rank_correlation(weighted: np.ndarray) -> np.ndarray:
        product, square, total = weighted
        variance = np.maximum(square - total**2 / scores.size, 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return product / np.sqrt(variance * level_square * count)

    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), rounds)
    low, high = np.quantile(rank_correlation(sums @ weights.T), [0.025, 0.975])
    return Correlation(
        means=means.tolist(),
        spearman=float(spearman),
        pearson=float(pearson),
        per_image=float(rank_correlation(sums.sum(axis=1))),
        interval=(float(low), float(high)),
        falls=auroc(scores[0], scores[-1]),
    )


def auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """How often a score in `inside` [N] is higher than one in `outside` [M]; ties count half."""
    wins = scipy.stats.mannwhitneyu(inside, outside, method="asymptotic").statistic
    return float(wins) / (len(inside) * len(outside))


def measure(subject: Subject, options: Options) -> Measured:
    """Measures the scores on clean and corrupted test images."""
    corrupted = corrupted_images(subject, options)
    results, scores = measure_corruption(subject, options, corrupted)
    values = scores[subject.score(options).name]
    return Measured(
        verdict=verdict(results),
        results=results,
        headlines=headlines(results),
        blocks=_blocks(results, own=subject.test.name == "cifar10"),
        files={
            "examples.png": lambda path: draw_examples(path, results, subject, corrupted, values),
            "kappa.png": lambda path: draw_means(path, results),
        },
    )


def corrupted_images(subject: Subject, options: Options) -> Corrupted:
    """The corrupted test images for the options; problems with files are raised here."""
    kind, directory = options.corruptions, options.corrupted_dir
    return open_corrupted(subject.test, kind=kind, directory=directory, load=subject.open)


def measure_corruption(
    subject: Subject, options: Options, corrupted: Corrupted
) -> tuple[Results, Scores]:
    """The suite's numbers, and the scores."""
    scores, main = kept_scores(subject, options, corrupted), subject.score(options)
    summaries = {
        name: summarize(scores[name], SCORES[name].expected_sign)
        for name in subject.uncertainty(options).scores
    }
    results = {"score": main.title, **summaries[main.name], "corruptions": corrupted.described}
    return results | {"scores": summaries}, scores


def kept_scores(
    subject: Subject,
    options: Options,
    corrupted: Corrupted,
    needed: Sequence[str] = (),
    further: Callable[..., Any] | None = None,
) -> Scores:
    """All scores measured so far: the requested ones, and `needed`, which `further` may give.

    The subject keeps them for other suites: 4 bytes per score, image, corruption and severity.
    """
    asked, source = subject.uncertainty(options).scores, subject.test
    settings = (options.num_views, options.num_passes, options.corruptions)
    kept: Scores = subject.keep(("corrupted", source, *settings, str(options.corrupted_dir)), dict)
    if {*asked, *needed} <= kept.keys():
        return kept
    names = dict.fromkeys((*asked, *one_pass(subject.judge)))
    # A pass needs a score besides `further`: the main one, if none is missing.
    missing = [name for name in names if name not in kept] or asked[:1]
    uncertainty = subject.uncertainty(dataclasses.replace(options, scores=missing), further)
    kept |= score_corrupted(uncertainty, source, corrupted)
    return kept


def score_corrupted(uncertainty: Uncertainty, source: Source, corrupted: Corrupted) -> Scores:
    """Scores of a source, clean and under every corruption."""
    shape = (len(CORRUPTIONS), 1 + len(SEVERITIES), source.size)
    measured: Scores = collections.defaultdict(lambda: np.empty(shape, np.float32))
    chunks = [(start, min(start + _CHUNK, source.size)) for start in range(0, source.size, _CHUNK)]
    total = source.size * (1 + len(SEVERITIES) * len(CORRUPTIONS))
    with Progress(total, unit="image", description="corruptions") as progress:
        for start, stop in chunks:
            for name, values in uncertainty(source.images(start, stop)).items():
                measured[name][:, 0, start:stop] = values
            progress.update(stop - start)
        parts = [(*each, *chunk) for each in product(CORRUPTIONS, SEVERITIES) for chunk in chunks]
        for (corruption, severity, start, stop), images in corrupted.read_ahead(parts):
            for name, values in uncertainty(images).items():
                measured[name][CORRUPTIONS.index(corruption), severity, start:stop] = values
            progress.update(stop - start, f"{corruption} {severity}")
    return dict(measured)


def summarize(scores: np.ndarray, sign: int) -> dict[str, Any]:
    """The numbers of `results.json` about one score [18, 6, N]; `sign` is the expected one."""
    each = list(zip(CORRUPTIONS, map(correlate, scores), strict=True))
    by_name: dict[str, dict[str, float]] = {
        "spearman": {name: c.spearman for name, c in each},
        "pearson": {name: c.pearson for name, c in each},
        "auroc": {name: c.falls if sign < 0 else 1.0 - c.falls for name, c in each},
    }
    return {
        "expected_sign": sign,
        **{f"mean_{key}": float(np.mean([*values.values()])) for key, values in by_name.items()},
        "mean_per_image": float(np.mean([c.per_image for _, c in each])),
        **by_name,
        "per_image": {name: {"spearman": c.per_image, "interval": c.interval} for name, c in each},
        "mean_score": {name: c.means for name, c in each},
    }


def verdict(results: Results) -> str:
    """Counts the corruptions under which the score moves in the expected direction."""
    sign, values = results["expected_sign"], results["spearman"].values()
    right = sum(sign * value > 0 for value in values)
    words = "falls" if sign < 0 else "rises"
    poor = ": it does not follow them" if right <= len(values) / 2 else ""
    return f"{results['score']} {words} under {right} of {len(values)} corruptions{poor}"


def headlines(results: Results) -> list[Headline]:
    """The means over the corruptions, and the worst corruption."""
    sign, row = results["expected_sign"], _PAPER_ROWS.get(results["score"])
    right = "minus" if sign < 0 else "plus"
    printed = float(np.mean(list(paper.TABLE_1[row].values()))) if row else None
    worst = max(results["spearman"], key=lambda name: -sign * results["spearman"][name])
    return [
        Headline(f"mean Spearman ({right} is right)", results["mean_spearman"], "+.3f", printed),
        Headline(f"worst of them, {_words(worst)}", results["spearman"][worst], "+.3f"),
        Headline("mean Spearman over all images", results["mean_per_image"], "+.3f"),
        Headline("mean AUROC, clean against severity 5", results["mean_auroc"]),
    ]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _blocks(results: Results, *, own: bool) -> list[str | Table]:
    """The effect of every corruption on the score, next to the paper's row and other scores."""
    score, row = results["score"], _PAPER_ROWS.get(results["score"], "Ours (-)")
    signs = {-1: "minus", 1: "plus"}
    other = " The images are not CIFAR-10's: the protocol is the same, the data are not."
    columns = {
        "Spearman": results["spearman"],
        "paper: Spearman": paper.TABLE_1[row],
        "Pearson": results["pearson"],
        "paper: Pearson": paper.TABLE_1_PEARSON[row],
        "per image": {name: each["spearman"] for name, each in results["per_image"].items()},
        "low": {name: each["interval"][0] for name, each in results["per_image"].items()},
        "high": {name: each["interval"][1] for name, each in results["per_image"].items()},
        "AUROC": results["auroc"],
    }
    mean = [
        None if column in ("low", "high") else float(np.mean([*values.values()]))
        for column, values in columns.items()
    ]
    blocks: list[str | Table] = [
        f"{results['corruptions']}. A negative correlation means that {score} falls as the "
        f"corruption grows; the expected sign is {signs[results['expected_sign']]}. Spearman and "
        "Pearson are of six points (the mean score of clean images and at severities 1 to 5, the "
        f'last columns), with the paper\'s "{row}" beside: 1000 epochs of ResNet-50 on '
        f"CIFAR-10-C.{'' if own else other}",
        "Single images: Spearman's correlation over all (image, severity) pairs with its 95 % "
        "interval, and the AUROC of severity 5 against clean.",
        Table(
            ["corruption", *columns, "clean", *map(str, SEVERITIES)],
            [
                [name, *(each[name] for each in columns.values()), *means]
                for name, means in results["mean_score"].items()
            ],
            footer=[["mean", *mean, *[None] * 6]],
        ),
    ]
    if len(results["scores"]) > 1:
        rows = [
            [SCORES[name].title, signs[each["expected_sign"]], *(each[key] for key in MEANS)]
            for name, each in results["scores"].items()
        ]
        heads = ["score", "sign", "Spearman", "Pearson", "over all images", "AUROC"]
        title = "Scores beside each other, means over the corruptions"
        blocks.append(Table(heads, rows, title=title))
    return blocks


def draw_means(path: pathlib.Path, results: Results) -> None:
    """Draws mean score against severity, one panel per corruption; blue has the right sign."""
    score, sign = results["score"], results["expected_sign"]
    with plots.drawing(path, 11, 5.25) as figure:
        axes = figure.subplots(3, 6, sharex=True, sharey=True)
        for axis, (name, means) in zip(axes.flat, results["mean_score"].items(), strict=True):
            spearman = results["spearman"][name]
            color = plots.BLUE if sign * spearman >= 0 else plots.ORANGE
            axis.plot(means, marker="o", markersize=3, color=color)
            axis.axhline(means[0], color=plots.GRAY, linewidth=0.8, linestyle=":")
            axis.set(title=f"{_words(name)}  {spearman:+.2f}", xticks=range(len(means)))
        figure.suptitle(
            f"Mean {score} against severity (0: clean). Spearman in the titles, mean "
            f"{results['mean_spearman']:+.3f}; orange: {score} {'rises' if sign < 0 else 'falls'}",
            x=0.01, ha="left", fontsize=10,
        )  # fmt: skip
        figure.tight_layout()


def choose_example(scores: np.ndarray) -> int:
    """The most typical image: its scores [C, 6, N] minus clean are closest to their mean (L2)."""
    changes = scores[:, 1:] - scores[:, :1]
    return int(np.square(changes - changes.mean(axis=-1, keepdims=True)).sum(axis=(0, 1)).argmin())


def draw_examples(
    path: pathlib.Path, results: Results, subject: Subject, corrupted: Corrupted, scores: np.ndarray
) -> None:
    """Draws one image at rising severity under several corruptions, each with its score."""
    score = results["score"]
    shown = scores[[CORRUPTIONS.index(name) for name in _SHOWN]]
    row, columns = choose_example(shown), 1 + len(SEVERITIES)
    clean = subject.test.images(row, row + 1)[0]
    style = {"axes.grid": False, "axes.titlelocation": "center"}
    with plots.drawing(path, 1.35 * columns, 1.6 * len(shown), **style) as figure:
        axes = figure.subplots(len(shown), columns, subplot_kw={"xticks": [], "yticks": []})
        for line, name, values in zip(axes, _SHOWN, shown, strict=True):
            images = [corrupted.read(name, severity, row, row + 1)[0] for severity in SEVERITIES]
            for level, (axis, image) in enumerate(zip(line, [clean, *images], strict=True)):
                axis.imshow(image, interpolation="nearest")
                axis.set_xlabel(f"{values[level, row]:.2f}", labelpad=2)
            line[0].set_ylabel(_words(name))
        for level, axis in enumerate(axes[0]):
            axis.set_title("clean" if level == 0 else f"severity {level}")
        image = f"for the image whose {score}\nchanges most like the mean over all images"
        figure.suptitle(f"{score} from mild to severe, {image}", fontsize=10)
        figure.tight_layout()
