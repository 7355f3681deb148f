"""Can hostile or damaged files do harm?

    .venv/bin/python -m tests.fuzz [--kinds=images,npz] [--count=10000] [--seed=0]

Prints one line per failed case and a summary of each kind; exits with 1 if there was a failure.
"""

import os
import pathlib
import sys
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from absl import app, flags
from fuzz.fuzzers import FUZZERS


def main(argv: Sequence[str]) -> None:
    """Runs all kinds that are asked for."""
    del argv
    failures = []
    for kind in _KINDS.value:
        failures += FUZZERS[kind](count=_COUNT.value, seed=_SEED.value)
    sys.exit(bool(failures))


if __name__ == "__main__":
    _KINDS = flags.DEFINE_list("kinds", list(FUZZERS), "which files")
    _COUNT = flags.DEFINE_integer("count", 2000, "cases of each kind", lower_bound=1)
    _SEED = flags.DEFINE_integer("seed", 0, "of the changes")
    app.run(main)
