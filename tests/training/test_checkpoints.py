import contextlib
import json
import math
import os
import pathlib
import shutil
import signal
import tempfile
import time

import numpy as np
import pytest
import tensorflow as tf
from helpers.disks import as_nobody
from helpers.states import Trained
from helpers.tiny import tiny_config
from helpers.untrained import make_run

from tfvmf import training
from tfvmf.errors import UserError
from tfvmf.files import lock
from tfvmf.training import checkpoints, run_directory
from tfvmf.training.checkpoints import latest, paths
from tools import ship


@pytest.fixture
def run(tmp_path):
    trained = Trained(tmp_path)
    for step in (2, 9, 10):
        trained.save(step)
    return tmp_path


def names(workdir):
    return [os.path.basename(path) for path in paths(workdir)]


def test_the_newest_is_restored_and_the_oldest_removed(run):
    assert names(run) == ["step-2", "step-9", "step-10"]  # by number, not by name
    assert Trained(run).restored() == (10, 10.0)
    Trained(run, keep=2).save(12)
    assert names(run) == ["step-10", "step-12"]
    files = {path.name.partition(".")[0] for path in (run / "checkpoints").iterdir()}
    assert files == {"checkpoint", "step-10", "step-12"}
    assert tf.train.latest_checkpoint(str(run / "checkpoints")) == latest(run)


def test_nothing_saved_is_a_start(tmp_path):
    trained = Trained(tmp_path)
    before = float(trained.weights[0].numpy()[0, 0])
    assert trained.restored() == (0, before)
    assert latest(tmp_path) is None


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("part", [".index", ".data-00000-of-00001"])
@pytest.mark.parametrize("harm", [cut, empty, flip, os.remove])
def test_of_a_damaged_one_the_one_before_is_taken_and_people_are_told(run, part, harm, capsys):
    harm(run / "checkpoints" / f"step-10{part}")
    trained = Trained(run)
    assert trained.restored() == (9, 9.0)
    lines = capsys.readouterr().err.splitlines()
    if harm is os.remove and part == ".index":
        assert lines == []  # as if it had not been written yet
    else:
        assert len(lines) == 1
        assert "step-10 is damaged" in lines[0]
        assert lines[0].endswith("trying step-9")
    # Going on overwrites it, and a damaged one counts for nothing when the oldest are removed.
    trained.checkpoints._keep = 1
    trained.save(9)
    assert names(run) == ["step-9"]
    assert Trained(run).restored() == (9, 9.0)


def test_when_all_are_damaged_nothing_is_trained_from_the_start(run):
    for path in paths(run):
        cut(run / f"{path}.index")
    with pytest.raises(UserError, match="every checkpoint is damaged"):
        Trained(run).restored()


def test_every_flipped_bit_is_noticed(run, rng):
    path = latest(run)
    for part in (".index", ".data-00000-of-00001"):
        with open(path + part, "rb") as file:
            content = file.read()
        for position in rng.choice(len(content), 60, replace=False):
            broken = bytearray(content)
            broken[position] ^= 1 << rng.integers(8)
            with open(path + part, "wb") as file:
                file.write(broken)
            if not checkpoints.damage(path):  # a bit that means nothing
                assert Trained(run).restored() == (10, 10.0)
        with open(path + part, "wb") as file:
            file.write(content)


def test_another_networks_weights_are_refused(run):
    with pytest.raises(UserError, match="another network"):
        Trained(run, units=4).restored()


def test_a_damaged_list_of_checkpoints_loses_none(run):
    (run / "checkpoints" / "checkpoint").write_bytes(b"model_checkp")
    assert Trained(run).restored() == (10, 10.0)


def test_what_a_kill_leaves_is_cleared_away(run):
    place = run / "checkpoints"
    (place / ".partial").mkdir()
    (place / ".partial" / "step-11.data-00000-of-00001").write_bytes(b"half")
    (place / "step-11_temp").mkdir()
    (place / "step-1.data-00000-of-00001").write_bytes(b"its index was removed")
    trained = Trained(run)
    assert trained.restored() == (10, 10.0)
    trained.save(12)
    stems = {path.name.partition(".")[0] for path in place.iterdir()}
    assert stems == {"checkpoint", "step-9", "step-10", "step-12"}


class Killed(BaseException):
    pass


@pytest.mark.parametrize("function", ["fsync", "replace", "unlink"])
def test_killed_at_any_moment_of_a_save_leaves_whole_checkpoints(run, function, monkeypatch):
    """Dies at the n-th call of a function of the system, for every n."""
    steps = []
    for moment in range(1, 9):
        trained, left, original = Trained(run, keep=2), moment, getattr(os, function)

        def dying(*arguments, original=original, **keywords):
            nonlocal left
            left -= 1
            if not left:
                raise Killed
            return original(*arguments, **keywords)

        with monkeypatch.context() as patch:
            patch.setattr(os, function, dying)
            patch.setattr(checkpoints.shutil, "rmtree", lambda *_, **__: None)  # no last wishes
            with contextlib.suppress(Killed):
                trained.save(20 + moment)
        shutil.rmtree(run / "checkpoints" / ".partial", ignore_errors=True)
        step, weight = Trained(run).restored()
        assert step == weight
        steps.append(step)
    assert steps == sorted(steps)
    assert steps[0] == 10  # the first was killed before it was published
    assert steps[-1] == 28  # the last was not killed


def test_weights_that_are_not_finite_are_not_saved(run):
    trained = Trained(run)
    trained.save(11)
    trained.weights[0].assign(tf.fill(trained.weights[0].shape, np.inf))
    with pytest.raises(UserError, match="not finite after step 11"):
        trained.checkpoints.save()
    assert Trained(run).restored() == (11, 11.0)


def test_loading_takes_the_one_before_a_damaged_one(tmp_path, capsys):
    make_run(tmp_path)
    good = latest(tmp_path)
    for part in (".index", ".data-00000-of-00001"):
        with open(good + part, "rb") as file:
            content = file.read()
        (tmp_path / "checkpoints" / f"step-8{part}").write_bytes(content[:-9])
    _, _, step = training.load_method(tmp_path)
    assert step == 7
    (line,) = capsys.readouterr().err.splitlines()
    assert "step-8 is damaged" in line
    assert line.endswith("trying step-7")
    with pytest.raises(UserError, match=r"--checkpoint=.*step-8 is damaged"):
        training.load_method(tmp_path, checkpoint=str(tmp_path / "checkpoints" / "step-8"))


def test_a_second_run_in_a_directory_is_refused_until_the_first_ends(tmp_path):
    workdir = tmp_path / "run"
    ready, tell = os.pipe()
    first = os.fork()
    if not first:
        with lock(workdir):
            os.write(tell, b"!")
            time.sleep(600)
    assert os.read(ready, 1) == b"!"
    with (
        pytest.raises(UserError, match=f"in use by process {first} on "),
        lock(workdir),
    ):
        pass
    os.kill(first, signal.SIGKILL)  # which leaves nothing behind
    os.waitpid(first, 0)
    with lock(workdir):
        pass


@pytest.mark.parametrize("text", ["", "{", '{"config": {}}', "[1]", "\xff"])
def test_a_damaged_config_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        run_directory.read(tmp_path)


@pytest.mark.parametrize("force", [False, True])
def test_a_config_that_cannot_be_read_is_not_replaced(tmp_path, force):
    path = tmp_path / "config.json"
    path.symlink_to(path)
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        run_directory.write_or_check_config(tmp_path, tiny_config(), {}, force=force)
    assert path.is_symlink()


@pytest.mark.parametrize("kind", ["file", "loop", "dangling"])
def test_checkpoints_that_cannot_be_read_are_not_taken_for_none(tmp_path, kind):
    place = tmp_path / "checkpoints"
    place.write_text("") if kind == "file" else place.symlink_to({"loop": place}.get(kind, "no"))
    with pytest.raises(UserError, match="checkpoints cannot be read"):
        Trained(tmp_path).restored()


@pytest.mark.parametrize("part", [".", "step-10.index", "step-10.data-00000-of-00001"])
def test_checkpoints_without_the_right_to_read_them(part):
    with tempfile.TemporaryDirectory() as name:
        workdir = pathlib.Path(name)
        Trained(workdir).save(9)
        Trained(workdir).save(10)
        workdir.chmod(0o755)
        (workdir / "checkpoints" / part).chmod(0)
        found = as_nobody(lambda: checkpoints.latest(workdir))
    assert found.startswith("UserError: ")
    assert found.endswith("cannot be read: Permission denied")


def test_a_directory_whose_name_is_a_pattern(tmp_path):
    run = tmp_path / "run[x]"
    make_run(run)
    _, _, step = training.load_method(run)
    assert step == 7
    Trained(tmp_path / "[a]*").save(3)
    assert Trained(tmp_path / "[a]*").restored() == (3, 3.0)


def change(path, key, value):
    """Changes one field of a configuration."""
    content = json.loads(path.read_text())
    section = content["config"]
    *sections, last = key.split(".")
    for name in sections:
        section = section[name]
    section[last] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("epochs", None, "epochs=None is of the wrong type: expected int"),
        ("epochs", {"a": 1}, "unknown settings: epochs.a"),
        ("model", 3, "unknown settings: model"),
        ("model.depth", 3, "unknown settings: model.depth"),
        ("model.width", True, "model.width=True"),
        ("model.width", 10**6, "must be below 4097"),
        ("seed", 2**40, "must be a finite number below"),
        ("seed", [1], "seed"),
        ("optimizer.learning_rate", float("nan"), "must be a finite number below"),
        ("optimizer.learning_rate", 10**400, "damaged"),
        ("method", "simclr_vmff", "did you mean simclr_vmf"),
        ("fit_kappa.method", "no_such_method", "no_such_method"),
        ("data.source", "folder:/a\0b", "NUL"),
        ("update", {"epochs": 1}, "unknown settings: update.epochs"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_named(tmp_path, key, value, words):
    run_directory.write_or_check_config(tmp_path, tiny_config(), {"num_classes": 10})
    change(tmp_path / "config.json", key, value)
    with pytest.raises(UserError, match=r"config\.json is damaged, or from another") as error:
        run_directory.read(tmp_path)
    assert words in str(error.value)


@pytest.mark.parametrize("facts", [None, 3, {"num_classes": "10"}, {"num_classes": -1}])
def test_facts_that_cannot_be_meant(tmp_path, facts):
    run_directory.write_or_check_config(tmp_path, tiny_config(), facts)
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        run_directory.read(tmp_path)


def test_packed_weights_stand_for_a_checkpoint(tmp_path, rng):
    workdir = make_run(tmp_path / "run", method="simsiam_vmf")
    _, method, step = training.load_method(workdir)
    images = rng.random((20, 16, 16, 3)).astype(np.float32)
    expected = method.encoder(images)
    place = tmp_path / "packed"
    ship.write_weights(place, method, step)
    shutil.copy(workdir / "config.json", place)
    _, packed, found = training.load_method(place)
    assert found == step
    for name, values in packed.encoder(images).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(method.encoder.variables, packed.encoder.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    size = (place / "weights.npz").stat().st_size
    ship.write_weights(place, method, step, bits=6)
    _, coarse, _ = training.load_method(place)
    largest = max(method.encoder.variables, key=lambda each: math.prod(each.shape)).path
    pairs = [
        (m, c) for m, c in zip(method.encoder.variables, coarse.encoder.variables, strict=True)
    ]
    ours, theirs = next((m.numpy(), c.numpy()) for m, c in pairs if m.path == largest)
    np.testing.assert_allclose(ours, theirs, rtol=2**-7, atol=0)
    assert not (ours == theirs).all()
    assert (place / "weights.npz").stat().st_size < 0.6 * size


def test_damaged_packed_weights_are_one_line(tmp_path):
    workdir = make_run(tmp_path / "run")
    _, method, step = training.load_method(workdir)
    other = make_run(tmp_path / "other", **{"model.dimension": 5})
    shutil.rmtree(other / "checkpoints")
    ship.write_weights(other, method, step)
    with pytest.raises(
        UserError, match=r"weights\.npz .* damaged: it holds the weights of another"
    ):
        training.load_method(other)
    whole = (other / "weights.npz").read_bytes()
    for cut in (0, 100, len(whole) // 2):
        (other / "weights.npz").write_bytes(whole[:cut])
        with pytest.raises(UserError, match="damaged"):
            training.load_method(other)
