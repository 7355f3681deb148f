"""The command `tfvmf VERB [MODEL] [DATA]`: parses flags and calls the library."""

import importlib
import sys
from collections.abc import Sequence

# A verb is a module of this package (`fit-kappa` is fit_kappa.py) and a line here. Its docstring is
# the help, `FLAGS` are the flags, `ARGUMENTS` those that need no name, `REQUIRED` those that must
# be given, `CONFIG` says whether there are settings; `main` gets the values.
VERBS = {
    "train": "train an encoder without labels: images to directions and concentrations",
    "evaluate": "measure a trained run; write tables, plots and a report",
    "export": "write a trained run as a model for TensorFlow Serving",
    "embed": "embed a folder of images, or a data set",
    "select": "choose images of a table: uncertain, foreign, duplicates, diverse, typical, similar",
    "explore": "write a page to look at what embed wrote: map, scores, neighbors, duplicates",
    "fit-kappa": "fit a concentration head to a frozen encoder",
    "reproduce": "make a table or figure of the paper",
}

_HELP = """\
Image embeddings on the sphere that know how sure they are.

  tfvmf VERB [MODEL] [DATA] [--flag=value ...]

{verbs}

MODEL is a run directory, an export, a .keras or an .onnx file, or a shipped name (cifar10). DATA is
digits, a TensorFlow data set like cifar10, folder:/path or npz:/path. A single argument is DATA for
train, the experiment for reproduce, the table for select and explore, and MODEL elsewhere; --model
and --data name them too.

  tfvmf VERB --help    flags and examples
  tfvmf --version      version {version}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tfvmf VERB ...`. TensorFlow is imported only by a verb, after it has checked its flags.

    Args:
        argv: The arguments after `tfvmf`; by default those of the command line.

    Returns:
        The exit code: 0, 2 after a user's mistake, or 128 plus the number of a signal.
    """
    from tfvmf import __version__

    verb, *arguments = list(sys.argv[1:] if argv is None else argv) or [""]
    if verb == "help" and arguments:
        verb, arguments = arguments[0], ["--help"]
    if verb in ("--help", "-help", "-h", "help"):
        verbs = "\n".join(f"  {name:<10} {line}" for name, line in VERBS.items())
        print(_HELP.format(verbs=verbs, version=__version__))
        return 0
    if {"--version", "-version"} & {verb, *arguments}:
        print(f"tfvmf {__version__}")
        return 0
    from tfvmf.programs import cli

    name = verb.replace("_", "-")
    if name not in VERBS:
        found = f"a verb is missing: use one of {', '.join(VERBS)}"
        if verb:
            found = cli.unknown(f"verb {verb!r}", name, [*VERBS, "--help", "--version"])
        return cli.complain("tfvmf", f"{found} (see tfvmf --help)")
    program = importlib.import_module(f"tfvmf.programs.{name.replace('-', '_')}")
    return cli.run_program(f"tfvmf {name}", program, arguments)
