"""Commands of `tfvmf` without the seconds that TensorFlow takes."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]

_RUN = """
import contextlib, io, json, sys
from tfvmf.programs import main
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    tensorflow = "tensorflow" in sys.modules
    print(json.dumps([code, out.getvalue(), err.getvalue(), tensorflow]))
"""


def run_before_tensorflow(commands, cwd):
    """[(exit code, output, errors)] of commands in one process that must not import TensorFlow."""
    result = subprocess.run(
        [sys.executable, "-c", _RUN],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    for command, answer in zip(commands, answers, strict=True):
        assert not answer[3], f"{command} imports TensorFlow"
    return [tuple(answer[:3]) for answer in answers]
