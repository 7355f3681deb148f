"""Runs `tfvmf VERB` from a checkout: in its `.venv` if there is one, otherwise in this Python."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(verb: str) -> None:
    """Runs one verb with the flags of the command line."""
    venv = os.path.join(ROOT, ".venv")
    python = os.path.join(venv, "bin", "python")
    if os.path.exists(python) and os.path.realpath(sys.prefix) != os.path.realpath(venv):
        os.execv(python, [python, *sys.argv])
    sys.path[0] = ROOT  # this checkout, whatever is installed
    try:
        from tfvmf.programs import cli, main  # noqa: F401
    except ModuleNotFoundError as error:
        advice = f"run `pip install {ROOT}`, or `make setup` for a .venv of its own"
        sys.stderr.write(f"tfvmf {verb}: {sys.executable} has no {error.name}: {advice}\n")
        sys.exit(2)
    sys.exit(main([verb, *sys.argv[1:]]))
