"""A train/test split that depends on names alone, for data that comes without one."""

import hashlib
from collections.abc import Sequence

import numpy as np

from tfvmf.errors import UserError

TEST_SHARE = 0.1
NAMES = ("train", "test", "all")


def check(spec: str, split: str, known: Sequence[str] = NAMES) -> None:
    """Raises UserError unless `split` is one of `known`."""
    if split not in known:
        raise UserError(f"{spec}: unknown split '{split}'; it has {', '.join(known)}")


def choose(keys: Sequence[str], split: str) -> np.ndarray:
    """Indices of the keys that belong to `split`, in their order: int [n].

    One key in ten is a test key, by a hash of the key alone: the same on every machine, and adding
    examples moves no earlier one from one side to the other. Where chance would leave a side of
    two or more keys empty, that side gets the key that came closest to it.
    """
    check("split", split)
    if split == "all":
        return np.arange(len(keys))
    position = np.array([_position(key) for key in keys])
    test = position < TEST_SHARE
    if len(keys) > 1 and not test.any():
        test[position.argmin()] = True
    if len(keys) > 1 and test.all():
        test[position.argmax()] = False
    return np.flatnonzero(test if split == "test" else ~test)


def _position(key: str) -> float:
    """A place in [0, 1) for the key."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48
