"""What all programs share: flags, one-line errors with exit code 2, a quiet TensorFlow."""

import difflib
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import ml_collections
from absl import app, flags, logging
from ml_collections import config_flags

from tfvmf.config import default_config, flatten
from tfvmf.errors import UserError


def run(main: Callable[..., None], *, argument: str = "", choices: Sequence[str] = ()) -> None:
    """Runs a program: parses its flags, then calls `main`.

    `--help` exits with 0, a mistake of the user with 2 and one line, everything else as Python
    does.

    Args:
        main: Called without arguments, or with the one that the program takes beside its flags.
        argument: What that one is called; "" if there is none.
        choices: What it may be.
    """

    def guarded(argv: Sequence[str]) -> None:
        try:
            main(*_arguments(argv[1:], argument, choices))
        except UserError as error:
            fail(str(error))
        except KeyboardInterrupt:
            fail("stopped", code=130)

    logging.set_verbosity(logging.WARNING)  # TensorFlow reports every file that it writes
    flags.FLAGS.set_gnu_getopt(True)  # flags may follow an argument
    app.run(guarded, flags_parser=_parse)


def fail(message: str, *, code: int = 2) -> NoReturn:
    """Ends the program with one line on the error stream."""
    line = " ".join(message.split())
    print(f"{pathlib.Path(sys.argv[0]).name}: {line}", file=sys.stderr)
    sys.exit(code)


def define_config(default: str) -> flags.FlagHolder:
    """Defines `--config=FILE` and, for every setting, `--config.key=value`.

    The library reads the command line as soon as the flag is defined and answers a mistake with a
    traceback, so the mistakes are looked for first.
    """
    try:
        _check_config_flags(sys.argv)
    except UserError as error:
        fail(str(error))
    return config_flags.DEFINE_config_file("config", default, "settings of the run")


def _arguments(given: Sequence[str], name: str, choices: Sequence[str]) -> list[str]:
    """What `main` is called with; refuses what is not among the choices."""
    expected = 1 if name else 0
    if len(given) > expected:
        raise UserError(f"unexpected argument {given[expected]!r}: flags start with --")
    if len(given) < expected:
        raise UserError(f"name the {name}: one of {', '.join(choices)}")
    for value in given:
        if value not in choices:
            raise UserError(f"{name} {value!r} is unknown: use one of {', '.join(choices)}")
    return list(given)


def _parse(argv: list[str]) -> list[str]:
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        fail(f"{error} (--help lists the flags)")
    except SystemExit:  # absl's help exits with 1
        sys.exit(0)


def _check_config_flags(argv: list[str]) -> None:
    """Names an unknown `--config.key` or a missing config file: their own errors are tracebacks."""
    known = flatten(default_config())
    sections = {key.rsplit(".", 1)[0] for key in known if "." in key}
    for position, argument in enumerate(argv):
        name, separator, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-"):
            continue
        if name == "config":
            path = value if separator else "".join(argv[position + 1 : position + 2])
            if not pathlib.Path(path).is_file():
                raise UserError(f"--config={path}: there is no such file (see configs/)")
        key = name.removeprefix("config.")
        if key != name and key not in known and key not in sections:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
            hint = f"did you mean --config.{near[0]}?" if near else "see tfvmf/config.py"
            raise UserError(f"--config.{key} is not a setting: {hint}")


def checked_config(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Refuses a config file that invents settings: they would be ignored silently."""
    unknown = sorted(set(flatten(config)) - set(flatten(default_config())))
    if unknown:
        raise UserError(f"--config: the file has unknown settings: {', '.join(unknown)}")
    return config


def import_tensorflow() -> None:
    """Imports TensorFlow without what its C++ side prints meanwhile; Python errors still show."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        import tensorflow  # noqa: F401
    finally:
        os.dup2(saved, 2)
        os.close(saved)
