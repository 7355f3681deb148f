import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from helpers.disks import as_nobody, full_disk

from tfvmf import embedding, files
from tfvmf.errors import UserError


def test_a_write_is_whole_or_not_at_all(tmp_path):
    path = tmp_path / "not" / "yet" / "there.txt"
    files.write_text(path, "old")

    def failing():
        with files.replacing(path) as file:
            file.write(b"new")
            file.flush()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert path.read_text() == "old"
    assert [entry.name for entry in path.parent.iterdir()] == ["there.txt"]


@pytest.mark.parametrize(
    ("state", "words"),
    [("filled", "No space left on device: make room"), ("read_only", "Read-only file system: ")],
)
def test_a_disk_that_refuses_is_one_line_and_nothing_is_left(tmp_path, state, words):
    disk = tmp_path / "disk"
    with full_disk(disk, **{state: True}):
        before = list(disk.iterdir())
        with pytest.raises(UserError, match=rf"disk/a\.txt cannot be written: {words}"):
            files.write_text(disk / "a.txt", "content")
        with (
            pytest.raises(UserError, match=rf"disk cannot be written: {words}"),
            files.scratch(disk) as place,
        ):
            tf.io.write_file(str(place / "of_tensorflow"), "content")
        assert list(disk.iterdir()) == before


def test_without_rights():
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        place.chmod(0o755)
        message = as_nobody(lambda: files.write_text(place / "a.txt", ""))
        (place / "b").touch(0)
        read = as_nobody(lambda: files.fingerprint(place))
    assert message.startswith("UserError: ")
    assert message.endswith("a.txt cannot be written: Permission denied: choose another place")
    assert read.endswith(f"{name} cannot be read: Permission denied")


def test_what_killed_processes_leave_is_swept(tmp_path):
    code = (
        "import os, signal, sys; from tfvmf import files\n"
        "with files.scratch(sys.argv[1]), files.replacing(sys.argv[1] + '/a.txt'):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    left = {entry.name for entry in tmp_path.iterdir()}
    assert len(left) == 2
    mine = [
        f".b.{socket.gethostname()}-{os.getpid()}.tmp",  # of a process that lives
        f".b.elsewhere-{2**22}.tmp",  # of another machine
        ".export-1",  # of nobody knows whom
        f"b.{socket.gethostname()}-{2**22}.tmp",
    ]
    for name in mine:
        (tmp_path / name).write_text("")
    files.write_text(tmp_path / "c.txt", "")
    assert {entry.name for entry in tmp_path.iterdir()} == {"c.txt", *mine}


def test_unreadable_is_not_absent(tmp_path):
    path = tmp_path / "file"
    assert files.read_text(path) is None
    path.symlink_to("nowhere")  # a disk that is not mounted
    with pytest.raises(UserError, match="file cannot be read: No such file"):
        files.read_text(path)
    path.unlink()
    path.symlink_to("file")
    with pytest.raises(UserError, match="cannot be read: Too many levels"):
        files.read_text(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match="is not a file"):
        files.read_text(path)
    path.rmdir()
    os.mkfifo(path)  # which a reader would wait at for ever
    with pytest.raises(UserError, match="is not a file"):
        files.read_text(path)


@pytest.mark.parametrize("name", ["a[x]", "b*", "c?", "d\\e", "plain"])
def test_tensorflow_reads_from_any_directory(tmp_path, name):
    place, state = tmp_path / name, tf.train.Checkpoint(v=tf.Variable(3.0))
    place.mkdir()
    state.write(str(place / "step"))
    state.v.assign(0.0)
    with files.literal(place) as readable:
        state.read(f"{readable}/step").assert_consumed()
    assert state.v.numpy() == 3.0
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_copies_replace_what_was_there(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "below").mkdir(parents=True)
    (source / "below" / "a").write_text("a")
    target.mkdir()
    (target / "old").write_text("")
    files.copy(source, target)
    assert files.fingerprint(source) == files.fingerprint(target)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["source", "target"]


def read_arrays(path):
    with files.arrays(path) as found:
        return found


@pytest.mark.parametrize("read", [read_arrays, embedding.read_table])
def test_what_an_npz_file_expands_to_is_checked_before_it_is_read(tmp_path, monkeypatch, read):
    """Of a file that may be a stranger's: a FIFO, a bomb, a header that promises too much."""
    path = tmp_path / "t.npz"
    features = np.zeros((1000, 50), np.float32)
    np.savez_compressed(path, features=features)
    assert read(path)["features"].shape == features.shape
    monkeypatch.setattr(files, "_EXPANDED", 1000)
    with pytest.raises(UserError, match=r"t\.npz .* would expand to 200,128"):
        read(path)
    np.savez(path, features=features)  # large, but so is the file
    assert read(path)["features"].shape == features.shape
    header = {"descr": "<f4", "fortran_order": False, "shape": (2, 2**40)}
    with zipfile.ZipFile(path, "w") as archive, archive.open("features.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(UserError, match=r"t\.npz .* 0 bytes do not fit its header"):
        read(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match=r"t\.npz .*not a regular file"):
        read(path)
