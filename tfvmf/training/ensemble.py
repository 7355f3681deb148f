"""Runs of several members: independent seeds, or snapshots along one run of many cycles.

Every member is a run directory of its own, `<workdir>/members/00` and so on, that evaluates and
exports like any other.
"""

import contextlib
import pathlib
from typing import Any

import ml_collections

from tfvmf.config import validate
from tfvmf.errors import UserError
from tfvmf.methods import Method
from tfvmf.training import loop, run_directory
from tfvmf.training.checkpoints import load_method
from tfvmf.training.strategies import is_chief


def train(
    config: ml_collections.ConfigDict,
    workdir: str | pathlib.Path,
    *,
    force_config: bool = False,
    logical_devices: int = 0,
) -> dict[str, float]:
    """Trains what a configuration asks for: one run, or all members of an ensemble.

    Members that are already trained are left as they are, so the same command goes on from where
    it was stopped. Arguments, result and errors are those of `loop.train_run`.
    """
    validate(config)
    workdir = pathlib.Path(workdir)
    options: dict[str, Any] = {"force_config": force_config, "logical_devices": logical_devices}
    if config.ensemble.num_members == 1 or config.ensemble.kind == "snapshot":
        return loop.train_run(config, workdir, **options)
    chief = is_chief(config.strategy)
    latest: dict[str, float] = {}
    with run_directory.hold(workdir) if chief else contextlib.nullcontext():
        if chief:
            run_directory.claim(workdir, config, {}, force=force_config)
        for number in range(config.ensemble.num_members):
            print(f"member {number + 1} of {config.ensemble.num_members}", flush=True)
            member = member_config(config, number)
            latest = loop.train_run(member, run_directory.member(workdir, number), **options)
    return latest


def member_config(config: ml_collections.ConfigDict, number: int) -> ml_collections.ConfigDict:
    """The configuration of one member on its own: another seed, all else the same."""
    member = ml_collections.ConfigDict(config.to_dict())
    member.seed = config.seed + number
    member.ensemble.num_members = 1
    return member


def load_members(workdir: str | pathlib.Path) -> list[tuple[Method, int]]:
    """The trained methods of an ensemble with the steps of their weights; [] for any other run."""
    workdir = pathlib.Path(workdir).expanduser()
    config, _ = run_directory.read(workdir)
    if config.ensemble.num_members == 1:
        return []
    loaded = []
    for number in range(config.ensemble.num_members):
        try:
            _, method, step = load_method(run_directory.member(workdir, number))
        except UserError as error:
            raise UserError(
                f"member {number + 1} of {config.ensemble.num_members} is not there yet: {error}"
            ) from error
        loaded.append((method, step))
    return loaded
