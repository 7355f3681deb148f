"""Counts what a reader has to read: modules, lines, flags, and the files of one train step.

    .venv/bin/python -m tools.count [--list] [--root=DIR]

A train step's files are those modules of tfvmf of which a function runs while the default run's
method, optimizer and views are made or the graph of its step is traced (a step of the graph itself
runs no Python). It is measured, not listed: one epoch on the embedded digits is trained under
`sys.setprofile`, and what runs inside the functions named in ENTRIES counts. Lines are whole files.
"""

import ast
import importlib
import pathlib
import pkgutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from types import CodeType, FrameType
from typing import Any

from absl import app, flags

# Functions of tfvmf, by name, so that older versions can be counted too.
ENTRIES = ("build_method", "make_optimizer", "views_of", "make_views", "make_train_step")
TRACED = ("train_step", "tf__train_step")  # as AutoGraph calls it
IMPORTING = ("<module>", "__getattr__")  # nothing that a reader of the step would read

_ROOT = flags.DEFINE_string("root", ".", "the clone that is counted")
_LIST = flags.DEFINE_bool("list", False, "print the files of the train step, too")


def sources(root: pathlib.Path, *rooms: str) -> list[pathlib.Path]:
    """The Python files of some directories, programs without a suffix included."""
    found = []
    for room in rooms:
        for path in sorted((root / room).rglob("*")):
            if path.suffix == ".py" or (path.is_file() and room == "bin" and not path.suffix):
                found.append(path)
    return found


def num_lines(paths: Iterable[pathlib.Path]) -> int:
    """Lines of some files."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def program_flags() -> list[str]:
    """Names of the flags of all programs, one entry per program that has it."""
    from tfvmf import programs
    from tfvmf.programs import cli

    names: list[str] = []
    for verb in programs.VERBS:
        module = importlib.import_module(f"tfvmf.programs.{verb.replace('-', '_')}")
        values = flags.FlagValues()
        cli.define(module, values, ["tfvmf"])
        names.extend(values)
    return names


def flag_names(paths: Iterable[pathlib.Path]) -> list[str]:
    """Names of the flags that some files define, one entry per definition."""
    names = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else ""
            first = node.args[0]
            if name.startswith("DEFINE_") and isinstance(first, ast.Constant):
                names.append(str(first.value))
    return names


def train_step_files(root: pathlib.Path) -> list[pathlib.Path]:
    """The files on the path of one train step of the default run."""
    import tfvmf

    for module in pkgutil.walk_packages(tfvmf.__path__, "tfvmf."):  # not while it is watched
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    from tfvmf import training
    from tfvmf.config import default_config

    config = default_config()
    config.epochs = 1
    config.monitor.every_epochs = 0.0
    seen: set[CodeType] = set()
    modules: set[str] = set()
    depth = 0

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal depth
        del argument
        if event not in ("call", "return"):
            return
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith("tfvmf"):
            return
        if frame.f_code.co_name in (*ENTRIES, *TRACED):
            depth += 1 if event == "call" else -1
        if depth > 0 and frame.f_code not in seen and frame.f_code.co_name not in IMPORTING:
            seen.add(frame.f_code)
            modules.add(module)

    with tempfile.TemporaryDirectory(prefix="tfvmf-count-") as directory:
        sys.setprofile(watch)
        try:
            training.train(config, directory)
        finally:
            sys.setprofile(None)
    files = [pathlib.Path(str(sys.modules[module].__file__)) for module in modules]
    assert all(file.is_relative_to(root) for file in files), f"not the package in {root}"
    return sorted(files)


def main(argv: Sequence[str]) -> None:
    """Counts and prints."""
    del argv
    root = pathlib.Path(_ROOT.value).resolve()
    sys.path.insert(0, str(root))
    package = sources(root, "tfvmf")
    names = flag_names(sources(root, "tfvmf", "bin"))
    if (root / "tfvmf" / "programs").is_dir():  # where one definition may serve several programs
        names = program_flags()
    step = train_step_files(root)
    print(f"modules of tfvmf    {len(package)}")
    print(f"their lines         {num_lines(package)}")
    print(f"lines of configs    {num_lines(sources(root, 'configs'))}")
    print(f"lines of bin        {num_lines(sources(root, 'bin'))}")
    print(f"flags               {len(names)} defined, {len(set(names))} names")
    print(f"one train step      {len(step)} files, {num_lines(step)} lines")
    if _LIST.value:
        for path in step:
            print(f"  {path.relative_to(root)}  {num_lines([path])}")


if __name__ == "__main__":
    app.run(main)
