"""ONNX and LiteRT files beside the SavedModel that they were made of."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from helpers.pictures import huge_png
from PIL import Image

import tfvmf
from tfvmf import embedding, posthoc, programs, serving
from tfvmf.errors import UserError
from tfvmf.serving import formats

ROOT = pathlib.Path(__file__).parents[2]
FILES = ("model.onnx", "model.tflite", "model_float16.tflite")

# `tfvmf embed` where TensorFlow cannot be imported; prints the seconds of processor time to load.
WITHOUT_TENSORFLOW = """
import sys, time
sys.modules["tensorflow"] = None
import tfvmf
tfvmf.load(sys.argv[1])
print(time.process_time())
from tfvmf import programs
sys.exit(programs.main(["embed", *sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def version(exported, digits, tmp_path_factory):
    """All formats of a run that has a probe, of any weights that tell images apart."""
    place = tmp_path_factory.mktemp("formats")
    workdir = shutil.copytree(exported.workdir, place / "run")
    weights = np.random.default_rng(3).normal(size=(32, 3)).astype(np.float32)
    posthoc.LinearProbe(
        weights=weights,
        bias=-exported.expected(digits)["features"].mean(axis=0) @ weights,
        classes=np.arange(3),
        names=("one", "two", "grün"),
        step=7,
    ).save(workdir)
    return serving.export_model(workdir, place / "models", format=formats.FORMATS, with_probe=True)


@pytest.fixture(scope="module")
def served(version):
    loaded = tf.saved_model.load(str(version))
    return lambda images: loaded.signatures["serving_default"](images=images)


@pytest.mark.parametrize("name", FILES)
def test_a_file_gives_what_the_saved_model_gives(version, served, digits, photographs, name):
    model = tfvmf.load(version / name)
    assert {**model.card, "formats": None} == {**serving.read_card(version), "formats": None}
    coarse = 100 if "float16" in name else 1
    for images in (digits[:30], photographs, digits[:1]):  # resized outside, as in training
        ours, theirs = model.embed(images), served(images)
        assert set(ours) == set(theirs)
        resized = 30 if images is photographs else 1  # a gray level here and there
        for output in ("mean_direction", "concentration", "features"):
            tolerance = 1e-5 * coarse * resized
            np.testing.assert_allclose(ours[output], theirs[output], atol=tolerance, rtol=tolerance)
        np.testing.assert_allclose(
            ours["class_probability"], theirs["class_probability"], atol=1e-3 * coarse
        )
        if coarse == resized == 1:
            names = [name.decode() for name in theirs["class"].numpy()]
            np.testing.assert_array_equal(ours["class"], names)
            assert len(images) == 1 or len(set(names)) > 1
        assert ours["accept"].dtype == bool
        np.testing.assert_array_equal(ours["accept"], ours["confidence"] > np.float32(0.05))
    confidence = model.embed(digits)["confidence"]
    np.testing.assert_allclose(confidence, served(digits)["confidence"], atol=0.05)


@pytest.mark.parametrize("name", FILES[:2])
def test_empty_batches_and_bad_images(version, digits, tmp_path, name):
    model = tfvmf.load(version / name)
    shapes = {output: array.shape for output, array in model.embed(digits[:0]).items()}
    assert shapes["mean_direction"] == (0, 8)
    assert shapes["features"] == (0, 32)
    assert shapes["accept"] == shapes["concentration"] == (0,)
    for wrong in (digits[:2].astype(np.float32), digits[:2, ..., :2], digits[:2, :0]):
        with pytest.raises(UserError, match=r"expected uint8 \[N, H, W, 3\]"):
            model.embed(wrong)
    (tmp_path / "huge.png").write_bytes(huge_png(30_000))
    with pytest.raises(UserError, match=r"30000 x 30000 pixels, more than max_pixels"):
        model.embed(tmp_path / "huge.png")
    with pytest.raises(UserError, match="is an export, which holds no Keras model"):
        model.encoder  # noqa: B018


def test_onnx_runtime_reads_it_alone_and_refuses_wrong_types(version, digits):
    import onnxruntime

    session = onnxruntime.InferenceSession(version / "model.onnx")
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape[1:]) == ("images", "tensor(uint8)", [16, 16, 3])
    assert json.loads(session.get_modelmeta().custom_metadata_map["tfvmf.json"])["step"] == 7
    with pytest.raises(Exception, match="Unexpected input data type"):
        session.run(None, {"images": digits[:1].astype(np.float32)})
    with pytest.raises(Exception, match="Got invalid dimensions"):
        session.run(None, {"images": digits[:1, :8]})


def test_embed_needs_no_tensorflow_and_starts_quickly(version, digits, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, image in enumerate(digits[:12]):
        large = Image.fromarray(image).resize((50 + number, 40), Image.Resampling.BICUBIC)
        large.save(folder / f"{number:02}.{'png' if number % 2 else 'jpg'}")
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    out, model = tmp_path / "onnx.npz", version / "model.onnx"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, model, folder, f"--output={out}"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[0]) < 2.0
    embedding.embed(version, folder, tmp_path / "saved.npz")
    ours, theirs = (embedding.read_table(path) for path in (out, tmp_path / "saved.npz"))
    assert ours.columns == theirs.columns
    for name in ("file", "error"):
        np.testing.assert_array_equal(ours[name], theirs[name])
    for name in ("features", "mean_direction", "concentration"):  # files are read by the same code
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-5, rtol=1e-5)


def test_float16_is_left_out_where_it_differs_and_images_are_generated_without_data(
    exported, tmp_path, monkeypatch, capsys
):
    def gone(config):
        raise UserError("there is no such folder")

    monkeypatch.setattr("tfvmf.training.load_reserve", gone)
    monkeypatch.setattr(formats, "KAPPA", 1e-5)
    command = ["export", str(exported.workdir), f"--output={tmp_path}", "--format=litert"]
    assert programs.main(command) == 0
    told, card = capsys.readouterr().out, serving.read_card(tmp_path / "1")
    assert "docker" not in told
    assert f"next: tfvmf embed {tmp_path}/1/model.tflite" in told
    for name in FILES[1:]:
        about = card["formats"][name]
        assert about["images"] == 200
        assert about["compared_on"] == "generated images"
        assert about["differences"]["concentration"] < 1e-3
        assert ("refused" in about) == ("float16" in name)
    assert "model_float16.tflite: left out" in told
    files = {path.name for path in (tmp_path / "1").iterdir()}
    assert files == {"model.tflite", "assets.extra"}  # and no SavedModel
    assert tfvmf.load(tmp_path).path.name == "model.tflite"
    assert not (tmp_path / "models.config").exists()


def test_differences_are_told(version):
    told = serving.read_card(version)["formats"]
    assert set(told) == set(FILES)
    for about in told.values():
        assert about["compared_on"] == "images of digits (train)"
        assert 0 < about["bytes"] < 1e6
        assert set(about["differences"]) >= {"concentration", "cosine", "confidence", "accept"}


def test_a_file_that_differs_is_not_published(exported, version, tmp_path, monkeypatch):
    def shifted(path):
        card, serve = opened(version / "model.onnx")

        def served(images):
            outputs = serve(images)
            return {**outputs, "concentration": outputs["concentration"] + 0.01}

        return card, served

    def write(name, portable, module, directory, card):
        (directory / "model.onnx").write_bytes(b"")
        return [directory / "model.onnx"]

    opened = formats.open_file
    monkeypatch.setattr(formats, "open_file", shifted)
    monkeypatch.setattr(formats, "write", write)
    with pytest.raises(UserError, match=r"model.onnx differs from the SavedModel on images of"):
        serving.export_model(exported.workdir, tmp_path, format=("savedmodel", "onnx"))
    assert list(tmp_path.iterdir()) == []


def test_generated_images_are_varied_and_the_same_each_time():
    images = formats.generated_images(16, 20)
    assert images.shape == (20, 16, 16, 3)
    np.testing.assert_array_equal(images, formats.generated_images(16, 20))
    assert images.std(axis=(1, 2, 3))[:-4].min() > 1


def test_limits_are_those_of_kappa_cosine_and_ranks(rng):
    directions = rng.normal(size=(100, 8))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    one = {"mean_direction": directions, "concentration": np.linspace(0.1, 50, 100)}
    one |= {"confidence": np.linspace(0, 1, 100), "accept": np.arange(100) > 5}

    def differences(**changes):
        other = {**one, **changes}
        return formats.compare(
            lambda rows: {name: value[rows] for name, value in other.items()},
            lambda rows: {name: value[rows] for name, value in one.items()},
            np.arange(100),
        )

    assert formats.too_far(differences()) == ""
    kappa = one["concentration"].copy()
    kappa[-1] += 0.04  # less than a thousandth of 50
    assert formats.too_far(differences(concentration=kappa)) == ""
    kappa[0] += 0.002
    found = differences(concentration=kappa)
    assert found["concentration"] == pytest.approx(0.002)
    assert "concentration differs by 0.002" in formats.too_far(found)
    turned = directions.copy()
    turned[70, :2] = turned[70, 1::-1]
    gap = 1 - directions[70] @ turned[70]
    assert differences(mean_direction=turned)["cosine"] == pytest.approx(gap)
    assert "cosine" in formats.too_far(differences(mean_direction=turned))
    ranks = one["confidence"] + 0.06
    assert "confidence" in formats.too_far(differences(confidence=ranks))
    assert formats.too_far(differences(confidence=ranks), ranks=50) == ""
    assert differences(accept=np.arange(100) > 7)["accept"] == 2
    broken = np.where(np.arange(100) == 3, np.nan, kappa)
    assert differences(concentration=broken)["concentration"] == np.inf


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("onnxx", "--format=onnxx is unknown: expected some of savedmodel, onnx, litert"),
        ("", "--format= is empty: expected some of savedmodel, onnx, litert"),
        (",", "--format= is empty: expected some of savedmodel, onnx, litert"),
    ],
)
def test_unknown_formats_are_refused_before_anything_is_loaded(
    exported, tmp_path, capsys, value, message
):
    command = ["export", str(exported.workdir), f"--output={tmp_path / 'x'}", f"--format={value}"]
    assert programs.main(command) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("name", "package"), [("onnx", "tf2onnx"), ("litert", "ai_edge_litert")])
def test_an_extra_that_is_not_installed(version, monkeypatch, name, package):
    find = formats.importlib.util.find_spec
    monkeypatch.setattr(
        formats.importlib.util,
        "find_spec",
        lambda n: None if n in (package, "onnxruntime") else find(n),
    )
    with pytest.raises(UserError, match=rf"format={name}: .* pip install 'tfvmf\[{name}\]'"):
        formats.check_formats([name])
    file = version / {"onnx": "model.onnx", "litert": "model.tflite"}[name]
    with pytest.raises(UserError, match=rf"{file.name}: .* pip install 'tfvmf\[{name}\]'"):
        tfvmf.load(file)


@pytest.mark.parametrize("name", FILES[:2])
def test_damaged_and_foreign_files(version, tmp_path, name):
    content, file = (version / name).read_bytes(), tmp_path / name
    for bad in (b"", b"no model", content[: len(content) // 2], content[:-3000]):
        file.write_bytes(bad)
        with pytest.raises(UserError, match="was not written by tfvmf export, or is damaged"):
            tfvmf.load(file)
    with pytest.raises(UserError, match="there is no such file"):
        tfvmf.load(tmp_path / f"other{file.suffix}")
    with pytest.raises(UserError, match="is not a run directory"):
        tfvmf.load(version / name, checkpoint="7")
