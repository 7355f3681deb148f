"""Images from certain to uncertain: clean, corrupted and foreign ones, as a model judges them.

    python examples/show_certainty.py cifar10 --output=certainty.png

The first argument is any MODEL: a shipped name, a run, an export or a .keras file. The images are
300 of CIFAR-10's test split (30 per class, drawn with seed 0; Krizhevsky 2009, from TensorFlow
Datasets `cifar10:3.0.2`), which are next to this file; the same, corrupted; and foreign ones: crops
of the two photographs (a flower, a temple) and digits that come with scikit-learn, stripes and
noise. `--write_images=DATA_DIR` draws the 300 again from a prepared TFDS directory.
"""

import argparse
import pathlib

import matplotlib
import numpy as np
from sklearn.datasets import load_digits, load_sample_images
from sklearn.metrics import roc_auc_score

from tfvmf.programs import cli

cli.import_tensorflow()  # without the lines that it logs

import tfvmf  # noqa: E402
from tfvmf import data  # noqa: E402
from tfvmf.data.corruptions import corrupt  # noqa: E402
from tfvmf.evaluation.plots import STYLE, drawing  # noqa: E402
from tfvmf.evaluation.tables import Cell, Table  # noqa: E402

IMAGES = pathlib.Path(__file__).parent / "cifar10_test_300.npz"
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
PER_CLASS = 30
# One of each family (noise, blur, weather, digital), chosen before any result was seen.
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "fog", "pixelate")
FOREIGN = ("photo crops", "digits", "stripes", "noise")
SHOWN = 9  # images per group, evenly spaced from the most to the least certain

Outputs = dict[str, np.ndarray]


def write_images(data_dir: str) -> None:
    """Draws 30 test images of each class."""
    source = data.load_source("cifar10", "test", data_dir=data_dir, image_size=32)
    rng = np.random.default_rng(0)
    labels = np.asarray(source.labels)
    rows = np.sort(
        np.concatenate(
            [
                rng.choice(np.flatnonzero(labels == each), PER_CLASS, replace=False)
                for each in np.unique(labels)
            ]
        )
    )
    named = {"labels": labels[rows], "class_names": CLASSES}  # TFDS may have numbers only
    np.savez_compressed(IMAGES, images=source.take(rows), rows=rows, **named)


def read_images() -> tuple[np.ndarray, np.ndarray]:
    """The images uint8 [300, 32, 32, 3], and the names of their classes."""
    with np.load(IMAGES, allow_pickle=False) as archive:
        return archive["images"], np.array(CLASSES)[archive["labels"]]


def groups(clean: np.ndarray) -> dict[str, np.ndarray]:
    """Images uint8 [N, H, W, 3] by the name of their group, the clean ones first."""
    rng, count = np.random.default_rng(0), len(clean)
    found = {"clean": clean}
    for severity in (3, 5):
        found |= {f"{name} {severity}": corrupt(clean, name, severity) for name in CORRUPTIONS}
    photos = load_sample_images().images
    crops = []
    for number in range(count):
        photo = photos[number % len(photos)]
        top, left = (rng.integers(0, size - 96) for size in photo.shape[:2])
        crops.append(photo[top : top + 96, left : left + 96])
    digits = (load_digits().images[:count] * 255 / 16).astype(np.uint8)
    across, down = np.meshgrid(np.arange(32), np.arange(32))
    angles, colors = rng.uniform(0, np.pi, count), rng.integers(0, 256, (2, count, 1, 1, 3))
    waves = rng.uniform(0.2, 1.5, count)[:, None, None] * (
        np.cos(angles)[:, None, None] * across + np.sin(angles)[:, None, None] * down
    )
    foreign = (
        np.stack(crops),
        np.repeat(digits[..., None], 3, axis=3),
        np.where(np.sin(waves)[..., None] > 0, *colors).astype(np.uint8),
        rng.integers(0, 256, clean.shape).astype(np.uint8),
    )
    return found | dict(zip(FOREIGN, foreign, strict=True))


def certainty(outputs: Outputs) -> np.ndarray:
    """The confidence of each image, or its kappa if the model is not calibrated."""
    return outputs.get("confidence", outputs["concentration"])


def table(found: dict[str, Outputs], labels: np.ndarray) -> Table:
    """One row per group; with accuracies if the model and the images have classes."""
    clean = certainty(found["clean"])
    rows: list[list[Cell]] = []
    for name, outputs in found.items():
        accept = outputs.get("accept")
        means = [
            float(outputs[key].mean()) if key in outputs else None
            for key in ("concentration", "familiarity", "accept")
        ]
        own = certainty(outputs)
        truth = np.repeat([1, 0], [len(clean), len(own)])
        auroc = None if name == "clean" else roc_auc_score(truth, np.concatenate([clean, own]))
        accuracy: list[Cell] = [None, None]
        if "class" in outputs and name not in FOREIGN:
            right = outputs["class"] == labels
            accuracy[0] = float(right.mean())
            if accept is not None and accept.any():
                accuracy[1] = float(right[accept].mean())
        rows.append([name.replace("_", " "), *means, auroc, *accuracy])
    titles = ["group", "mean kappa", "mean familiarity", "share accepted", "AUROC against clean"]
    return Table(columns=[*titles, "accuracy", "accuracy if accepted"], rows=rows, form=".2f")


def summary(found: dict[str, Outputs], labels: np.ndarray) -> list[str]:
    """The table in up to two sentences; none if the model is not calibrated."""
    if "accept" not in found["clean"]:
        return []
    bad = [name for name in found if name.endswith(" 5")]

    def share(names: list[str]) -> float:
        return float(np.mean([found[name]["accept"].mean() for name in names]))

    lines = [
        f"accepted: {share(['clean']):.0%} of the clean images, {share(bad):.0%} of those with the "
        f"strongest corruption, {share(list(FOREIGN)):.0%} of the foreign ones"
    ]
    if "class" in found["clean"]:
        names = [name for name in found if name not in FOREIGN]
        right = np.concatenate([found[name]["class"] == labels for name in names])
        accept = np.concatenate([found[name]["accept"] for name in names])
        if accept.any() and not accept.all():
            lines.append(
                f"classified correctly, clean and corrupted: {right[accept].mean():.0%} of the "
                f"accepted images, {right[~accept].mean():.0%} of the rejected ones"
            )
    return lines


def draw(images: dict[str, np.ndarray], found: dict[str, Outputs], path: pathlib.Path) -> None:
    """One row per group, from certain (left) to uncertain (right); rejected ones have a frame."""
    names = [name for name in images if not name.endswith(" 3")]
    style = {"axes.grid": False, "figure.constrained_layout.use": True}
    with matplotlib.rc_context(STYLE), drawing(path, 11, 1.6 * len(names), **style) as figure:
        for row, name in enumerate(names):
            outputs, own = found[name], certainty(found[name])
            # Ties (many confidences are equal) are broken by kappa.
            order = np.lexsort((outputs["concentration"], own))[::-1]
            places = order[np.linspace(0, len(order) - 1, SHOWN).round().astype(int)]
            for column, place in enumerate(places):
                axis = figure.add_subplot(len(names), SHOWN, row * SHOWN + column + 1)
                axis.imshow(images[name][place], interpolation="nearest")
                axis.set(xticks=[], yticks=[])
                lines = [f"kappa {outputs['concentration'][place]:.2f}"]
                if "familiarity" in outputs:
                    lines.append(f"familiarity {outputs['familiarity'][place]:.1f}")
                accepted = outputs["accept"][place] if "accept" in outputs else True
                if "accept" in outputs:
                    lines.append("accept" if accepted else "REJECT")
                if accepted and "class" in outputs:
                    lines[-1] += f": {outputs['class'][place]}"
                color = "#333333" if accepted else "#c22222"
                axis.set_xlabel("\n".join(lines), fontsize=7, color=color, labelpad=2)
                for spine in axis.spines.values():
                    spine.set(visible=not accepted, color=color, linewidth=2.5)
                if column == 0:
                    accepted = outputs.get("accept")
                    share = "" if accepted is None else f"\n{accepted.mean():.0%} accepted"
                    axis.set_ylabel(name.replace("_", " ") + share, fontsize=9)
        figure.suptitle("most certain of each group (left) to least certain (right)", fontsize=10)


def main() -> None:
    """Embeds all groups, prints the table, draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="cifar10")
    parser.add_argument("--output", default="certainty.png", type=pathlib.Path)
    parser.add_argument("--write_images", metavar="DATA_DIR", help="draw the images again, stop")
    options = parser.parse_args()
    if options.write_images:
        write_images(options.write_images)
        return
    try:
        model = tfvmf.load(options.model)
        clean, labels = read_images()
        images = groups(clean)
        found = {
            # A list: each image is resized to what the model takes.
            name: model.embed(list(pixels), progress=False)
            for name, pixels in images.items()
        }
    except tfvmf.UserError as error:
        parser.error(str(error))
    print(table(found, labels).text())
    print("\n".join(summary(found, labels)))
    draw(images, found, options.output)
    print(f"picture: {options.output}")


if __name__ == "__main__":
    main()
