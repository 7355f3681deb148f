"""The shared part of all programs: flags, one-line errors with exit code 2, quiet TensorFlow."""

import ast
import difflib
import functools
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from absl import app, flags, logging
from ml_collections import config_flags

from tfvmf.config import declared, default_config, flatten
from tfvmf.errors import UserError
from tfvmf.files import find_model, read_text
from tfvmf.progress import printable
from tfvmf.settings import MAX_PIXELS

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
DEFAULT_RUN = "runs/digits-simclr_vmf"  # where `tfvmf train` without any flags trains

_HELP_FLAGS = {"--help", "-help", "-h", "--helpfull", "--helpshort"}

# Flags of several programs, with one meaning everywhere.
_SHARED: dict[str, tuple[Any, ...]] = {
    "model": ("", "a run directory, an export, a .keras file or a shipped name (cifar10)"),
    "data": ("", "digits, a TFDS name, folder:/path or npz:/path"),
    "data_dir": ("", "where TFDS finds prepared data sets"),
    "download": (False, "download and prepare TFDS data sets that are missing"),
    "workdir": ("", "run directory"),
    "output": ("", "file or directory to write"),
    "checkpoint": ("", "checkpoint of a run: step-110, 110 or a path; the newest by default"),
    "trust_model": (False, "load a SavedModel even if it may touch files, network or run code"),
    "seed": (int, "seed of all random numbers", 0),
    "max_images": (0, "number of test images to measure; 0 for all", 0),
    "max_pixels": (0, f"refuse larger images; 0 for the run's limit, or {MAX_PIXELS}", 0),
}
# The `FLAGS` of a program: for a shared flag its help, or "" for the usual one; for any other flag
# a default (or a type, if there is none), its help, and maybe the lowest number or the choices.
Flags = dict[str, str | tuple[Any, ...]]
_DEFINE: dict[type, Callable[..., Any]] = {
    str: flags.DEFINE_string,
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
}
# Messages of Python and absl about a value of the wrong type, and the type that was expected.
_WRONG_TYPES = {
    r"\('Non-boolean argument": "true or false",
    r"invalid literal for int\(\)": "a whole number",
    "could not convert string to float": "a number",
}


def define(program: Any, values: flags.FlagValues, argv: list[str]) -> None:
    """Defines the flags of a verb's module; `argv` is the command line."""
    if getattr(program, "CONFIG", False):
        _define_config(values, argv)
    for name, spec in program.FLAGS.items():
        own = isinstance(spec, tuple)
        default, text, *limit = spec if own else _SHARED[name]
        kind, value = (default, None) if isinstance(default, type) else (type(default), default)
        bound = {"lower_bound": limit[0]} if limit and kind is not str else {}
        _DEFINE[kind](name, value, text if own else spec or text, flag_values=values, **bound)


def run_program(
    name: str, program: Any, arguments: Sequence[str], values: flags.FlagValues | None = None
) -> int:
    """Parses the arguments, calls the `main` of a verb's module; returns the exit code."""
    # Not absl's global flags: verbs in one process do not share flags.
    found = flags.FlagValues() if values is None else values
    found.set_gnu_getopt(True)  # flags may follow an argument

    def guarded(unused: Sequence[str]) -> int:
        del unused
        try:
            if _HELP_FLAGS & set(arguments):
                define(program, found, [name])
                print(_help(program, found, full="--helpfull" in arguments))
                return 0
            argv = _with_config_path([name, *arguments])
            define(program, found, argv)
            _parse(found, argv, program)
            program.main(found)
        except UserError as error:
            argument = re.match(r"(\w+)=", str(error))  # the library's name of a flag
            flag = "--" if argument and argument[1] in found else ""
            return complain(name, f"{flag}{error}")
        except KeyboardInterrupt:
            return complain(name, "stopped", code=130)
        except Exception as error:
            code = getattr(error, "exit_code", None)  # of `training.Interrupted`: the run is saved
            if code is None:
                raise
            return complain(name, str(error), code=code)
        return 0

    logging.set_verbosity(logging.WARNING)  # else TensorFlow reports every file it writes
    warnings.filterwarnings("ignore", module="PIL")  # we report bad images ourselves
    try:
        # In a process that absl did not start, TensorFlow prints its log.
        app.run(guarded, argv=[name], flags_parser=flags.FLAGS)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def run(main: Callable[[], None], values: flags.FlagValues = flags.FLAGS) -> None:
    """Runs a script with absl's global flags, or with `values`, such as benchmarks/bench.py."""
    program = types.SimpleNamespace(ARGUMENTS=(), FLAGS={}, main=lambda values: main())
    program.__doc__ = sys.modules["__main__"].__doc__
    sys.exit(run_program(pathlib.Path(sys.argv[0]).name, program, sys.argv[1:], values))


def complain(name: str, message: str, *, code: int = 2) -> int:
    """Prints one line to the error stream; returns the exit code."""
    print(f"{name}: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code


def unknown(what: str, value: str, choices: Iterable[str]) -> str:
    """The error for a name that is not among the choices; suggests the nearest one."""
    choices = list(choices)
    near = difflib.get_close_matches(value, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? Known: " if near else "use one of "
    return f"{what} is unknown: {hint}{', '.join(choices)}"


def check_run(name: str) -> pathlib.Path:
    """The directory of a run or shipped model, checked before TensorFlow is imported."""
    path = find_model(name)
    if read_text(path / "config.json") is not None:
        return path
    if path.is_file():
        raise UserError(f"{name} is a file: expected the directory of a run")
    runs = [entry.parent.name for entry in path.parent.glob("*/config.json")]
    near = difflib.get_close_matches(path.name, runs, n=1, cutoff=0.5)
    hint = f"did you mean {path.parent / near[0]}?" if near else "`tfvmf train` makes one"
    raise UserError(f"{name} is not a run directory (no config.json): {hint}")


def given(values: flags.FlagValues, names: str) -> dict[str, Any]:
    """The values of the flags in `names`, which are separated by spaces."""
    return {name: values[name].value for name in names.split()}


def listed(value: str) -> tuple[str, ...]:
    """The names in a comma-separated list."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def short_name(source: str) -> str:
    """A data spec as part of a directory name: `folder:/data/birds` becomes birds."""
    scheme, _, target = source.partition(":")
    name = pathlib.Path(target).stem if scheme in ("folder", "npz") else scheme
    return re.sub(r"\W+", "_", target if scheme == "tfds" else name).strip("_")


def config_names() -> list[str]:
    """The configs that `--config` knows by name."""
    return sorted(path.stem for path in CONFIGS.glob("[!_]*.py"))


def download(values: flags.FlagValues, sources: Iterable[str], *, data_dir: str = "") -> None:
    """With `--download`, downloads and prepares missing TFDS data sets.

    Starts another process, because preparing runs TensorFlow, which fixes its devices and threads
    for the rest of a process. Empty names are skipped; `--data_dir` takes precedence.
    """
    wanted = [source for source in dict.fromkeys(sources) if source]
    if not values.download or not wanted:
        return
    code = "import sys; from tfvmf.programs import cli; sys.exit(cli.prepare(sys.argv[1:]))"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    result = subprocess.run(
        [sys.executable, "-c", code, values.data_dir or data_dir, *wanted],
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"},
        check=False,
    )
    if result.returncode:
        sys.exit(result.returncode)


def prepare(arguments: Sequence[str]) -> int:
    """Runs in the process that `download` starts; `arguments` are data_dir and the sources."""

    def main(values: flags.FlagValues) -> None:
        del values
        import_tensorflow()
        from tfvmf import data

        for source in arguments[1:]:
            data.download(source, data_dir=arguments[0])

    program = types.SimpleNamespace(ARGUMENTS=(), FLAGS={}, main=main)
    return run_program("tfvmf --download", program, [])


def import_tensorflow() -> None:
    """Imports TensorFlow and hides what its C++ code prints meanwhile; Python errors still show."""
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


def _define_config(values: flags.FlagValues, argv: list[str]) -> None:
    """Defines `--config=NAME` and, for every setting, `--config.key=value`.

    ml_collections parses the command line as soon as the flag is defined, and shows a traceback
    for a mistake, so mistakes are looked for first.
    """
    known = flatten(default_config())
    names = {*known, *(key.rpartition(".")[0] for key in known)}
    for argument in argv:
        key = argument.lstrip("-").partition("=")[0].removeprefix("config.")
        if argument.startswith(("--config.", "-config.")) and key not in names:
            near = difflib.get_close_matches(key, list(known), 1, 0.4)
            meant = _settings_called(key) or "".join(f"--config.{name}" for name in near)
            hint = f"did you mean {meant}?" if meant else "see tfvmf/config.py"
            raise UserError(f"--config.{key} is not a setting: {hint}")
    # Photographs are not digits: they may be mirrored, are larger, and their colors matter.
    photos = any(argument.rpartition("=")[2].startswith("folder:") for argument in argv)
    config_flags.DEFINE_config_file(
        "config",
        str(CONFIGS / ("photos.py" if photos else "digits.py")),
        f"settings of the run: {', '.join(config_names())}, or a file of your own; each setting is "
        "a flag too, like --config.batch_size=128",
        flag_values=values,
        sys_argv=argv,
    )


def _parse(values: flags.FlagValues, argv: list[str], program: Any) -> None:
    """Parses flags; arguments without names fill, in order, the slots that no flag fills."""
    try:
        given = values(argv)[1:]
    except flags.UnrecognizedFlagError as error:
        raise UserError(_unknown_flag(values, error.flagname)) from error
    except flags.Error as error:
        said = str(error).removeprefix("flag ")
        for pythonic, plain in _WRONG_TYPES.items():
            said = re.sub(f"{pythonic}.*", f"expected {plain}", said, flags=re.DOTALL)
        raise UserError(f"{said} (--help lists the flags)") from error
    free = [slot for slot in program.ARGUMENTS if not values[slot].present]
    for slot, value in zip(free, given, strict=False):
        setattr(values, slot, value)
    if len(given) > len(free):
        takes = " ".join(slot.upper() for slot in program.ARGUMENTS) or "no argument"
        raise UserError(f"unexpected argument {given[len(free)]!r}: expected {takes} and flags")
    for name, spec in program.FLAGS.items():
        chosen, limit = values[name].value, spec[2:] if isinstance(spec, tuple) else ()
        if limit and isinstance(limit[0], list) and chosen and chosen not in limit[0]:
            raise UserError(unknown(f"--{name}={chosen}", chosen, limit[0]))
    # Settings that a config file invents would be ignored silently.
    config = values.config if getattr(program, "CONFIG", False) else {}
    if extra := sorted({*flatten(config)} - {*flatten(default_config())}):
        raise UserError(f"--config: the file has unknown settings: {', '.join(extra)}")
    for name in getattr(program, "REQUIRED", ()):
        if not values[name].value:
            what = values[name].help.removesuffix("; required")
            raise UserError(f"--{name} is missing: {what}")


def _unknown_flag(values: flags.FlagValues, name: str) -> str:
    """The error for a flag that does not exist."""
    settings = _settings_called(name) if "config" in values else ""
    near = difflib.get_close_matches(name, list(values), n=1, cutoff=0.5)
    meant = settings or "".join(f"--{flag}" for flag in near)
    hint = f"did you mean {meant}?" if meant else "--help lists the flags"
    return f"--{name} is not a flag: {hint}"


def _settings_called(key: str) -> str:
    """The settings with the same last part as `key`, as flags."""
    last = [k for k in flatten(default_config()) if k.split(".")[-1] == key.split(".")[-1]]
    return " or ".join(f"--config.{key}" for key in last)


def _with_config_path(argv: list[str]) -> list[str]:
    """The command line with the path of the config that `--config` names."""
    found = list(argv)
    for position, argument in enumerate(argv):
        flag, equals, name = argument.partition("=")
        if flag in ("--config", "-config") and equals:
            found[position] = f"--config={_config_path(name)}"
        elif flag in ("--config", "-config") and position + 1 < len(argv):
            found[position + 1] = _config_path(argv[position + 1])
    return found


def _config_path(name: str) -> str:
    """The path of a config; an existing file takes precedence over a name."""
    if pathlib.Path(name).is_file():
        try:
            defined = ast.parse(pathlib.Path(name).read_bytes()).body
        except (SyntaxError, ValueError) as error:
            raise UserError(f"--config={name} is not a Python file: {error}") from error
        if "get_config" not in {getattr(each, "name", "") for each in defined}:
            raise UserError(f"--config={name} has no function get_config(), see configs/")
        return name
    what = f"--config={name}: there is no such file, and the name"
    if name not in config_names():
        raise UserError(unknown(what, pathlib.Path(name).stem, config_names()))
    return str(CONFIGS / f"{name}.py")


def _help(program: Any, values: flags.FlagValues, *, full: bool) -> str:
    """The docstring of a program, its flags, the configs, and if `full` all settings."""
    wrap = functools.partial(
        textwrap.wrap, width=96, initial_indent=" " * 6, subsequent_indent=" " * 6
    )
    lines = [(program.__doc__ or "").strip(), "", "Flags:"]
    for name in sorted(values):
        flag = values[name]
        told = name != "config" and flag.default not in (None, "", False, [])
        lines.append(f"  --[no]{name}" if flag.boolean else f"  --{name}")
        text, *rest = (flag.help or "").split("\n")
        lines += wrap(text + (f" (default: {flag.default})" if told else ""))
        for each in rest:  # one line per value
            lines += wrap(f"  {each}", subsequent_indent=" " * 10)
    if "config" in values:
        lines += ["", "Configs, --config=NAME:"]
        for name in config_names():
            text = ast.get_docstring(ast.parse((CONFIGS / f"{name}.py").read_bytes())) or ""
            lines.append(f"  {name:<18} {text.splitlines()[0]}")
        more = "" if full else f"; tfvmf {program.__name__.split('.')[-1]} --helpfull lists them"
        lines += ["", f"Settings, --config.NAME=VALUE{more.replace('_', '-')}"]
        for key, setting in declared().items() if full else ():
            lines.append(f"  --config.{key}={setting.default}")
            choices = f": {', '.join(setting.choices)}" if setting.choices else ""
            lines += wrap(setting.meaning + choices)
    return "\n".join(lines)
