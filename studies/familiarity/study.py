"""Which density tells familiar images from others, and how is it joined with kappa?

    .venv/bin/python -m studies.familiarity.study --run=runs/cifar10_cpu-simclr_vmf-kappa \
        --data_dir=DIR --directory=runs/familiarity_study [--suite]

The run is any run on CIFAR-10 with a concentration head (`tfvmf fit-kappa`) and a reserve. Nothing
is fitted with labels, except that "left out" fits densities to images of seven classes and asks
about the other three.

The criterion, written down before the suite was looked at: the mean of two AUROCs,

- shifts: clean images against severity 5 of the fifteen validation shifts of `studies/kappa`
  (mean over the shifts), and
- left out: images of the seven classes against images of the three others (mean over three
  divisions).

The best score by this criterion, of those that need at most 10 MB, is the default. Of the ways to
join it with kappa, the sum of the logarithms of both p was chosen by the mean AUROC of the shifts,
its weights by the criterion. --suite adds the 18 corruptions, CIFAR-100 and MNIST, which
judge a choice that was made.
"""

import pathlib
import time
from collections.abc import Callable, Sequence
from functools import partial

import tfvmf  # isort: skip # noqa: F401 # before TensorFlow: it says which kernels to use
import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.covariance import ledoit_wolf
from sklearn.metrics import roc_auc_score

from studies.kappa.shifts import SHIFTS
from tfvmf import inference, models, training
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from tfvmf.data.images import resize_images
from tfvmf.evaluation.suites.cifar10c import correlate
from tfvmf.posthoc import Decision, Familiarity

Vectors = dict[str, np.ndarray]  # features, levels, concentration, mean_direction; [..., N, .]
Score = Callable[[Vectors], np.ndarray]  # high where an image is familiar
_TRAIN, _TEST = 10_000, 500
_LEFT_OUT = ((0, 1, 2), (3, 4, 5), (7, 8, 9))  # classes; 6, the frog, is always there

flags.DEFINE_string("run", "", "a run on CIFAR-10 with a concentration head")
flags.DEFINE_string("data_dir", "", "where TFDS finds CIFAR-10, CIFAR-100 and MNIST")
flags.DEFINE_string("directory", "", "keeps the vectors")
flags.DEFINE_bool("joins", False, "only the second table")
flags.DEFINE_bool("suite", False, "judge on the 18 corruptions and foreign sets too")


def collect(run: str, data_dir: str, directory: pathlib.Path, *, suite: bool) -> dict[str, Vectors]:
    """All vectors, computed once and kept."""
    directory.mkdir(parents=True, exist_ok=True)
    config, method, _ = training.load_method(run)
    config.data.data_dir = data_dir or config.data.data_dir
    size, rng = config.data.image_size, np.random.default_rng(0)
    embedder = inference.Embedder(models.with_levels(method.encoder))

    def load(name: str, split: str, count: int, skip: int = 0) -> tuple[np.ndarray, np.ndarray]:
        source = training.load_source(config, name, split)
        rows = rng.permutation(source.size)[skip : skip + count]
        labels = np.zeros(len(rows)) if source.labels is None else source.labels[rows]
        return source.native().take(rows), labels

    def embed(pixels: np.ndarray) -> Vectors:
        parts = [
            embedder(resize_images(p, size)) for p in np.array_split(pixels, 1 + len(pixels) // 500)
        ]
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    def damaged(damage: Callable[[int], np.ndarray]) -> Vectors:
        parts = [embed(damage(severity)) for severity in SEVERITIES]
        return {key: np.stack([part[key] for part in parts]) for key in parts[0]}

    def foreigners(name: str) -> Vectors:
        return embed(load(name, "test", 2 * _TEST)[0])

    source = config.data.source
    train, train_labels = load(source, config.data.train_split, _TRAIN)
    test, labels = load(source, config.data.eval_split, 4 * _TEST)
    judged, validated, others = test[:_TEST], test[_TEST : 2 * _TEST], test[2 * _TEST :]
    reserve = training.load_reserve(config)
    assert reserve is not None, "the run keeps no reserve"
    kept_labels = np.asarray(reserve.labels)
    made: dict[str, Callable[[], Vectors]] = {
        "train": lambda: {**embed(train), "labels": train_labels},
        "others": lambda: {**embed(others), "labels": labels[2 * _TEST :]},
        "reserve": lambda: {**embed(reserve.native().images()), "labels": kept_labels},
        "validation_clean": lambda: embed(validated),
    }
    for name, shift in SHIFTS.items():
        made[f"validation_{name}"] = partial(damaged, partial(shift, validated))
    if suite:
        made["suite_clean"] = lambda: embed(judged)
        for name in CORRUPTIONS:
            made[f"suite_{name}"] = partial(damaged, partial(corrupt, judged, name))
        for name in ("cifar100", "mnist"):
            made[f"foreign_{name}"] = partial(foreigners, name)
    kept = {}
    for name, make in made.items():
        path = directory / f"{name}.npz"
        if not path.exists():
            np.savez(path, allow_pickle=False, **make())
        with np.load(path, allow_pickle=False) as found:
            kept[name] = dict(found)
    return kept


def unit(values: np.ndarray) -> np.ndarray:
    """Rows [..., F] at unit length."""
    return values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12)


def blocks(score: Callable[..., np.ndarray], *keys: str) -> Score:
    """A score of vectors of any leading shape, some rows at a time."""

    def apply(vectors: Vectors) -> np.ndarray:
        flat = [vectors[key].reshape(-1, vectors[key].shape[-1]) for key in keys]
        cuts = range(0, len(flat[0]), 1000)
        parts = [np.asarray(score(*(f[cut : cut + 1000] for f in flat))) for cut in cuts]
        return np.concatenate(parts).reshape(vectors[keys[0]].shape[:-1])

    return apply


def kernels(known: Vectors, bandwidth: float, bank: int) -> Score:
    """The logarithm of sum exp(bandwidth u.b_i) over a bank of training directions."""
    table = tf.constant(unit(known["features"][:bank]).T)
    return blocks(
        lambda x: tf.reduce_logsumexp(bandwidth * (unit(x) @ table), axis=1).numpy(), "features"
    )


def nearest(known: Vectors, count: int = 5) -> Score:
    """Mean cosine to the nearest training directions."""
    table = tf.constant(unit(known["features"]).T)
    return blocks(
        lambda x: tf.reduce_mean(tf.math.top_k(unit(x) @ table, count)[0], axis=1).numpy(),
        "features",
    )


def mahalanobis(known: Vectors, key: str, *, softness: float = 0.0) -> Score:
    """Minus the squared distance to the mean, by a shrunk covariance.

    Of features at unit length, or of arcsinh(x / (softness * deviation)) where softness is given.
    """
    soft = softness * np.maximum(known[key].std(axis=0), 1e-6)
    prepare: Callable[[np.ndarray], np.ndarray] = (
        (lambda x: np.arcsinh(x / soft)) if softness else unit if key == "features" else np.asarray
    )
    values = prepare(known[key])
    center, scale = values.mean(axis=0), np.maximum(values.std(axis=0), 1e-6)
    covariance, _ = ledoit_wolf((values - center) / scale, assume_centered=True)
    factor = np.linalg.cholesky(np.linalg.inv(covariance)).astype(np.float32)
    return blocks(lambda x: -np.square((prepare(x) - center) / scale @ factor).sum(axis=1), key)


def summed(known: Vectors, *fits: Callable[[Vectors], Score]) -> Score:
    """The sum of scores that are fitted to most images, each standardized on the others."""
    order = np.random.default_rng(0).permutation(len(known["features"]))
    apart, made_of = np.split(order, [len(order) // 10])
    scores = [fit({key: value[made_of] for key, value in known.items()}) for fit in fits]
    values = [score({key: value[apart] for key, value in known.items()}) for score in scores]
    return lambda of: sum(
        (score(of) - value.mean()) / value.std()
        for score, value in zip(scores, values, strict=True)
    )


def product(known: Vectors, **options: int) -> Score:
    """`tfvmf.posthoc.Familiarity`."""
    fitted = Familiarity.fit(known["features"], known.get("levels"), **options)
    keys = ("features", "levels") if "levels" in known else ("features",)
    return blocks(lambda *parts: fitted(*parts).numpy(), *keys)


def candidates(known: Vectors) -> dict[str, Callable[[], Score]]:
    """Scores by name; each is fitted when it is called."""
    found: dict[str, Callable[[], Score]] = {
        "feature norm (control)": lambda: blocks(lambda x: np.linalg.norm(x, axis=1), "features"),
        "5 nearest directions (control)": lambda: nearest(known),
        **{
            f"kernels, bandwidth {b}, bank 4,096": partial(kernels, known, b, 4096)
            for b in (20, 50, 100, 200)
        },
        **{
            f"kernels, bandwidth 50, bank {n:,}": partial(kernels, known, 50, n)
            for n in (256, 1024)
        },
        "Mahalanobis, unit features (SSD)": lambda: mahalanobis(known, "features"),
    }
    if "levels" in known:
        for softness in (0.0, 1.0, 0.3, 0.1, 0.03):
            levels = partial(mahalanobis, softness=softness, key="levels")
            name = f"levels, arcsinh {softness:g}" if softness else "levels"
            found[f"Mahalanobis, {name}"] = partial(levels, known)
            found[f"kernels and {name}"] = partial(
                summed, known, partial(kernels, bandwidth=50, bank=4096), levels
            )
        found["kernels, unit features and levels, arcsinh 0.3"] = partial(
            summed,
            known,
            partial(kernels, bandwidth=50, bank=4096),
            partial(mahalanobis, key="features"),
            partial(mahalanobis, key="levels", softness=0.3),
        )
    found["Familiarity: kernels and levels, arcsinh 0.3"] = lambda: product(known)
    found["Familiarity, bank 1,024"] = lambda: product(known, bank_size=1024)
    return found


def shifted(score: Score, vectors: dict[str, Vectors], group: str) -> tuple[float, float]:
    """Mean AUROC (clean against severity 5) and mean six-point Spearman over shifts."""
    clean, aurocs, spearmans = score(vectors[f"{group}_clean"]), [], []
    for name in SHIFTS if group == "validation" else CORRUPTIONS:
        values = score(vectors[f"{group}_{name}"])
        aurocs.append(auroc(clean, values[-1]))
        spearmans.append(correlate(np.stack([clean, *values]), rounds=1).spearman)
    return float(np.mean(aurocs)), float(np.mean(spearmans))


def auroc(familiar: np.ndarray, other: np.ndarray) -> float:
    """How often a familiar image has the higher score."""
    labels = np.repeat([1, 0], [len(familiar), len(other)])
    return float(roc_auc_score(labels, np.concatenate([familiar, other])))


def divisions(vectors: dict[str, Vectors]) -> list[tuple[Vectors, Vectors]]:
    """Training images and reserve without the classes that are left out, three times."""

    def without(name: str, classes: tuple[int, ...]) -> Vectors:
        known = ~np.isin(vectors[name]["labels"], classes)
        return {key: value[known] for key, value in vectors[name].items()}

    return [(without("train", classes), without("reserve", classes)) for classes in _LEFT_OUT]


def left_out(vectors: dict[str, Vectors], scores: list[Score]) -> float:
    """Mean AUROC of images of known classes against those of classes that were left out."""
    found = []
    for classes, score in zip(_LEFT_OUT, scores, strict=True):
        values = score(vectors["others"])
        foreign = np.isin(vectors["others"]["labels"], classes)
        found.append(auroc(values[~foreign], values[foreign]))
    return float(np.mean(found))


def joins(reserve: Vectors, familiarity: Score) -> dict[str, Score]:
    """Kappa, familiarity, and ways to join them, calibrated on the reserve."""
    tables = [np.sort(reserve["concentration"]), np.sort(familiarity(reserve))]

    def p_and_tails(of: Vectors) -> tuple[np.ndarray, np.ndarray]:
        """Both p-values, and how far both scores are below all calibration images."""
        pairs = list(zip(tables, [of["concentration"], familiarity(of)], strict=True))
        ranks = [np.searchsorted(table, value, side="right") for table, value in pairs]
        below = [np.maximum(table[0] - value, 0) / table.std() for table, value in pairs]
        return (1 + np.stack(ranks)) / (len(tables[0]) + 1), np.stack(below)

    def p_values(of: Vectors) -> np.ndarray:
        return p_and_tails(of)[0]

    def logarithms(of: Vectors) -> np.ndarray:
        """The logarithms of both p, which fall further below all calibration images."""
        p, below = p_and_tails(of)
        return np.log(p) - below

    def weighted(weight: float) -> Score:
        return lambda of: np.tensordot([1.0, weight], logarithms(of), axes=1)

    decision = Decision.fit(reserve["concentration"], familiarity(reserve))

    def decided(of: Vectors) -> np.ndarray:
        kappa, known = of["concentration"], familiarity(of)
        flat = decision(kappa.ravel(), known.ravel().astype(np.float32))["confidence"]
        return np.asarray(flat).reshape(kappa.shape)

    return {
        "kappa": lambda of: of["concentration"],
        "familiarity": familiarity,
        "the smaller p": lambda of: np.minimum(*p_values(of)),
        "the smaller p, with tails": lambda of: logarithms(of).min(axis=0),
        "harmonic mean of both p": lambda of: 2.0 / (1.0 / p_values(of)).sum(axis=0),
        "harmonic mean, with tails": lambda of: -np.logaddexp(*-logarithms(of)),
        "sum of log p": lambda of: np.log(p_values(of)).sum(axis=0),
        **{
            f"log p of kappa + {weight:g} log p of familiarity, with tails": weighted(weight)
            for weight in (0.5, 1.0, 1.5, 2.0, 3.0)
        },
        "Decision, confidence": decided,
    }


def main(argv: Sequence[str]) -> None:
    """Embeds, fits, prints two Markdown tables."""
    del argv
    given = flags.FLAGS
    vectors = collect(given.run, given.data_dir, pathlib.Path(given.directory), suite=given.suite)
    known, judged = vectors["train"], ["shifts", "left out", "criterion", "Spearman of the shifts"]
    judged += ["us per image"]
    beyond = ["suite", "suite: Spearman", "CIFAR-100", "MNIST"] if given.suite else []
    print(f"| score | {' | '.join(judged + beyond)} |\n| --- |{' ---: |' * len(judged + beyond)}")

    def judge(name: str, score: Score, without: list[Score]) -> None:
        shifts, spearman = shifted(score, vectors, "validation")
        start = time.perf_counter()
        score(vectors["others"])
        cost = 1e6 * (time.perf_counter() - start) / len(vectors["others"]["concentration"])
        classes = left_out(vectors, without)
        cells = [f"{x:.3f}" for x in (shifts, classes, (shifts + classes) / 2, spearman)]
        cells.append(f"{cost:.0f}")
        if given.suite:
            cells += [f"{x:.3f}" for x in shifted(score, vectors, "suite")]
            clean = score(vectors["others"])
            cells += [
                f"{auroc(clean, score(vectors[f'foreign_{x}'])):.3f}" for x in ("cifar100", "mnist")
            ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)

    parts = divisions(vectors)
    if not given.joins:
        for name, make in candidates(known).items():
            judge(name, make(), [candidates(train)[name]() for train, _ in parts])
        print("\nJoined with kappa:\n")
    without = [joins(kept, product(train)) for train, kept in parts]
    for name, score in joins(vectors["reserve"], product(known)).items():
        judge(name, score, [each[name] for each in without])


if __name__ == "__main__":
    app.run(main)
