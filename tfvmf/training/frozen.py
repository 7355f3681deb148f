"""What bin/fit_kappa is given as an encoder, and the copy of it that the run directory keeps."""

import pathlib

import ml_collections

from tfvmf import files
from tfvmf.errors import UserError
from tfvmf.methods.encoders import is_foreign

# Kinds of encoders that are copied, and what the copy is called in the run directory.
COPIES = {"keras": "encoder.keras", "saved_model": "encoder"}


def kind_of(encoder: pathlib.Path) -> str:
    """`run`, `keras`, `saved_model` or `features`, by what is there."""
    where = f"--encoder={encoder}"
    if encoder.is_dir():
        if (encoder / "config.json").is_file():
            return "run"
        if (encoder / "saved_model.pb").is_file():
            return "saved_model"
        versions = sorted(path.parent for path in encoder.glob("*/saved_model.pb"))
        if versions:
            raise UserError(f"{where} holds SavedModels: name one of them, {versions[-1]}")
        raise UserError(
            f"{where} is neither a run directory (no config.json) nor a SavedModel (no "
            "saved_model.pb)"
        )
    if not encoder.exists():
        raise UserError(
            f"{where}: there is no such file or directory; needed is a run, a .keras file, a "
            "SavedModel or cached features (.npz)"
        )
    kinds = {".keras": "keras", ".npz": "features"}
    if encoder.suffix not in kinds:
        raise UserError(
            f"{where} is a file of an unknown kind: use .keras (model.save) or .npz (cached "
            "features), or the directory of a run or of a SavedModel"
        )
    return kinds[encoder.suffix]


def keep(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
    """Copies the frozen model to the run directory, so that the run can do without the original."""
    name = COPIES.get(config.fit_kappa.kind)
    if name is None:
        return
    try:
        files.copy(pathlib.Path(config.fit_kappa.model), workdir / name)
    except OSError as error:
        raise UserError(
            f"--workdir={workdir}: the encoder cannot be copied there: {error.strerror}"
        ) from error


def locate(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
    """Points a run's configuration to the copy, which must be what the head was fitted to."""
    name = COPIES.get(config.fit_kappa.kind)
    if name is None or not is_foreign(config):
        return
    path = workdir / name
    if not path.exists():
        raise UserError(f"--workdir={workdir}: its encoder, {path}, is missing")
    if files.fingerprint(path) != config.fit_kappa.fingerprint:
        raise UserError(
            f"--workdir={workdir}: {path} is damaged, or not the encoder that the head was fitted "
            "to"
        )
    config.fit_kappa.model = str(path)
