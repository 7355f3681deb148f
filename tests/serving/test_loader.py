import io
import pathlib
import shutil

import keras
import numpy as np
import pytest
from helpers.tiny import tiny_config
from helpers.untrained import make_run
from PIL import Image

import tfvmf
from tfvmf import files, serving
from tfvmf.data.images import resize_image
from tfvmf.errors import UserError
from tfvmf.training import run_directory


@pytest.fixture(scope="module")
def model(exported):
    return tfvmf.load(exported.directory)


def encode(image, file_format="PNG"):
    file = io.BytesIO()
    Image.fromarray(image).save(file, file_format)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path, digits):
    """Twelve images, one in a folder below, and a file that is none."""
    root = tmp_path / "pictures"
    (root / "below").mkdir(parents=True)
    for number, image in enumerate(digits[:11]):
        (root / f"{number:02}.png").write_bytes(encode(image))
    (root / "below" / "grün.webp").write_bytes(encode(digits[11], "WEBP"))
    (root / "notes.txt").write_text("no image")
    return root


def assert_equal(outputs, expected):
    for name in ("mean_direction", "concentration", "features"):
        np.testing.assert_allclose(outputs[name], expected[name], rtol=1e-4, atol=1e-4)


def test_it_takes_the_newest_version_or_the_one_it_is_told(exported, model):
    assert isinstance(model, serving.EmbeddingModel)
    assert model.path == exported.path
    assert tfvmf.load(str(exported.path)).path == exported.path
    assert model.card["image_size"] == 16
    assert model.card["step"] == 7


def test_a_run_its_export_and_its_keras_file_agree(exported, model, digits, photographs, tmp_path):
    keras_file = exported.path / "assets.extra" / "encoder.keras"
    run, kept = tfvmf.load(exported.workdir), tfvmf.load(keras_file)
    for images in (digits[:9], photographs, [*digits[:2], photographs[0]]):
        served = model.embed(images)
        for other in (run, kept):
            outputs = other.embed(images)
            judged = {"familiarity", "confidence", "accept"}
            assert set(served) - set(outputs) == (judged if other is kept else set())
            for name, value in outputs.items():
                np.testing.assert_allclose(value, served[name], rtol=1e-4, atol=1e-5)
    assert run.card == model.card
    assert kept.card == {**run.card, "calibration": None}  # it lies beside the card
    for loaded in (run, kept):
        assert isinstance(loaded.encoder, keras.Model)
        outputs = loaded.encoder(digits[:9] / np.float32(255), training=False)
        assert_equal(outputs, exported.expected(digits[:9]))
    with pytest.raises(UserError, match="load the run directory"):
        _ = model.encoder


def test_a_keras_file_elsewhere_tells_less(exported, digits, tmp_path):
    path = tmp_path / "encoder.keras"
    exported.encoder.save(path)
    model = tfvmf.load(path)
    assert model.card["image_size"] is None
    assert model.card["method"] is None
    assert (model.card["dimension"], model.card["features"]) == (8, 32)
    expected = exported.expected(digits[:3])
    assert_equal(model.embed(digits[:3]), expected)  # arrays go in at the size they have
    with pytest.raises(UserError, match="image_size="):
        model.embed(list(digits[:3]))
    sized = tfvmf.load(path, image_size=16)
    assert sized.card["image_size"] == 16
    assert_equal(sized.embed(list(digits[:3])), expected)


def test_a_keras_file_of_a_fixed_size_tells_it(exported, digits, tmp_path):
    images = keras.Input((16, 16, 3))
    keras.Model(images, exported.encoder(images)).save(tmp_path / "fixed.keras")
    model = tfvmf.load(tmp_path / "fixed.keras")
    assert model.card["image_size"] == 16
    assert_equal(model.embed(list(digits[:3])), exported.expected(digits[:3]))
    with pytest.raises(UserError, match="takes images of size 16"):
        tfvmf.load(tmp_path / "fixed.keras", image_size=32)


def test_paths_may_begin_with_the_home_directory(exported, monkeypatch, digits):
    monkeypatch.setenv("HOME", str(exported.workdir.parent))
    model = tfvmf.load(f"~/{exported.workdir.name}")
    assert model.path == exported.workdir
    assert_equal(model.embed(digits[:2]), exported.expected(digits[:2]))


def test_one_checkpoint_of_a_run(exported, digits):
    path = exported.workdir / "checkpoints" / "step-7"
    for name in (path, f"{path}.index", "step-7", "7"):
        assert tfvmf.load(exported.workdir, checkpoint=name).card["step"] == 7
    with pytest.raises(UserError, match=r"checkpoint=9: .* has no such checkpoint; it has step-7"):
        tfvmf.load(exported.workdir, checkpoint="9")
    with pytest.raises(UserError, match="/no/such/step-9"):
        tfvmf.load(exported.workdir, checkpoint="/no/such/step-9")
    with pytest.raises(UserError, match="not a run directory"):
        tfvmf.load(exported.directory, checkpoint=str(path))


def test_loading_leaves_the_precision_of_the_caller(exported):
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        encoder = tfvmf.load(exported.workdir).encoder
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy(policy)
    assert encoder.compute_dtype == "float32"


def test_a_path_wins_over_a_shipped_name(exported, tmp_path, monkeypatch):
    shipped = tmp_path / "package"
    shutil.copytree(exported.path, shipped / "tiny" / exported.path.name)
    shutil.copytree(exported.workdir, shipped / "a_run")
    (shipped / "tiny" / "card.json").write_text('{"data": "digits", "seed": 0}')
    monkeypatch.setattr(files, "SHIPPED", shipped)
    monkeypatch.chdir(tmp_path)
    found = tfvmf.load("tiny")
    assert found.path == shipped / "tiny" / exported.path.name
    assert (found.card["data"], found.card["seed"]) == ("digits", 0)
    assert found.card["dimension"] == tfvmf.load(exported.path).card["dimension"]
    assert tfvmf.load("a_run").encoder.built
    with pytest.raises(UserError, match=r"cifar11: .* shipped model \(a_run, tiny\)"):
        tfvmf.load("cifar11")
    shutil.copytree(exported.workdir, tmp_path / "tiny")
    assert tfvmf.load("tiny").path == pathlib.Path("tiny")


def test_arrays_names_and_bytes_give_what_the_training_code_gives(
    exported, model, digits, folder, tmp_path
):
    expected = exported.expected(digits[:11])
    paths = [folder / f"{number:02}.png" for number in range(11)]
    for images in (
        digits[:11],
        list(digits[:11]),
        paths,
        [str(path) for path in paths],
        [path.read_bytes() for path in paths],
        [*digits[:4], *paths[4:8], *(path.read_bytes() for path in paths[8:])],
    ):
        for batch_size in (3, 11, 64):
            outputs = model.embed(images, batch_size=batch_size, progress=False)
            assert_equal(outputs, expected)
            assert outputs["accept"].shape == (11,)


def test_one_image_is_a_batch_of_one(exported, model, digits, folder):
    expected = exported.expected(digits[:1])
    for image in (digits[0], digits[0, :, :, 0], folder / "00.png", encode(digits[0])):
        assert_equal(model.embed(image), expected)  # the digits are gray


def test_images_of_any_size_are_resized_as_in_training(exported, model, photographs):
    resized = np.stack([resize_image(image, 16) for image in photographs])
    assert_equal(model.embed(list(photographs)), exported.expected(resized))
    sizes = [photographs[0], photographs[1, :, :20], photographs[2, :9, :9]]
    expected = exported.expected(np.stack([resize_image(image, 16) for image in sizes]))
    assert_equal(model.embed(sizes), expected)


def test_nothing_gives_empty_outputs(model):
    for nothing in ([], np.zeros((0, 16, 16, 3), np.uint8)):
        outputs = model.embed(nothing)
        assert outputs["mean_direction"].shape == (0, 8)
        assert outputs["concentration"].shape == (0,)


def test_progress_is_shown_for_many_batches_only(model, digits, capsys):
    model.embed(digits[:10], batch_size=4)
    assert "10/10" in capsys.readouterr().err
    model.embed(digits[:4], batch_size=4)
    model.embed(digits[:10], batch_size=4, progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 16, 16, 3), np.float32), "uint8"),
        (np.zeros((2, 16, 16, 4), np.uint8), r"\[N, H, W, 3\]"),
        (np.zeros((2, 0, 16, 3), np.uint8), r"\[N, H, W, 3\]"),
        ([np.zeros((16, 16, 3), np.uint8), np.zeros((16, 16, 3))], r"images\[1\]"),
        ([b"no image"], r"images\[0\]"),
        (["/no/such/file.png"], "/no/such/file.png"),
    ],
)
def test_what_cannot_be_read_is_named(model, images, message):
    with pytest.raises(UserError, match=message):
        model.embed(images)


def test_what_is_no_model_is_named(exported, tmp_path):
    with pytest.raises(UserError, match="neither a run directory"):
        tfvmf.load(tmp_path)
    with pytest.raises(UserError, match="nowhere: there is no such file or directory"):
        tfvmf.load(tmp_path / "nowhere")
    (tmp_path / "model.h5").write_text("")
    with pytest.raises(UserError, match=r"model\.h5 is neither"):
        tfvmf.load(tmp_path / "model.h5")
    (tmp_path / "1").mkdir()
    with pytest.raises(UserError, match="tfvmf export"):
        tfvmf.load(tmp_path)
    notes = tmp_path / "1" / "assets.extra" / "tfvmf.json"
    notes.parent.mkdir()
    notes.write_bytes((exported.path / "assets.extra" / "tfvmf.json").read_bytes())
    (tmp_path / "1" / "saved_model.pb").write_text("damaged")
    with pytest.raises(UserError, match="cannot be loaded"):
        tfvmf.load(tmp_path)


def test_keras_files_that_are_no_encoder(tmp_path):
    def message(model):
        if isinstance(model, bytes):
            (tmp_path / "x.keras").write_bytes(model)
        else:
            model.save(tmp_path / "x.keras")
        with pytest.raises(UserError) as error:
            tfvmf.load(tmp_path / "x.keras")
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "damaged" in message(b"no archive")
    images, vectors = keras.Input((None, None, 3)), keras.Input((5,))
    mean = keras.layers.GlobalAveragePooling2D()(images)
    assert "no output features, mean_direction, concentration" in message(keras.Model(images, mean))
    two = {"features": mean, "mean_direction": mean}
    assert "no output concentration" in message(keras.Model(images, two))
    head = dict.fromkeys(("features", "mean_direction", "concentration"), vectors * 1.0)
    assert "expected one input, images [N, H, W, 3]" in message(keras.Model(vectors, head))
    wide = keras.Input((8, 9, 3))
    flat = keras.layers.Flatten()(wide)
    three = dict.fromkeys(("features", "mean_direction", "concentration"), flat)
    assert "expected squares" in message(keras.Model(wide, three))


def test_an_ensemble_names_its_members(tmp_path):
    config = tiny_config(**{"ensemble.num_members": 2})
    run_directory.write_or_check_config(tmp_path, config, {"num_classes": 0})
    with pytest.raises(UserError, match="ensemble: name one of its members"):
        tfvmf.load(tmp_path)


def test_a_head_fitted_to_features_takes_no_images(tmp_path):
    settings = {"fit_kappa.kind": "features", "fit_kappa.method": "simclr"}
    settings["fit_kappa.model"] = "features.npz"
    workdir = make_run(tmp_path / "head", method="fit_kappa", **settings)
    with pytest.raises(UserError, match="head that was fitted to features"):
        tfvmf.load(workdir)
    path = serving.export_model(workdir, tmp_path / "models")
    with pytest.raises(UserError, match="takes features, not images"):
        tfvmf.load(path)
