"""One loader for all kinds of models; ONNX and LiteRT files are loaded without TensorFlow."""

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import tfvmf
from tfvmf import files
from tfvmf.data import Source
from tfvmf.data.images import raise_all, read_image, resize_image, run_all
from tfvmf.errors import UserError
from tfvmf.files import find_model, read_text, shipped_models
from tfvmf.lazy import lazy_import
from tfvmf.progress import Progress
from tfvmf.serving import formats
from tfvmf.settings import MAX_PIXELS

if TYPE_CHECKING:
    import keras
    import ml_collections
    import tensorflow as tf

    from tfvmf import models, posthoc, training
    from tfvmf.methods import Method
    from tfvmf.models import backbones
    from tfvmf.serving import signatures
else:
    tf, models, backbones, posthoc, training, signatures = lazy_import(
        *("tensorflow", "tfvmf.models", "tfvmf.models.backbones", "tfvmf.posthoc"),
        *("tfvmf.training", "tfvmf.serving.signatures"),
    )

Image = np.ndarray | str | os.PathLike[str] | bytes
Embeddings = dict[str, np.ndarray]

CARD_FILE = "assets.extra/tfvmf.json"  # in the directory of an exported version
SHIPPED_CARD = "card.json"  # in the directory of a shipped model: more facts about it


class EmbeddingModel:
    """A trained model in this process, from `tfvmf.load`: maps images to their embeddings.

    `path` is the run directory, the directory of the exported version, or the file. `card` holds
    `run`, `method`, `step` (of the checkpoint), `image_size`, `dimension` (d), `features` (f),
    `calibration`, `classes` (of its probe), the versions of `tfvmf` and `tensorflow` that wrote an
    export (for a run: of this process), each None if unknown, and a shipped model's `card.json`.
    """

    def __init__(
        self,
        path: pathlib.Path,
        card: dict[str, Any],
        serve: Callable[[np.ndarray], Embeddings],  # maps uint8 [N, H, W, 3]; N may be 0
        *,
        encoder: "keras.Model | None" = None,
    ) -> None:
        self.path, self.card = path, card
        self._serve, self._encoder = serve, encoder

    @property
    def encoder(self) -> "keras.Model":
        """The Keras model, from float images [N, H, W, 3] in [0, 1] to the three outputs."""
        if self._encoder is None:
            raise UserError(
                f"{self.path} is an export, which holds no Keras model: load the run directory "
                "that it was exported from"
            )
        return self._encoder

    def embed(
        self,
        images: np.ndarray | Image | Sequence[Image] | Source,
        *,
        batch_size: int = 64,
        max_pixels: int = MAX_PIXELS,
        progress: bool = True,
    ) -> Embeddings:
        """Embeds any number of images, batch by batch.

        Args:
            images: uint8 [N, H, W, 3]; or a sequence in which each image is an array (uint8
                [H, W, 3], or [H, W] for gray), a file name or the content of a file; or one image;
                or a `tfvmf.data.Source`. Files are read as in training.
            batch_size: Images per forward pass.
            max_pixels: A file with a larger image is rejected.
            progress: Show a progress bar if there is more than one batch.

        Returns:
            NumPy arrays `mean_direction` [N, d], `concentration` [N], `features` [N, f]; if the
            model is calibrated, `familiarity` [N], `confidence` [N] and `accept` [N]; with a
            probe, `class` (str) [N] and `class_probability` [N].
        """
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: use at least 1")
        read, count = self._reader(images, max_pixels)
        parts: list[Embeddings] = []
        many = progress and count > batch_size
        bar = Progress(count, unit="image", description="embedding") if many else None
        with bar or contextlib.nullcontext():
            # `max`: without images there is one empty batch, so that outputs have their shapes.
            for start in range(0, max(count, 1), batch_size):
                batch = read(start, min(start + batch_size, count))
                parts.append(self._serve(np.asarray(batch, np.uint8)))
                if bar:
                    bar.update(len(batch))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _reader(self, images: Any, max_pixels: int) -> tuple[Callable[[int, int], np.ndarray], int]:
        """A function from a range of positions to their pixels, and the number of images."""
        if isinstance(images, Source):
            return images.images, images.size
        if isinstance(images, np.ndarray) and images.ndim == 4:
            good = images.shape[3] == 3 and 0 not in images.shape[1:3]
            _check_array(images, good, "images", "[N, H, W, 3]")
            return lambda start, stop: images[start:stop], len(images)
        if isinstance(images, np.ndarray | str | os.PathLike | bytes):
            images = [images]
        size = self.card["image_size"]
        if size is None:
            raise UserError(
                f"{self.path} has no image size: pass an array [N, H, W, 3], or load it with "
                "image_size=..."
            )

        def read(start: int, stop: int) -> np.ndarray:
            pixels = np.empty((stop - start, size, size, 3), np.uint8)

            def read_one(index: int) -> None:
                image, name = images[start + index], f"images[{start + index}]"
                if isinstance(image, np.ndarray):
                    color = image.ndim == 3 and image.shape[2] == 3
                    good = (color or image.ndim == 2) and 0 not in image.shape
                    _check_array(image, good, name, "[H, W, 3] or [H, W]")
                    pixels[index] = resize_image(image, size)
                else:
                    name = name if isinstance(image, bytes) else ""
                    pixels[index] = read_image(image, size, max_pixels=max_pixels, name=name)

            raise_all(run_all(read_one, len(pixels)))
            return pixels

        return read, len(images)


def load(
    model: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] = "",
    image_size: int | None = None,
    trust_model: bool = False,
    levels: bool = False,
) -> EmbeddingModel:
    """Loads a trained model.

    Args:
        model: The name of a shipped model (`shipped_models`); a run directory (`tfvmf train`); an
            export (`tfvmf export`: one version, or the directory of all, for the newest); its
            `.onnx` or `.tflite` file alone, which does not need TensorFlow; or a `.keras` file of
            an encoder, from float images in [0, 1] to `features`, `mean_direction` and
            `concentration`. `~` is the home directory.
        checkpoint: For a run: `step-110`, `110` or a path; the newest by default.
        image_size: Height and width of the images, for a `.keras` file without a fixed size.
        trust_model: Load a SavedModel (an export, or the one that a run's head was fitted to) even
            if it contains operations that could read or write files, use the network or run code.
        levels: For a run, `embed` also returns `levels` [N, l]: means and deviations of all maps.

    Raises:
        UserError: The model is missing, damaged, unsupported or not trusted.
    """
    path, checkpoint = find_model(model), os.fspath(checkpoint)
    is_run = read_text(path / "config.json") is not None
    if not path.exists():
        raise UserError(
            f"{path}: there is no such file or directory; expected a run directory, an export, a "
            ".keras, .onnx or .tflite file or a shipped model "
            f"({', '.join(shipped_models()) or 'there is none'})"
        )
    if checkpoint and not is_run:
        raise UserError(f"checkpoint={checkpoint}: {path} is not a run directory")
    if image_size is not None and (path.suffix != ".keras" or image_size < 1):
        raise UserError(f"image_size={image_size}: only for .keras files, and at least 1")
    if levels and not is_run:
        raise UserError(f"levels: {path} is not a run directory, and only runs have levels")
    if is_run:
        loaded = _open_run(path, checkpoint, trust_model=trust_model, levels=levels)
    elif path.suffix == ".keras":
        loaded = _open_keras(path, image_size)
    else:
        loaded = _open_export(path, trust_model)
    if path.parent == files.SHIPPED:
        loaded.card |= json.loads(read_text(path / SHIPPED_CARD) or "{}")
    return loaded


def load_run(
    workdir: str | os.PathLike[str], *, checkpoint: str = "", trust_model: bool = False
) -> "tuple[ml_collections.ConfigDict, Method, int]":
    """`training.load_method` for serving: UserError if not all weights are finite."""
    config, method, step = training.load_method(
        workdir, checkpoint=checkpoint, trust_model=trust_model
    )
    for variable in method.encoder.variables:
        if not np.isfinite(variable.numpy()).all():
            raise UserError(
                f"{os.fspath(workdir)}: the weights {variable.path} are not finite: training "
                "diverged; use an earlier checkpoint"
            )
    return config, method, step


def run_card(config: "ml_collections.ConfigDict", method: "Method", step: int) -> dict[str, Any]:
    """Facts about a run; an export stores them as `tfvmf.json`."""
    return {
        **_card(method.encoder.output),
        "run": config.name,
        "method": config.method,
        "step": step,
        "image_size": config.data.image_size if method.takes == "images" else None,
        "tfvmf": tfvmf.__version__,
        "tensorflow": tf.__version__,
    }


def _card(outputs: dict[str, Any]) -> dict[str, Any]:
    names = ("run", "method", "step", "image_size", "calibration", "classes", "tfvmf", "tensorflow")
    dimension, features = (outputs[n].shape[-1] for n in ("mean_direction", "features"))
    return {**dict.fromkeys(names), "dimension": dimension, "features": features}


def read_card(version: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the card of an exported version."""
    path = pathlib.Path(version).expanduser() / CARD_FILE
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{os.fspath(version)} is not a version that tfvmf export wrote (no {CARD_FILE})"
        ) from error


def versions(directory: pathlib.Path) -> list[int]:
    """The versions in a directory, ascending: entries whose names are whole numbers."""
    if not directory.is_dir():
        return []
    # ASCII digits only: int() would also read other scripts, and "1_0" as 10.
    names = [entry.name for entry in directory.iterdir()]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _open_run(
    path: pathlib.Path, checkpoint: str, *, trust_model: bool, levels: bool
) -> EmbeddingModel:
    config, method, step = load_run(path, checkpoint=checkpoint, trust_model=trust_model)
    card = run_card(config, method, step)
    if card["image_size"] is None:
        raise UserError(
            f"{path} is a head that was fitted to features, without an encoder: it takes no images"
        )
    judge = posthoc.load(path, step=step, encoder=method.encoder)
    probe = posthoc.load_probe(path, step=step)
    card |= {"calibration": judge and judge.describe(), "classes": probe and probe.describe()}
    serve = signatures.build_signatures(
        method.encoder, image_size=card["image_size"], judge=judge, probe=probe, levels=levels
    )
    return EmbeddingModel(path, card, arrays(serve["serving_default"]), encoder=method.encoder)


def _open_export(path: pathlib.Path, trust_model: bool) -> EmbeddingModel:
    """Opens a version, the newest version of a directory, or a file for another runtime."""
    known = versions(path)
    if known and not (path / "saved_model.pb").is_file():
        path = path / str(known[-1])
    if not (path / "saved_model.pb").is_file():  # an export may be for other runtimes only
        named = [path / name for names in formats.FILES.values() for name in names]
        path = next((file for file in named if file.is_file()), path)
    if path.suffix in formats.OPEN and path.is_file():
        return EmbeddingModel(path, *formats.open_file(path))
    if not known and not (path / "saved_model.pb").is_file():
        raise UserError(
            f"{path} is neither a run directory (no config.json), an export (no saved_model.pb, no "
            "numbered versions) nor a .keras, .onnx or .tflite file"
        )
    card = read_card(path)
    if card["image_size"] is None:
        raise UserError(
            f"{path} takes features, not images: call it as tf.saved_model.load(path)"
            ".signatures['serving_default'](features=...)"
        )
    loaded = backbones.load_saved_model(path, trust_model=trust_model)
    # Through `loaded`: a signature alone does not keep its variables alive.
    serve = arrays(lambda images: loaded.signatures["serving_default"](images=images))
    return EmbeddingModel(path, card, serve)


def arrays(signature: Callable[..., Any]) -> Callable[[np.ndarray], Embeddings]:
    """A signature as a function of arrays; text is returned as str, not bytes."""

    def serve(images: np.ndarray) -> Embeddings:
        outputs = signature(images=tf.constant(images, tf.uint8)).items()
        found = {name: value.numpy() for name, value in outputs}
        texts = [name for name, value in outputs if value.dtype == tf.string]
        return found | {name: np.array([t.decode() for t in found[name]], object) for name in texts}

    return serve


def _open_keras(path: pathlib.Path, image_size: int | None) -> EmbeddingModel:
    ours = training.Contrastive  # importing it registers all our classes
    encoder = backbones.load_keras(path)
    if isinstance(encoder, ours):
        encoder = encoder.encoder
    outputs = getattr(encoder, "output", None) if getattr(encoder, "built", False) else None
    outputs = outputs if isinstance(outputs, dict) else {}
    if missing := [name for name in models.OUTPUTS if name not in outputs]:
        raise UserError(
            f"{path} has no output {', '.join(missing)}: expected an encoder with a dictionary of "
            f"{', '.join(models.OUTPUTS)}; tfvmf fit-kappa makes one from any other image model"
        )
    shapes = [tuple(each.shape) for each in encoder.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][3] != 3:
        raise UserError(f"{path} takes {shapes}: expected one input, images [N, H, W, 3]")
    if shapes[0][1] != shapes[0][2]:
        raise UserError(f"{path} takes images {list(shapes[0][1:])}: expected squares")
    card = _card(outputs)
    with contextlib.suppress(UserError):  # written by `tfvmf export`, next to the card
        if path.parent.name == pathlib.Path(CARD_FILE).parent.name:
            card = {**read_card(path.parent.parent), "calibration": None}
    told = shapes[0][1] or card["image_size"]
    if told and image_size and told != image_size:
        raise UserError(f"image_size={image_size}: {path} takes images of size {told}")
    card["image_size"] = told or image_size
    serve = signatures.build_signatures(encoder, image_size=card["image_size"])["serving_default"]
    return EmbeddingModel(path, card, arrays(serve), encoder=encoder)


def _check_array(image: np.ndarray, good: bool, name: str, shape: str) -> None:
    """Raises UserError for an array that is not uint8, or has a wrong shape."""
    if image.dtype != np.uint8 or not good:
        found = f"{image.dtype} {list(image.shape)}"
        raise UserError(f"{name}: an array {found}; expected uint8 {shape}, 0 to 255")
