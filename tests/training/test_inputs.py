"""What a run does with its data before it trains: broken files, held-out images, the reserve."""

import csv

import keras
import numpy as np
import pytest
from helpers.states import assert_equal_weights, weights
from helpers.tiny import tiny_config
from PIL import Image

from tfvmf import posthoc, training
from tfvmf.data import load_source
from tfvmf.errors import UserError
from tfvmf.models import resnet
from tfvmf.training import inputs, loop, run_directory


@pytest.fixture
def photos(tmp_path):
    """200 images of two classes, without splits."""
    rng = np.random.default_rng(0)
    for number in range(200):
        folder = tmp_path / "photos" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
    return tmp_path / "photos"


def of_folder(folder, **changes):
    return tiny_config(
        **{"data.source": f"folder:{folder}", "batch_size": 80, "epochs": 1}, **changes
    )


def break_file(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_a_few_broken_files_are_listed_and_left_out(photos, tmp_path, capsys):
    whole = len(load_source(f"folder:{photos}", "train", image_size=8).files)
    bad = [photos / "cat" / "000.png", photos / "dog" / "101.png"]  # 1 % of 200
    for path in bad:
        break_file(path)
    training.train(of_folder(photos), tmp_path / "run")
    with (tmp_path / "run" / "broken.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [str(path) for path in bad]
    assert all("broken image" in row["error"] for row in rows)
    printed = capsys.readouterr().out
    assert "left out: 2 of 200 images cannot be read, such as" in printed
    assert "images are held out for evaluation" in printed
    facts = run_directory.read(tmp_path / "run")[1]
    assert whole - 2 <= facts["train_images"] < whole  # one may be held out
    left, _, _ = inputs.load_sources(of_folder(photos))
    for path in bad:
        path.unlink()
    without, _, _ = inputs.load_sources(of_folder(photos))
    np.testing.assert_array_equal(left.array, without.array)
    np.testing.assert_array_equal(left.labels, without.labels)
    training.train(of_folder(photos), tmp_path / "run")
    assert not (tmp_path / "run" / "broken.csv").exists()


def test_many_broken_files_stop_the_run_with_their_list(photos, tmp_path):
    break_file(photos / "cat" / "000.png")
    with pytest.raises(UserError, match=r"1 of 200 images .*000\.png: broken image.*--strict"):
        training.train(of_folder(photos), tmp_path / "run", strict=True)
    for number in (2, 4):
        break_file(photos / "cat" / f"{number:03d}.png")
    with pytest.raises(UserError, match=r"3 of 200 images .*at most 1% are left out.*broken\.csv"):
        training.train(of_folder(photos), tmp_path / "run")
    assert len((tmp_path / "run" / "broken.csv").read_text().splitlines()) == 4
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_held_out_part_is_announced(photos):
    made = inputs.image_inputs(of_folder(photos))
    test = load_source(f"folder:{photos}", "test").size
    assert made.notes == [f"{test} of 200 images are held out for evaluation"]
    assert inputs.image_inputs(tiny_config()).notes == []  # the digits have a split of their own


@pytest.mark.parametrize(("reserve", "count"), [(0.1, 140), (300.0, 300)])
def test_the_reserve_is_kept_from_training_and_voting(reserve, count):
    config = tiny_config(**{"data.reserve": reserve})
    whole = load_source("digits", "train", image_size=8)
    kept = training.load_reserve(config)
    source, bank, queries = inputs.load_sources(config)
    assert kept.size == count
    assert source.size == bank.size == whole.size - count
    assert not {*kept.indices} & {*source.indices}
    assert {*kept.indices} | {*source.indices} == {*range(whole.size)}
    shares = np.bincount(kept.labels) / count - np.bincount(whole.labels) / whole.size
    assert np.abs(shares).max() < 1 / count  # each class has its share
    assert queries.size == load_source("digits", "test").size
    assert training.load_source(config, "digits", "train").size == source.size
    assert f"{count} of 1,397 training images are kept" in inputs.image_inputs(config).notes[0]
    other = training.load_reserve(tiny_config(**{"data.reserve": reserve, "seed": 7}))
    np.testing.assert_array_equal(other.indices, kept.indices)


def test_a_reserve_too_small_to_calibrate_on_is_refused_before_training(rng):
    """Not after it: 25 images are the fewest on which `posthoc` can calibrate alpha = 0.05."""
    with pytest.raises(UserError, match=r"--config\.data\.reserve=24 keeps 24 .*25 or more"):
        inputs.image_inputs(tiny_config(**{"data.reserve": 24.0}))
    inputs.image_inputs(tiny_config(**{"data.reserve": 25.0}))
    posthoc.Decision.fit(rng.normal(size=25), rng.normal(size=25))
    with pytest.raises(UserError, match="no image could be rejected"):
        posthoc.Decision.fit(rng.normal(size=24), rng.normal(size=24))


def test_a_reserve_leaves_images_to_train_on():
    assert training.load_reserve(tiny_config()) is None
    for reserve in (1396.0, 0.9999, 0.0001):
        with pytest.raises(UserError, match=r"--config\.data\.reserve=.* of 1,397 training images"):
            inputs.load_sources(tiny_config(**{"data.reserve": reserve}))


def test_minutes_choose_epochs_and_give_the_bits_of_those_epochs(tmp_path, monkeypatch, capsys):
    measured = []

    def measure(*arguments):
        measured.append(real(*arguments))  # the steps are really trained
        return 2.5, 10.0  # of a step, four of which are an epoch, and of the monitor

    real = loop.measure
    monkeypatch.setattr(loop, "measure", measure)
    config = tiny_config(minutes=1.0)
    training.train(config, tmp_path / "timed", command=lambda epochs: f"train so {epochs}")
    assert min(measured[0]) > 0
    assert config.epochs == 2  # the caller's is left alone
    stored, _ = run_directory.read(tmp_path / "timed")
    assert (stored.epochs, stored.minutes) == (3, 1.0)  # 60 s / (10 s + 10 s)
    assert "to repeat this run exactly: train so 3" in capsys.readouterr().out
    training.train(tiny_config(epochs=3), tmp_path / "counted")
    timed, counted = weights(tmp_path / "timed"), weights(tmp_path / "counted")
    assert_equal_weights(timed, counted, rtol=0, atol=0)
    training.train(config, tmp_path / "timed")  # resumes, and measures nothing
    with pytest.raises(UserError, match=r"other settings: .*minutes \(1\.0 -> 2\.0\)"):
        training.train(tiny_config(minutes=2.0), tmp_path / "timed")
    training.train(tiny_config(epochs=3), tmp_path / "timed")  # as the printed command does
    assert len(measured) == 1


def test_minutes_are_for_one_run_on_one_machine(tmp_path):
    for changes in ({"strategy": "multi_worker"}, {"ensemble.num_members": 2}):
        with pytest.raises(UserError, match=r"set --config\.epochs"):
            training.train(tiny_config(minutes=5.0, **changes), tmp_path)
    cycles = tiny_config(minutes=1.0, **{"ensemble.num_members": 4, "ensemble.kind": "snapshot"})
    assert loop.epochs_within(cycles, 10.0) == 4
    assert loop.epochs_within(tiny_config(minutes=1.0), 10.0) == 6
    assert loop.epochs_within(tiny_config(minutes=0.01), 10.0) == 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model.width": 4096}, "model.width=4096"),
        ({"batch_size": 100_000, "model.width": 64, "data.image_size": 96}, "batch_size=100000"),
    ],
)
def test_what_cannot_fit_is_refused_before_anything_is_built(tmp_path, monkeypatch, changes, told):
    monkeypatch.setattr(loop, "available_memory", lambda: 16.0 * 2**30)
    monkeypatch.setattr(loop, "make_strategy", None)
    with pytest.raises(UserError, match=f"{told}.* need at least .* GiB .* has 16 GiB"):
        training.train(tiny_config(**changes), tmp_path)


def test_the_estimate_of_memory():
    """Against the network itself: its weights, and the outputs of its layers."""
    model = resnet.build_backbone("resnet10", width=16)
    weights_of, outputs = loop._footprint("resnet10", "cifar", 32, 16)
    assert weights_of == pytest.approx(model.count_params(), rel=0.03)
    layers = keras.Model(model.input, [layer.output for layer in model.layers])
    made = sum(int(keras.ops.size(output)) for output in layers(np.zeros((1, 32, 32, 3))))
    assert outputs == pytest.approx(made, rel=0.03)


def test_digits_obey_the_limit_of_memory():
    with pytest.raises(UserError, match=r"digits: 1,797 images of 8000x8000 need 321\.3 GiB"):
        inputs.load_sources(tiny_config(**{"data.image_size": 8000}))
