import json
import os
import shutil
import signal

import numpy as np
import pytest
from helpers.states import assert_equal_weights, weights
from helpers.tiny import tiny_config
from PIL import Image

from tfvmf import training
from tfvmf.errors import UserError
from tfvmf.training import loop


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished")
    training.train(tiny_config(), workdir)
    return workdir


def test_writes_metrics_checkpoints_and_config(finished):
    lines = training.read_metrics(finished)
    assert [line["step"] for line in lines if "loss" in line] == [1, 3, 4, 6, 8]
    last = [line for line in lines if "loss" in line][-1]
    parts = last["contrastive"] + last["alignment"] + last["penalty"]
    assert last["loss"] == pytest.approx(parts, abs=1e-4)
    assert last["kappa"] > 0
    assert [line["step"] for line in lines if "knn_accuracy" in line] == [4, 8]
    assert list((finished / "tensorboard").iterdir())
    assert json.loads((finished / "config.json").read_text())["config"]["epochs"] == 2


def test_a_finished_run_stays_as_it_is(finished):
    before = weights(finished)
    values = training.train(tiny_config(), finished)
    assert "knn_accuracy" in values
    assert_equal_weights(weights(finished), before)


def test_a_run_that_begins_again_keeps_nothing_that_was_fitted_to_it(finished, tmp_path):
    workdir = shutil.copytree(finished, tmp_path / "run")
    for name in ("judge.npz", "probe.npz"):
        (workdir / name).touch()
    training.train(tiny_config(), workdir)  # which has nothing to do
    assert {"judge.npz", "probe.npz"} <= {path.name for path in workdir.iterdir()}
    shutil.rmtree(workdir / "checkpoints")
    training.train(tiny_config(), workdir)
    assert not {"judge.npz", "probe.npz"} & {path.name for path in workdir.iterdir()}


class Stop:
    """Sends this process a signal when the loop asks for its n-th step."""

    def __init__(self, after, signum):
        self.after, self.signum, self.original = after, signum, loop.make_train_step

    def __call__(self, *arguments, **keywords):
        step, count = self.original(*arguments, **keywords), 0

        def counted(iterator):
            nonlocal count
            count += 1
            if count == self.after:
                os.kill(os.getpid(), self.signum)
            return step(iterator)

        return counted


@pytest.mark.parametrize(
    ("signum", "code", "after"),
    [(signal.SIGTERM, 143, 3), pytest.param(signal.SIGINT, 130, 5, marks=pytest.mark.slow)],
)
def test_a_stopped_run_goes_on_bit_by_bit(finished, tmp_path, monkeypatch, signum, code, after):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "make_train_step", Stop(after, signum))
        with pytest.raises(training.Interrupted, match=f"after step {after}") as stopped:
            training.train(tiny_config(), tmp_path)
    assert stopped.value.exit_code == code
    training.train(tiny_config(), tmp_path)
    assert_equal_weights(weights(tmp_path), weights(finished), rtol=0, atol=0)
    steps = [line["step"] for line in training.read_metrics(tmp_path) if "loss" in line]
    assert steps == sorted(set(steps))


# Not Adam: it divides by the gradient's size and so makes rounding errors as large as steps.
ON_ANY_DEVICES = {
    "batch_size": 348,
    "epochs": 1,
    "optimizer.name": "sgd",
    "log_every_steps": 1,
    "checkpoint.every_epochs": 0.5,
}


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("one")
    training.train(tiny_config(**ON_ANY_DEVICES), workdir)
    return workdir


def assert_same_run(one, two):
    lines = [
        [line for line in training.read_metrics(workdir) if "loss" in line]
        for workdir in (one, two)
    ]
    for single, double in zip(*lines, strict=True):
        assert single["step"] == double["step"]
        assert single["loss"] == pytest.approx(double["loss"], rel=1e-5)
        assert single["kappa_std"] == pytest.approx(double["kappa_std"], rel=1e-3)
    assert_equal_weights(weights(one), weights(two), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_replicas_compute_what_one_device_does(tmp_path, two_replicas, monkeypatch):
    changes = ON_ANY_DEVICES | {"method": "mc_infonce", "mc_infonce.num_samples": 4}
    training.train(tiny_config(**changes), tmp_path / "one")
    monkeypatch.setattr(loop, "make_strategy", lambda *_, **__: two_replicas)
    training.train(tiny_config(**changes), tmp_path / "two")
    assert_same_run(tmp_path / "one", tmp_path / "two")


def test_a_batch_that_replicas_cannot_share_is_refused(tmp_path, two_replicas, monkeypatch):
    monkeypatch.setattr(loop, "make_strategy", lambda *_, **__: two_replicas)
    with pytest.raises(UserError, match="multiple of 2"):
        training.train(tiny_config(), tmp_path)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
    training.train(tiny_config(epochs=1), tmp_path)
    good = weights(tmp_path)
    original = loop.make_train_step

    def broken(*arguments, **keywords):
        step, count = original(*arguments, **keywords), 0

        def explode(iterator):
            nonlocal count
            count += 1
            terms = step(iterator)
            return {**terms, "loss": terms["loss"] * (float("nan") if count == 2 else 1.0)}

        return explode

    monkeypatch.setattr(loop, "make_train_step", broken)
    with pytest.raises(UserError, match="nan at step 6: lower"):
        training.train(tiny_config(epochs=2), tmp_path, force_config=True)
    assert_equal_weights(weights(tmp_path), good)


def test_other_settings_are_refused_in_a_used_directory(finished):
    with pytest.raises(UserError, match=r"model.width \(2 -> 4\).*--force_config"):
        training.train(tiny_config(**{"model.width": 4}), finished)


def test_a_run_from_before_the_choice_of_passes_took_one(finished, tmp_path):
    content = json.loads((finished / "config.json").read_text())
    del content["config"]["model"]["one_pass"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"model.one_pass \(True -> False\)"):
        training.train(tiny_config(), tmp_path)


@pytest.mark.parametrize("first_step", [2, pytest.param(0, marks=pytest.mark.slow)])
def test_replicas_begin_or_continue_what_one_device_computes(
    one_device, two_replicas, tmp_path, monkeypatch, first_step
):
    changes = {"strategy": "mirrored", "data.data_dir": "elsewhere", "data.memory_limit_gib": 1.0}
    workdir = tmp_path / "run"
    if first_step:  # as if it had been killed, and the data had moved: the same run
        shutil.copytree(one_device, workdir)
        for path in workdir.glob("checkpoints/step-4*"):
            path.unlink()
    monkeypatch.setattr(loop, "make_strategy", lambda *_, **__: two_replicas)
    training.train(tiny_config(**ON_ANY_DEVICES, **changes), workdir)
    assert_same_run(one_device, workdir)
    config, *_ = training.load_method(workdir)
    assert (config.strategy, config.data.data_dir) == ("mirrored", "elsewhere")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("method", "simsiam2", "simclr_vmf"),
        ("strategy", "tpu", "--config.strategy=tpu"),
        ("model.backbone", "vgg", "resnet18"),
        ("batch_size", 5000, "use at most 1397"),
        ("batch_size", 1, "batch_size"),
        ("epochs", 0, "epochs"),
        ("optimizer.name", "adamw", "adam, sgd"),
        ("optimizer.learning_rate", -1.0, "learning_rate"),
        ("optimizer.learning_rate", float("nan"), "learning_rate"),
        ("simclr.temperature", 0.0, "temperature"),
        ("augment.crop_min", 2.0, "crop_min"),
        ("data.source", "nosuchset", "nosuchset"),
        ("data.source", "folder:/nowhere", "nowhere"),
    ],
)
def test_settings_that_cannot_be_meant_are_named_and_leave_nothing(tmp_path, key, value, message):
    workdir = tmp_path / "run"
    with pytest.raises(UserError, match=message):
        training.train(tiny_config(**{key: value}), workdir)
    assert not workdir.exists()


@pytest.mark.parametrize("method", ["simclr", "supervised"])
@pytest.mark.parametrize("optimizer", ["sgd"])
def test_other_methods_and_optimizers_train(tmp_path, method, optimizer):
    config = tiny_config(method=method, **{"optimizer.name": optimizer, "epochs": 1})
    values = training.train(config, tmp_path)
    assert np.isfinite(values["loss"])
    assert "kappa" not in values
    loaded, trained, step = training.load_method(tmp_path)
    assert (loaded.method, step) == (method, 4)
    assert set(trained.models) == (
        {"encoder", "classifier"} if method == "supervised" else {"encoder"}
    )


@pytest.mark.slow
def test_unlabeled_images_train_while_labeled_ones_are_watched(tmp_path, rng):
    path = tmp_path / "mine.npz"
    np.savez(path, images=rng.integers(0, 256, (40, 9, 9), np.uint8))
    changes = {"data.source": f"npz:{path}", "batch_size": 20, "epochs": 1}
    watched = training.train(
        tiny_config(**changes, **{"data.eval_source": "digits"}), tmp_path / "labeled"
    )
    assert "knn_accuracy" in watched
    alone = training.train(tiny_config(**changes), tmp_path / "unlabeled")
    assert "eval_kappa" in alone
    assert "knn_accuracy" not in alone


def test_a_broken_image_of_a_streamed_folder_is_named(tmp_path, rng):
    folder = tmp_path / "images" / "train"
    folder.mkdir(parents=True)
    (tmp_path / "images" / "test").mkdir()
    for number in range(12):
        place = folder if number < 8 else folder.parent / "test"
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), np.uint8)).save(place / f"{number}.png")
    content = bytearray((folder / "3.png").read_bytes())
    content[200:400] = bytes(200)  # in the middle: the header and the end look right
    (folder / "3.png").write_bytes(content)
    changes = {"data.source": f"folder:{tmp_path / 'images'}", "data.memory_limit_gib": 0.0}
    with pytest.raises(UserError, match=r"3\.png"):
        training.train(tiny_config(batch_size=4, **changes), tmp_path / "run")


def test_loading_needs_a_run_and_a_checkpoint(finished, tmp_path):
    with pytest.raises(UserError, match="not a run directory"):
        training.load_method(tmp_path)
    (tmp_path / "config.json").write_text((finished / "config.json").read_text())
    with pytest.raises(UserError, match="no checkpoint"):
        training.load_method(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        training.load_method(tmp_path)
