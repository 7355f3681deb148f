r"""Turns a finished run into a model of the package: `tfvmf/shipped/NAME` and docs/models.md.

    python tools/ship.py runs/cifar10_cpu-kappa cifar10 --commit=COMMIT --time="58 + 3 minutes" \
        --command="tfvmf train --config=cifar10_cpu" --command="tfvmf fit-kappa runs/..." \
        --failure="Letters look familiar."

What ships is a run directory with what inference needs: settings, weights (`write_weights`), the
judge, calibrated again with these weights on the run's reserve, and the probe, if there is one.
Nothing is shipped unless its outputs agree with the run's on test images and noise. `card.json` has
data, commands, commit, seed, time, the results in the run's `eval` and known failures.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import tfvmf
from tfvmf import files, inference, posthoc, training
from tfvmf.errors import UserError
from tfvmf.evaluation.tables import Table
from tfvmf.methods import Method
from tfvmf.posthoc.judge import FILE, make_judge
from tfvmf.serving.loader import SHIPPED_CARD
from tfvmf.training import checkpoints, run_directory

LIMIT = 10_000_000  # bytes in all
AGREE = 1e-3  # largest difference of outputs, see `pack`
BITS = (8, 9, 10, 11, 12, 14, 16, 23)  # numbers of bits to try, after the leading one of a weight
PAGE = pathlib.Path(__file__).parents[1] / "docs" / "models.md"
SECTION = "results.md"  # a model's part of the page, in its directory
_LOW = 0.7  # an AUROC below it is a failure
_IMAGES = 1000
_INTRO = """\
# Models that come with the package

`tfvmf.load(NAME)` returns one, and `tfvmf embed NAME FOLDER --output=out.parquet`, `tfvmf evaluate
NAME`, `tfvmf export NAME` and `tfvmf fit-kappa NAME` take it where they take a run. The `.card`
of the loaded model has the facts on this page. The page is written by `tools/ship.py`.

The 300 images in `examples/cifar10_test_300.npz`, on which `make demo` shows the model, are 30 of
each class of the test split of CIFAR-10 (Alex Krizhevsky, "Learning Multiple Layers of Features
from Tiny Images", 2009; https://www.cs.toronto.edu/~kriz/cifar.html), drawn with seed 0 from
TensorFlow Datasets' `cifar10:3.0.2`; `rows` gives their places there.
"""


def ship(run: pathlib.Path, name: str, *, told: dict[str, Any], data_dir: str = "") -> pathlib.Path:
    """Writes or replaces the directory of a shipped model; returns it.

    Args:
        run: A finished run with a judge.
        name: The name for `tfvmf.load`.
        told: Facts that the run does not have: `commands`, `commit`, `time`, `failures`, and names
            of the `classes` if the data have none.
        data_dir: Where TFDS finds the run's data, if not where the run found them.
    """
    classes = told.get("classes")
    config, method, step = training.load_method(run)
    judge, probe = posthoc.load(run, step=step), posthoc.load_probe(run, step=step)
    if judge is None:
        raise UserError(f"{run} has no judge: train it with --config.data.reserve")
    config.data.data_dir = data_dir or config.data.data_dir
    reserve = training.load_reserve(config)
    test = training.load_source(
        config, config.data.eval_source or config.data.source, config.data.eval_split
    )
    assert reserve is not None
    with tempfile.TemporaryDirectory() as scratch:
        place = pathlib.Path(scratch) / name
        stored, facts = run_directory.read(run)
        stored.data.data_dir = ""  # no paths of this machine
        stored.fit_kappa.model = pathlib.Path(stored.fit_kappa.model).name
        run_directory.write_or_check_config(place, stored, facts)
        images = test.take(np.arange(min(_IMAGES, test.size)))
        noise = np.random.default_rng(0).integers(0, 256, images[:100].shape, dtype=np.uint8)
        images = np.concatenate([images, noise])
        packed, bits, agreement = pack(place, method, step, images)
        rounded = smaller(judge.familiarity)
        make_judge(
            config,
            packed,
            reserve,
            step=step,
            alpha=judge.decision.alpha,
            familiarity=rounded,
        ).save(place)
        with np.load(place / FILE) as archive:
            values = dict(archive)
        np.savez_compressed(place / FILE, allow_pickle=False, **values)
        if probe is not None:
            names = classes or probe.names
            if len(names) != len(probe.names):
                raise UserError(f"--classes: expected {len(probe.names)} names")
            probe = dataclasses.replace(probe, names=names)
            probe.save(place)
        agreement |= compare_judges(run, place, images)
        results = read_results(run)
        size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        card = {
            "name": name,
            "description": f"{config.method}: {method.describe_encoder()}",
            "data": {
                "source": config.data.source,
                "split": config.data.train_split,
                "images": facts["train_images"],
                "kept_for_calibration": reserve.size,
                "labels": "none for the encoder, kappa, familiarity and the decision"
                + ("; the probe was fitted to the labels of the training images" if probe else ""),
            },
            "seed": config.seed,
            "bytes": size,
            "bits": bits,
            "agreement": agreement,
            "results": results,
            **{key: value for key, value in told.items() if key != "classes"},
            "failures": [*told["failures"], *failures(run)],
        }
        files.write_json(place / SHIPPED_CARD, card)
        files.write_text(place / SECTION, section(card, _pages(run)))
        size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        if size > LIMIT:
            raise UserError(f"{name} has {size:,} bytes: at most {LIMIT:,} are allowed")
        files.copy(place, files.SHIPPED / name)
    return files.SHIPPED / name


def smaller(familiarity: posthoc.Familiarity) -> posthoc.Familiarity:
    """The same densities in arrays that compress well: rounded, with a triangular whitening.

    |x W| is the same for every W with the same W W', and a Cholesky factor is half zeros.
    """
    bank, whitening = familiarity.bank.astype(np.float32), familiarity.whitening.astype(np.float64)
    if len(whitening):
        whitening = np.linalg.cholesky(whitening @ whitening.T)
    return dataclasses.replace(
        familiarity,
        bank=(np.round(bank * 1024) / 1024).astype(np.float16),
        whitening=_round(whitening.astype(np.float16), bits=8),
    )


def _round(values: np.ndarray, *, bits: int) -> np.ndarray:
    """float16 with only `bits` bits after the leading one; the zeros compress."""
    unit = 1 << (10 - bits)
    whole = values.view(np.uint16).astype(np.uint32)
    return ((whole + unit // 2) & ~np.uint32(unit - 1)).astype(np.uint16).view(np.float16)


def pack(
    place: pathlib.Path, method: Method, step: int, images: np.ndarray
) -> tuple[Method, int, dict[str, float]]:
    """Packs weights with the fewest bits for which the outputs agree.

    Returns:
        The method loaded again, the number of bits, and the largest differences: of features and
        kappa relative to the largest value, of the unit vectors absolute.
    """
    ours = inference.Embedder(method.encoder)(images)
    for bits in BITS:
        write_weights(place, method, step, bits=bits)
        _, packed, _ = training.load_method(place)
        theirs = inference.Embedder(packed.encoder)(images)
        scales = {name: float(np.abs(values).max()) for name, values in ours.items()}
        scales["mean_direction"] = 1.0
        found = {
            name: float(np.abs(ours[name] - theirs[name]).max()) / scales[name] for name in ours
        }
        if max(found.values()) <= AGREE:
            return packed, bits, found
    raise UserError(f"outputs differ by {found}: at most {AGREE}")


def write_weights(place: pathlib.Path, method: Method, step: int, *, bits: int = 23) -> None:
    """Writes `weights.npz`, the weights that inference needs.

    Matrices and filters keep only `bits` bits after the leading one of each float32. First bytes of
    all values come first, then second bytes and so on, so that they compress.
    """
    values = [variable.numpy() for variable in checkpoints.variables_of(method)]
    large = [value.ravel() for value in values if value.ndim > 1] or [np.zeros(0, np.float32)]
    whole = np.concatenate(large).astype(">f4").view(">u4").astype(np.uint64)
    unit = 1 << (23 - bits)
    whole = (whole + unit // 2) // unit * unit
    with files.replacing(place / checkpoints.PACKED) as file:
        np.savez_compressed(
            file,
            allow_pickle=False,
            step=step,
            planes=whole.astype(">u4").view(np.uint8).reshape(-1, 4).T.copy(),
            small=np.concatenate([value.ravel() for value in values if value.ndim <= 1]),
        )


def compare_judges(run: pathlib.Path, place: pathlib.Path, images: np.ndarray) -> dict[str, float]:
    """Differences of the shipped judge from the run's; UserError if they are too large.

    Familiarity is a sum in standard deviations of training images: 0.05 is little. The decision
    matters more, and was calibrated again.
    """
    ours, theirs = (tfvmf.load(each).embed(images, progress=False) for each in (run, place))
    found = {
        "familiarity": float(np.median(np.abs(ours["familiarity"] - theirs["familiarity"]))),
        "decisions_that_differ": float((ours["accept"] != theirs["accept"]).mean()),
    }
    if found["familiarity"] > 0.05 or found["decisions_that_differ"] > 0.01:
        raise UserError(f"the judge gives other answers: {found}")
    return found


def _results(run: pathlib.Path) -> Iterable[tuple[str, dict[str, Any]]]:
    for path in sorted(run.glob("eval/**/results.json")):
        yield path.parent.name, json.loads(path.read_text(encoding="utf-8"))


def read_results(run: pathlib.Path) -> dict[str, Any]:
    """The verdict and the headlines of every suite whose results are in the run."""
    return {
        suite: {
            "verdict": results["verdict"],
            "images": results.get("images"),
            "numbers": {line[0]: line[1] for line in results["page"]["headlines"]},
        }
        for suite, results in _results(run)
    }


def failures(run: pathlib.Path) -> list[str]:
    """Rows of the suites' main tables with an AUROC below 0.7, in words."""
    found = []
    for suite, results in _results(run):
        tables = [block for block in results["page"]["blocks"] if isinstance(block, dict)]
        for table in tables[:1]:
            titles = [title for title in table["columns"] if "AUROC" in title]
            for title in titles[:1]:
                place = table["columns"].index(title)
                low = [
                    f"{row[0]} {row[place]:.2f}"
                    for row in table["rows"]
                    if isinstance(row[place], float) and row[place] < _LOW
                ]
                if low:
                    found.append(f"{suite}: {title} below {_LOW}: {', '.join(low)}")
    return found


def _pages(run: pathlib.Path) -> list[str]:
    """The tables of the suites, with headings of the third level."""
    paths = sorted(run.glob("eval/**/table.md"))
    return [f"##{path.read_text(encoding='utf-8').strip()}" for path in paths]


def section(card: dict[str, Any], pages: Sequence[str]) -> str:
    """The part of docs/models.md about one model."""
    data = card["data"]
    facts = [
        ["network", card["description"]],
        ["data", f"{data['source']} ({data['split']}), {data['images']:,} images"],
        ["labels used", data["labels"]],
        ["kept for calibration", f"{data['kept_for_calibration']:,} images"],
        ["commands", "; ".join(card["commands"])],
        *([key, str(card[key])] for key in ("commit", "seed", "time")),
        ["size", f"{card['bytes'] / 1e6:.1f} MB"],
    ]
    numbers = [
        [suite, words, value]
        for suite, found in card["results"].items()
        for words, value in found["numbers"].items()
    ]
    lines = [
        f"## `{card['name']}`",
        Table(columns=["", ""], rows=facts).markdown(),
        "### Results",
        Table(columns=["suite", "number", "value"], rows=numbers).markdown(),
        "### Known failures",
        "\n".join(f"- {text}" for text in card["failures"]) or "None is known.",
        *pages,
    ]
    return "\n\n".join(line.strip() for line in lines) + "\n"


def write_page() -> None:
    """Writes docs/models.md about all shipped models."""
    names = files.shipped_models()
    parts = [(files.SHIPPED / name / SECTION).read_text(encoding="utf-8") for name in names]
    files.write_text(PAGE, "\n".join([_INTRO, *parts]))


def main() -> None:
    """Ships one run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("name")
    parser.add_argument("--command", dest="commands", action="append", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--time", required=True)
    parser.add_argument("--failure", dest="failures", action="append", default=[])
    parser.add_argument("--data_dir", default="")
    parser.add_argument("--classes", type=lambda text: text.split(","), default=[])
    told = vars(parser.parse_args())
    run, name, data_dir = told.pop("run"), told.pop("name"), told.pop("data_dir")
    try:
        place = ship(run, name, told=told, data_dir=data_dir)
    except UserError as error:
        sys.exit(f"ship: {error}")
    write_page()
    card = json.loads((place / SHIPPED_CARD).read_text(encoding="utf-8"))
    print(f"shipped: {place}, {card['bytes']:,} bytes; differences {card['agreement']}")


if __name__ == "__main__":
    main()
