"""A run directory is a run's identity: its configuration does not change once written."""

import json
import pathlib
from typing import Any

from ml_collections import ConfigDict

from tfvmf.config import RENAMED, default_config, differences, flatten, validate
from tfvmf.errors import UserError
from tfvmf.files import read_text, write_json
from tfvmf.methods import Method
from tfvmf.settings import Setting

# A run on other devices, or with its data elsewhere, is still the same run.
MAY_DIFFER = (
    *("strategy", "data.data_dir", "data.memory_limit_gib", "data.max_pixels"),
    "fit_kappa.trust_model",
)
FORCE = ", or --force_config to continue with the new ones"
_FITTED = ("judge.npz", "probe.npz")  # fitted to the weights of the run by `tfvmf.posthoc`


def member(workdir: pathlib.Path, number: int) -> pathlib.Path:
    """The run directory of an ensemble's member."""
    return workdir / "members" / f"{number:02d}"


def prepare(workdir: pathlib.Path, method: Method) -> None:
    """Stores the files that the method needs; deletes what was fitted to earlier weights."""
    for name in _FITTED:
        (workdir / name).unlink(missing_ok=True)
    method.keep_files(workdir)


def write_or_check_config(
    workdir: pathlib.Path,
    config: ConfigDict,
    facts: dict[str, Any],
    *,
    force: bool = False,
    advice: str = FORCE,
) -> None:
    """Writes `config.json`, or checks that the existing run has the same settings."""
    path = workdir / "config.json"
    if read_text(path) is not None and not force:  # raises an error for an unreadable file
        check(workdir, config, advice=advice)
    write_json(path, {"config": config.to_dict(), "facts": facts})


def chosen_epochs(workdir: pathlib.Path, config: ConfigDict, *, force: bool = False) -> int | None:
    """The epochs that the run in a directory chose for the same `config.minutes`, or None."""
    if read_text(workdir / "config.json") is None:
        return None
    found, _ = read(workdir)
    if found.minutes == config.minutes:
        return found.epochs
    if not force:
        check(workdir, config)
    return None


def check(workdir: pathlib.Path, config: ConfigDict, *, advice: str = "") -> dict[str, Any]:
    """Raises UserError if settings other than `MAY_DIFFER` differ; returns the run's facts."""
    found, facts = read(workdir)
    changed = differences(found, config)
    for free in MAY_DIFFER if config.minutes else (*MAY_DIFFER, "minutes"):
        changed.pop(free, None)
    if changed:
        keys = ", ".join(f"{key} ({old} -> {new})" for key, (old, new) in changed.items())
        raise UserError(
            f"{workdir} holds a run with other settings: {keys}; choose another --workdir{advice}"
        )
    return facts


def read(workdir: pathlib.Path) -> tuple[ConfigDict, dict[str, Any]]:
    """The configuration and the facts of the run in a directory."""
    path = workdir / "config.json"
    text = read_text(path)
    if text is None:
        raise UserError(
            f"{workdir} is not a run directory (no config.json): `tfvmf train` creates one"
        )
    config = default_config()
    config.model.one_pass = True  # the value of runs that are older than this setting
    try:
        content = json.loads(text)
        facts, stored = dict(content["facts"]), flatten(dict(content["config"]))
        found = {RENAMED.get(key, key): value for key, value in stored.items()}
        if unknown := sorted(found.keys() - flatten(config).keys()):
            raise ValueError(f"unknown settings: {', '.join(unknown)}"[:200])
        for key in ("num_classes", "train_images"):
            Setting(0, low=0).check(key, facts.get(key, 0))
        config.update_from_flattened_dict(found)
        validate(config)
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        reason = str(error).replace("--config.", "")
        raise UserError(f"{path} is damaged, or from another version of tfvmf: {reason}") from error
    return config, facts
