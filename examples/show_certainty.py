"""Images from certain to uncertain: clean, corrupted and foreign ones, as a model judges them.

    python examples/show_certainty.py cifar10 --output=certainty.png

The first argument is any MODEL: a shipped name, a run, an export or a .keras file. The images are
300 of CIFAR-10's test split (30 per class, drawn with seed 0; Krizhevsky 2009, from TensorFlow
Datasets `cifar10:3.0.2`), which are beside this file; digits of scikit-learn; and uniform noise.
`--write_images=DATA_DIR` draws the 300 again from a prepared TFDS directory.
"""

import argparse
import pathlib

import matplotlib
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

import tfvmf
from tfvmf import data
from tfvmf.data.corruptions import corrupt
from tfvmf.evaluation.plots import STYLE, drawing
from tfvmf.evaluation.tables import Table

IMAGES = pathlib.Path(__file__).parent / "cifar10_test_300.npz"
PER_CLASS = 30
# One of each family (noise, blur, weather, digital), chosen before any result was seen.
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "fog", "pixelate")
SHOWN = 9  # images of a group, evenly spaced from its most to its least certain one


def write_images(data_dir: str) -> None:
    """Draws as many test images of each class."""
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
    np.savez_compressed(IMAGES, images=source.take(rows), labels=labels[rows], rows=rows)


def groups() -> dict[str, np.ndarray]:
    """Images uint8 [N, H, W, 3] by the name of their group, the clean ones first."""
    with np.load(IMAGES, allow_pickle=False) as archive:
        clean = archive["images"]
    found = {"clean": clean}
    for severity in (3, 5):
        found |= {f"{name} {severity}": corrupt(clean, name, severity) for name in CORRUPTIONS}
    digits = (load_digits().images[: len(clean)] * 255 / 16).astype(np.uint8)
    found["digits"] = np.repeat(digits[..., None], 3, axis=3)
    found["noise"] = np.random.default_rng(0).integers(0, 256, clean.shape).astype(np.uint8)
    return found


def certainty(outputs: dict[str, np.ndarray]) -> np.ndarray:
    """The confidence of each image or, of a model that is not calibrated, its kappa."""
    return outputs.get("confidence", outputs["concentration"])


def table(found: dict[str, dict[str, np.ndarray]]) -> Table:
    """One row per group."""
    clean = certainty(found["clean"])
    rows = []
    for name, outputs in found.items():
        means = [
            float(outputs[key].mean()) if key in outputs else None
            for key in ("concentration", "familiarity", "accept")
        ]
        own = certainty(outputs)
        labels = np.repeat([1, 0], [len(clean), len(own)])
        auroc = None if name == "clean" else roc_auc_score(labels, np.concatenate([clean, own]))
        rows.append([name.replace("_", " "), len(own), *means, auroc])
    titles = ["group", "number", "mean kappa", "mean familiarity", "share accepted"]
    return Table(columns=[*titles, "AUROC against clean"], rows=rows)


def draw(
    images: dict[str, np.ndarray], found: dict[str, dict[str, np.ndarray]], path: pathlib.Path
) -> None:
    """One row per group, from certain (left) to uncertain (right); rejected ones have a frame."""
    names = [name for name in images if not name.endswith(" 3")]
    style = {"axes.grid": False, "figure.constrained_layout.use": True}
    with matplotlib.rc_context(STYLE), drawing(path, 11, 1.55 * len(names), **style) as figure:
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
                    lines.append(f"familiarity {outputs['familiarity'][place]:.2f}")
                accepted = outputs["accept"][place] if "accept" in outputs else True
                if "accept" in outputs:
                    lines.append("accept" if accepted else "REJECT")
                color = "#333333" if accepted else "#c22222"
                axis.set_xlabel("\n".join(lines), fontsize=7, color=color, labelpad=2)
                for spine in axis.spines.values():
                    spine.set(visible=not accepted, color=color, linewidth=2)
                if column == 0:
                    axis.set_ylabel(name.replace("_", " "), fontsize=9)
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
        images = groups()
        found = {
            # A list: each image is resized to what the model takes.
            name: model.embed(list(pixels), progress=False)
            for name, pixels in images.items()
        }
    except tfvmf.UserError as error:
        parser.error(str(error))
    print(table(found).text())
    draw(images, found, options.output)
    print(f"picture: {options.output}")


if __name__ == "__main__":
    main()
