"""Runs the notebooks in examples/ and stores their outputs, kept small.

    python tools/notebooks.py                  # all of them
    python tools/notebooks.py quickstart.ipynb

A notebook runs in a copy of examples/, so that it leaves nothing behind. Text and pictures in its
outputs are kept; progress bars and what differs between machines are removed.
"""

import os
import pathlib
import re
import shutil
import sys
import tempfile
import time

import nbclient
import nbformat

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def run(path: pathlib.Path, place: pathlib.Path, *, seconds: int = 900) -> nbformat.NotebookNode:
    """The executed notebook; raises nbclient's CellExecutionError if a cell fails.

    Args:
        path: The notebook, in examples/.
        place: An empty directory, to which the examples are copied and in which it runs.
        seconds: Time limit of a cell.
    """
    shutil.copytree(path.parent, place, dirs_exist_ok=True)
    notebook = nbformat.read(path, as_version=4)
    # The command `tfvmf` is the one of this Python, and this clone comes before an installed one.
    search = os.pathsep.join(filter(None, (str(path.parents[1]), os.environ.get("PYTHONPATH"))))
    programs = os.pathsep.join((str(pathlib.Path(sys.executable).parent), os.environ["PATH"]))
    settings = {"PYTHONPATH": search, "PATH": programs, "TF_CPP_MIN_LOG_LEVEL": "2"}
    client = nbclient.NotebookClient(notebook, timeout=seconds, kernel_name="python3")
    return client.execute(cwd=str(place), env={**os.environ, **settings})


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without what differs between machines or only shows while it runs."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        kept: list[nbformat.NotebookNode] = []
        for output in cell.outputs:
            if output.get("name") == "stderr":
                continue
            if kept and output.output_type == kept[-1].output_type == "stream":
                kept[-1].text += output.text  # text that arrived in pieces
            else:
                kept.append(output)
        for output in kept:
            output.pop("metadata", None)
            if output.output_type != "stream":
                output.metadata = {}
            for data in (output, output.get("data", {})):
                for key in ("text", "text/plain"):
                    if key in data:
                        data[key] = re.sub(r"^.*\r(?!\n)", "", data[key], flags=re.MULTILINE)
            if "image/png" in output.get("data", {}):
                output.data = {"image/png": output.data["image/png"]}
        cell.outputs = kept
    return notebook


def main() -> None:
    """Runs the named notebooks, or all."""
    for name in sys.argv[1:] or sorted(path.name for path in EXAMPLES.glob("*.ipynb")):
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            notebook = clean(run(EXAMPLES / name, pathlib.Path(place)))
        nbformat.write(notebook, EXAMPLES / name)
        size = (EXAMPLES / name).stat().st_size
        print(f"{name}: {time.monotonic() - start:.0f} s, {size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
