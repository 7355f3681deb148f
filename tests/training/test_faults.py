"""What happens to a run when the world is not as it should be."""

import os
import pathlib
import re
import subprocess
from shutil import copytree

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.disks import full_disk, small_files
from helpers.states import Trained, assert_equal_weights, weights
from helpers.tiny import tiny_config
from helpers.untrained import make_run
from PIL import Image

from tfvmf import embedding, evaluation, models, posthoc, serving, training
from tfvmf.errors import UserError
from tfvmf.files import lock
from tfvmf.methods import METHODS, build_method
from tfvmf.training.checkpoints import latest

ROOT = pathlib.Path(__file__).parents[2]
TRAIN = [
    str(ROOT / "bin" / "train"),
    "--config.epochs=4",
    "--config.batch_size=349",
    "--config.data.image_size=8",
    "--config.model.backbone=resnet10",
    "--config.model.dimension=8",
    "--config.model.hidden=8",
    "--config.monitor.every_epochs=0",
    "--config.checkpoint.every_epochs=0.25",
    "--config.log_every_steps=1",
]


@pytest.fixture
def shallow(monkeypatch):
    """A backbone of one block: graphs take their time."""
    one = ((1, 0, 0, 0), False)
    monkeypatch.setitem(models.resnet.ARCHITECTURES, "resnet10", one)


def save_npz(path, images):
    """The same images for training and testing, with two classes."""
    labels = np.arange(len(images)) % 2
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return {"data.source": f"npz:{path}", "batch_size": 8, "epochs": 1, "log_every_steps": 1}


@pytest.mark.usefixtures("shallow")
def test_a_learning_rate_that_explodes_leaves_the_last_good_state(tmp_path):
    changes = {"optimizer.name": "sgd", "optimizer.warmup_epochs": 0.25, "log_every_steps": 1}
    changes |= {"checkpoint.every_epochs": 0.25, "monitor.every_epochs": 0.0, "batch_size": 300}
    # The first step has a rate of 0, the second one that overflows, in the weights or in the loss.
    with pytest.raises(UserError, match=r"lower .*learning_rate"):
        training.train(tiny_config(**changes, **{"optimizer.learning_rate": 9e14}), tmp_path)
    assert latest(tmp_path).endswith(("step-1", "step-2"))
    assert all(np.isfinite(value).all() for value in weights(tmp_path).values())


@pytest.mark.usefixtures("shallow")
def test_images_without_content_train_to_finite_numbers(tmp_path):
    images = np.zeros((24, 8, 8, 3), np.uint8)
    images[8:16] = 255
    images[16:] = [13, 200, 77]
    values = training.train(tiny_config(**save_npz(tmp_path / "flat.npz", images)), tmp_path / "r")
    assert np.isfinite(list(values.values())).all()
    assert all(
        np.isfinite(list(line.values())).all() for line in training.read_metrics(tmp_path / "r")
    )


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("name", METHODS)
def test_no_method_has_a_gradient_of_nan_on_equal_black_images(name):
    config = tiny_config(method=name, **{"mc_infonce.num_samples": 2})
    method = build_method(config, num_classes=2)
    kinds = method.view_kinds(training.augmentation_from_config(config))
    views = [tf.zeros((4, 8, 8, 3))] * sum(count for _, count in kinds)

    def loss_and_gradients():
        with tf.GradientTape() as tape:
            terms = method.loss(views, tf.constant([0, 1, 0, 1]))
        gradients = tape.gradient(terms["loss"], method.trainable_variables)
        return [*terms.values(), *(value for value in gradients if value is not None)]

    if name == "mc_infonce":  # of a direction of length 0 it complains where it can see it
        loss_and_gradients = tf.function(loss_and_gradients)
    assert all(np.isfinite(value).all() for value in loss_and_gradients())


@pytest.mark.parametrize("initial", [np.log(2.0), 128.0])
def test_kappa_is_finite_for_every_image(rng, initial):
    encoder = models.build_encoder("resnet10", width=2, dimension=8, initial_concentration=initial)
    for shape in ((1, 1), (1, 40), (8, 8)):
        batch = np.stack(
            [
                np.zeros((*shape, 3)),
                np.ones((*shape, 3)),
                np.full((*shape, 3), 0.5),
                rng.uniform(size=(*shape, 3)),
                rng.integers(0, 2, (*shape, 3)),
            ]
        )
        for value in encoder(batch.astype(np.float32)).values():
            assert np.isfinite(value).all()


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_images_to_train_on(tmp_path, count):
    (tmp_path / "images" / "train").mkdir(parents=True)
    (tmp_path / "images" / "test").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "images" / "test" / "a.png")
    for number in range(count):
        Image.new("RGB", (9, 9)).save(tmp_path / "images" / "train" / f"{number}.png")
    config = tiny_config(**{"data.source": f"folder:{tmp_path / 'images'}", "batch_size": 2})
    with pytest.raises(UserError, match="at least 2" if count else "split 'train'"):
        training.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_pixels_that_are_no_numbers_are_refused(tmp_path):
    images = np.zeros((9, 8, 8, 3), np.float32)
    images[5, 2, 2, 1] = np.nan
    with pytest.raises(UserError, match="in image 5; expected finite"):
        training.train(tiny_config(**save_npz(tmp_path / "nan.npz", images)), tmp_path / "run")


def test_what_is_pickled_is_never_loaded(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    images = np.array([[Evil()]], dtype=object)
    np.savez(tmp_path / "evil.npz", images=images)
    config = tiny_config(**{"data.source": f"npz:{tmp_path / 'evil.npz'}"})
    with pytest.raises(UserError):
        training.train(config, tmp_path / "run")
    inputs = keras.Input((2,))
    outputs = keras.layers.Lambda(lambda x: x + 1)(inputs)
    keras.Model(inputs, outputs).save(tmp_path / "evil.keras")
    with pytest.raises(ValueError, match="unsafe"):
        keras.models.load_model(tmp_path / "evil.keras")
    assert not (tmp_path / "owned").exists()
    unsafe = re.compile(r"allow_pickle=True|safe_mode=False|import pickle|yaml\.load\(|\bexec\(")
    for path in (ROOT / "tfvmf").rglob("*.py"):
        assert not unsafe.search(path.read_text()), path


def test_a_run_that_goes_on_in_this_directory_is_left_alone(tmp_path):
    with (
        lock(tmp_path),
        pytest.raises(UserError, match=f"in use by process {os.getpid()} on"),
    ):
        training.train(tiny_config(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("disk", [full_disk, small_files])
def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path, disk):
    with disk(tmp_path / "disk"):
        workdir = tmp_path / "disk" / "run"
        Trained(workdir, units=2000).save(1)  # 50 kB
        big = Trained(workdir, units=100_000)  # 2.4 MB
        with pytest.raises(UserError, match=r"step 2 cannot be written: .*make room"):
            big.save(2)
        assert Trained(workdir, units=2000).restored() == (1, 1.0)
        assert not (workdir / "checkpoints" / ".partial").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("trained") / "run")


WRITERS = {
    "train": lambda run, disk: training.train(tiny_config(), disk / "out"),
    "fit_kappa": lambda run, disk: posthoc.fit_kappa(run, disk / "out", changes={"epochs": 1}),
    "evaluate": lambda run, disk: evaluation.probe(
        evaluation.subject_from_run(run, directory=disk / "out"), max_images=50
    ),
    "export": lambda run, disk: serving.export_model(run, disk / "out"),
    "embed": lambda run, disk: embedding.embed(
        run, "digits", disk / "out.npz", sort="concentration"
    ),
    "draw_views": lambda run, disk: training.draw_views(tiny_config(), disk / "out.png"),
}


@pytest.mark.parametrize("state", ["filled", "read_only"])
@pytest.mark.parametrize("name", WRITERS)
def test_whoever_writes_says_in_a_line_that_there_is_no_room(tmp_path, trained, name, state):
    disk = tmp_path / "disk"
    words = {"filled": "No space left on device: make room", "read_only": "Read-only file system: "}
    with full_disk(disk, **{state: True}):
        with pytest.raises(UserError, match=rf"out.* cannot be written: {words[state]}"):
            WRITERS[name](trained, disk)
        assert [path for path in disk.rglob("*") if path.suffix == ".tmp"] == []


def test_a_run_that_cannot_be_written_is_evaluated_elsewhere(tmp_path, trained):
    disk = tmp_path / "disk"
    with full_disk(disk, read_only=True, prepare=lambda disk: copytree(trained, disk / "run")):
        refused = evaluation.subject_from_run(disk / "run")
        with pytest.raises(UserError, match=r"Read-only .*: write elsewhere with --output=DIR"):
            evaluation.probe(refused, max_images=50)
        subject = evaluation.subject_from_run(disk / "run", directory=tmp_path / "out")
        evaluation.probe(subject, max_images=50)
    assert (tmp_path / "out" / "sample50" / "probe" / "results.json").exists()


def test_a_run_in_a_directory_whose_name_is_a_pattern(tmp_path, trained):
    run = copytree(trained, tmp_path / "run[x]")
    exported = serving.export_model(run, tmp_path / "models[x]")
    images = np.zeros((1, 16, 16, 3), np.uint8)
    expected = serving.load(trained).embed(images)["features"]
    for model in (run, exported):
        found = serving.load(model).embed(images)["features"]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_a_run_which_goes_on_with_more_room(tmp_path):
    with full_disk(tmp_path / "disk"):
        workdir = tmp_path / "disk" / "run"
        command = [*TRAIN, f"--workdir={workdir}", "--config.model.width=8"]
        command += ["--config.checkpoint.keep=100"]
        stopped = subprocess.run(command, capture_output=True, text=True, check=False)
        assert stopped.returncode == 2, stopped.stderr
        assert "make room" in stopped.stderr.splitlines()[-1]
        step = int(latest(workdir).rpartition("-")[2])
        assert 1 <= step < 16
        resize = ["mount", "-o", "remount,size=200m", str(tmp_path / "disk")]
        subprocess.run(resize, check=True)
        again = subprocess.run(command, capture_output=True, text=True, check=False)
        assert again.returncode == 0, again.stderr
        assert f"from step {step}" in again.stdout
        whole = [*command[:-1], f"--workdir={tmp_path / 'whole'}"]
        subprocess.run(whole, capture_output=True, check=True)
        assert_equal_weights(weights(workdir), weights(tmp_path / "whole"), rtol=0, atol=0)
