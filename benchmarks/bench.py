"""How fast is tfvmf, and against what? One table of ratios, each measured side by side.

  make bench
  .venv/bin/python -m benchmarks.bench --sections=train_step,limit
  .venv/bin/python -m benchmarks.bench --quick

Whatever is compared takes turns in one run, A B A B, each in a process that sleeps while the other
works: a noisy machine is noisy for both. A ratio is the median over the rounds. Prints a Markdown
table; writes it to runs/bench/bench.md, with all that was measured to runs/bench/bench.json and,
with the section growth, a plot to runs/bench/growth.png. Exits with 1 if a section failed.

Sections: train_step and trunk (ResNets, and the network for CPUs, against PyTorch, which `make
bench` installs), pipeline, uncertainty, evaluation, startup, runtimes (an export in TensorFlow,
ONNX Runtime, OpenVINO and LiteRT), limit (share of what the machine can do), growth. 50 minutes on
2 idle cores, less the next time: what torch.compile makes is kept.
"""

import dataclasses
import datetime
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import sys
import time
from typing import Any

from absl import flags

from benchmarks.side_by_side.bench import Bench
from benchmarks.side_by_side.interleaved import Effort, WorkerFailed
from benchmarks.side_by_side.noise import MUCH, Noise
from benchmarks.side_by_side.sections import SECTIONS
from benchmarks.side_by_side.table import Row, markdown
from tfvmf.errors import UserError
from tfvmf.files import write_json, write_text
from tfvmf.programs import cli

_SENSITIVE = ("train_step", "trunk", "startup")  # to noise, although candidates take turns

_SECTIONS = flags.DEFINE_string(
    "sections", ",".join(SECTIONS), "what to measure, separated by commas"
)
_QUICK = flags.DEFINE_bool("quick", False, "tiny networks, one round: does everything run?")
_OUT = flags.DEFINE_string("out", "runs/bench", "directory of the results")
_SECONDS = flags.DEFINE_float(
    "seconds", Effort.seconds, "how long a group of candidates takes turns", lower_bound=0.0
)
_THREADS = flags.DEFINE_integer(
    "threads", 2, "of each process, for TensorFlow and PyTorch alike", lower_bound=1
)


def main() -> None:
    """Measures section by section; what is measured is written at once."""
    names = chosen_sections(_SECTIONS.value)
    directory = pathlib.Path(_OUT.value)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out={directory} cannot be made: {error.strerror}") from error
    bench = Bench(
        directory=directory,
        note=lambda line: _say(f"  {line}"),
        threads=_THREADS.value,
        quick=_QUICK.value,
        effort=Effort(seconds=_SECONDS.value),
    )
    rows: list[Row] = []
    failed: dict[str, str] = {}
    noise: dict[str, float | None] = {}
    machine = describe_machine()
    for number, name in enumerate(names, start=1):
        _say(f"[{number}/{len(names)}] {name}")
        start, others, measured = time.monotonic(), Noise(), list[Row]()
        try:
            measured = SECTIONS[name](bench)
        except WorkerFailed as error:
            failed[name] = str(error)
            _say(f"  failed: {error}")
        noise[name] = others.cores()
        noisy = name in _SENSITIVE and (noise[name] or 0.0) > MUCH
        for row in measured:  # a quick run has nothing to be judged
            rows.append(dataclasses.replace(row, noisy=noisy, goal="" if bench.quick else row.goal))
        _say(f"  {name}: {time.monotonic() - start:.0f} s")
        content = {
            "machine": {**machine, "load_after": os.getloadavg()[0]},
            "quick": bench.quick,
            "rows": [row.content() for row in rows],
            "failed": failed,
            "cores_used_by_others": noise,
            "details": bench.details,
        }
        write_json(directory / "bench.json", content)
        write_text(directory / "bench.md", markdown(rows) + "\n")
    print(markdown(rows))
    if any(row.noisy for row in rows):
        print(
            f"\nnoisy: other programs used more than {MUCH} cores, from which PyTorch suffers more "
            "than tfvmf does. Measure again on an idle machine."
        )
    _say(f"written: {directory / 'bench.json'}")
    if failed:
        sys.exit(cli.complain("bench.py", f"failed: {', '.join(failed)}", code=1))


def chosen_sections(value: str) -> list[str]:
    """The sections that a flag names; refuses what cannot be measured before anything is."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    for name in names:
        if name not in SECTIONS:
            raise UserError(f"--sections={name} is unknown: use some of {', '.join(SECTIONS)}")
    if not names:
        raise UserError(f"--sections is empty: use some of {', '.join(SECTIONS)}")
    if "train_step" in names and importlib.util.find_spec("torch") is None:
        raise UserError(
            "the section train_step needs PyTorch: `make bench` installs it, or leave the section "
            "out of --sections"
        )
    return names


def describe_machine() -> dict[str, Any]:
    """What the numbers depend on."""
    versions = {}
    for package in ("tensorflow", "keras", "torch"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "none"
    return {
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": _THREADS.value,
        "load_before": os.getloadavg()[0],
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "TensorFlow's choice"),
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    """Model of the processor, where the system tells."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    cli.run(main)
