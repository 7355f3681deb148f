"""What someone who finds an exported model later wants to know of it."""

import json
import pathlib
from typing import Any

import ml_collections
import tensorflow as tf

import tfvmf
from tfvmf.errors import UserError
from tfvmf.files import write_json
from tfvmf.methods import Method
from tfvmf.methods.encoders import takes_features
from tfvmf.serving.calibration import Calibration

FILE = "assets.extra/tfvmf.json"


def write_facts(
    path: pathlib.Path,
    config: ml_collections.ConfigDict,
    method: Method,
    *,
    step: int,
    calibration: Calibration | None,
) -> None:
    """Writes the facts of a version that is being made of a run."""
    outputs = method.encoder.output
    facts: dict[str, Any] = {
        "run": config.name,
        "method": config.method,
        "step": step,
        "image_size": None if takes_features(config) else config.data.image_size,
        "dimension": outputs["mean_direction"].shape[-1],
        "features": outputs["features"].shape[-1],
        "calibration": None,
        "tfvmf": tfvmf.__version__,
        "tensorflow": tf.__version__,
    }
    if calibration is not None:
        facts["calibration"] = {
            "source": config.data.source,
            "split": calibration.split,
            "images": calibration.images,
            "reject_below": calibration.reject_below,
        }
    write_json(path / FILE, facts)


def read_facts(path: pathlib.Path) -> dict[str, Any]:
    """Reads the facts of a version."""
    try:
        return json.loads((path / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a version that bin/export wrote (no {FILE})") from error
