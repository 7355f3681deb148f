import dataclasses
import io
import json
import pathlib
import shlex
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from helpers.untrained import make_run
from PIL import Image
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from tfvmf import embedding, evaluation, inference, models, posthoc, programs, serving, training
from tfvmf.config import default_config
from tfvmf.errors import UserError
from tfvmf.serving import export

FLOATS = ("mean_direction", "concentration", "features")


def png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def signatures(exported):
    return tf.saved_model.load(str(exported.path)).signatures


@pytest.fixture(scope="module")
def graph(exported):
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((exported.path / "saved_model.pb").read_bytes())
    return model.meta_graphs[0].graph_def


def nodes(graph):
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def test_both_signatures_give_what_the_training_code_gives(exported, digits, signatures):
    expected = exported.expected(digits[:20])
    by_pixels = signatures["serving_default"](images=digits[:20])
    by_bytes = signatures["serving_bytes"](image_bytes=[png(image) for image in digits[:20]])
    for outputs in (by_pixels, by_bytes):
        assert set(outputs) == {*FLOATS, "familiarity", "confidence", "accept"}
        for name in FLOATS:
            assert outputs[name].dtype == tf.float32
            np.testing.assert_allclose(outputs[name], expected[name], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(by_bytes["mean_direction"], axis=1), 1, atol=1e-5)


def test_images_of_another_size_are_resized_as_in_training(signatures, photographs):
    by_pixels = signatures["serving_default"](images=photographs)
    by_bytes = signatures["serving_bytes"](image_bytes=[png(image) for image in photographs])
    for name in FLOATS:
        np.testing.assert_allclose(by_pixels[name], by_bytes[name], rtol=1e-4, atol=1e-4)


def test_the_judge_of_the_run_is_in_the_graph(exported, digits, signatures):
    outputs = signatures["serving_default"](images=digits)
    judge = posthoc.load(exported.workdir)
    embedder = inference.Embedder(models.with_levels(exported.encoder))
    expected = judge(embedder(digits))
    np.testing.assert_allclose(outputs["familiarity"], expected["familiarity"], atol=2e-3)
    # A confidence is a rank: the last bit of a score may move it by a few images of 200.
    np.testing.assert_allclose(outputs["confidence"], expected["confidence"], atol=0.021)
    np.testing.assert_array_equal(outputs["accept"], outputs["confidence"].numpy() > 0.05)
    # Of images like those of the calibration 5 % are rejected, give or take three deviations.
    assert np.mean(outputs["accept"]) == pytest.approx(0.95, abs=0.06)


def test_the_judge_is_in_the_graph_once(exported):
    size = (exported.path / "saved_model.pb").stat().st_size
    kept = (exported.workdir / "judge.npz").stat().st_size
    assert kept < size < 1.5 * kept + 500_000


def test_another_alpha(exported, digits, tmp_path):
    path = serving.export_model(exported.workdir, tmp_path, alpha=0.3)
    assert serving.read_card(path)["calibration"]["alpha"] == 0.3
    outputs = serving.load(path).embed(digits, progress=False)
    np.testing.assert_array_equal(outputs["accept"], outputs["confidence"] > np.float32(0.3))
    with pytest.raises(UserError, match=r"alpha=0.001: with 300 calibration images"):
        serving.export_model(exported.workdir, tmp_path, alpha=0.001)


def test_an_empty_batch_gives_empty_outputs(signatures):
    for outputs in (
        signatures["serving_default"](images=np.zeros((0, 16, 16, 3), np.uint8)),
        signatures["serving_default"](images=np.zeros((0, 0, 0, 3), np.uint8)),
        signatures["serving_bytes"](image_bytes=tf.constant([], tf.string)),
    ):
        assert {name: tuple(value.shape) for name, value in outputs.items()} == {
            "mean_direction": (0, 8),
            "concentration": (0,),
            "features": (0, 32),
            "familiarity": (0,),
            "confidence": (0,),
            "accept": (0,),
        }


def test_bad_requests_are_refused_and_the_next_one_works(signatures, digits):
    good = png(digits[0])
    serve = signatures["serving_bytes"]
    first = serve(image_bytes=[good])["concentration"].numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match="image 1 is broken"):
        serve(image_bytes=[good, good[:60], good])
    with pytest.raises(tf.errors.InvalidArgumentError, match="without pixels"):
        signatures["serving_default"](images=np.zeros((2, 0, 5, 3), np.uint8))
    np.testing.assert_array_equal(serve(image_bytes=[good])["concentration"], first)


def test_no_image_gives_nan(signatures, rng):
    noise = rng.integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
    extremes = np.where(noise > 127, 255, 0).astype(np.uint8)
    flat = np.stack([np.full((16, 16, 3), level, np.uint8) for level in (0, 1, 127, 254, 255)])
    for images in (noise, extremes, flat, noise[:, :1, :1], noise[:, :1]):
        outputs = signatures["serving_default"](images=images)
        for name in (*FLOATS, "familiarity", "confidence"):
            assert np.isfinite(outputs[name]).all(), name


def test_the_graph_infers_and_nothing_else(graph):
    known = set(dir(tf.raw_ops))
    assert {node.op for node in nodes(graph)} <= known
    for node in nodes(graph):
        assert "PyFunc" not in node.op
        assert not node.op.startswith("ResourceApply")
        if node.op.startswith("FusedBatchNorm"):
            assert node.attr["is_training"].b is False
    writers = [
        function.signature.name
        for function in graph.library.function
        if any(node.op.startswith("Assign") for node in function.node_def)
    ]
    assert all("traced_restore" in name for name in writers), writers


def test_versions_follow_one_another_and_failure_leaves_none(exported, tmp_path, monkeypatch):
    (tmp_path / "4").mkdir()
    (tmp_path / "models.config").write_text("mine")
    path = serving.export_model(exported.workdir, tmp_path)
    assert path == tmp_path / "5"
    assert (tmp_path / "models.config").read_text() == "mine"
    outputs = tf.saved_model.load(str(path)).signatures["serving_default"].structured_outputs
    assert set(outputs) == {*FLOATS, "familiarity", "confidence", "accept"}
    before = sorted(tmp_path.iterdir())

    def fail(*args, **kwargs):
        assert sorted(tmp_path.iterdir()) != before  # half a model is on disk, and has no number
        raise OSError("disk full")

    monkeypatch.setattr(export, "_check", fail)
    with pytest.raises(UserError, match="disk full"):
        serving.export_model(exported.workdir, tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_a_run_of_mixed_precision_is_served_in_float32(tmp_path):
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        workdir = make_run(tmp_path / "run", precision="mixed_bfloat16")
        path = serving.export_model(workdir, tmp_path / "models")
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy(policy)
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((path / "saved_model.pb").read_bytes())
    assert "DT_BFLOAT16" not in str(model.meta_graphs[0].graph_def)
    outputs = tf.saved_model.load(str(path)).signatures["serving_default"].structured_outputs
    assert {value.dtype for value in outputs.values()} == {tf.float32}


def test_warm_up_requests_are_answered(exported, signatures):
    file = exported.path / "assets.extra" / "tf_serving_warmup_requests"
    records = list(tf.data.TFRecordDataset(str(file)).as_numpy_iterator())
    seen = []
    for record in records:
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        assert request.model_spec.name == "tfvmf"
        inputs = {name: tf.constant(tf.make_ndarray(v)) for name, v in request.inputs.items()}
        outputs = signatures[request.model_spec.signature_name](**inputs)
        seen.append((request.model_spec.signature_name, len(outputs["concentration"])))
    assert sorted(seen) == sorted(
        (name, count)
        for name in ("serving_default", "serving_bytes")
        for count in export.WARMUP_BATCHES
    )


def test_without_the_extra_there_are_no_warm_up_requests(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorflow_serving.apis", None)
    assert export.write_warmup(tmp_path, image_size=16) is False
    assert list(tmp_path.iterdir()) == []


def test_the_servers_files_are_what_it_reads(exported):
    config = model_server_config_pb2.ModelServerConfig()
    text_format.Parse((exported.directory / "models.config").read_text(), config)
    (model,) = config.model_config_list.config
    assert (model.name, model.base_path) == ("tfvmf", "/models/tfvmf")
    assert model.model_platform == "tensorflow"
    # The message of the batching file is not part of the package: names and forms by hand.
    lines = dict(
        line.split(maxsplit=1)
        for line in (exported.directory / "batching_parameters.txt").read_text().splitlines()
    )
    assert lines.pop("pad_variable_length_inputs:") == "false"
    assert set(lines) == {
        "max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads"
    }  # fmt: skip
    for value in lines.values():
        assert value.split()[:2] == ["{", "value:"]
        assert int(value.split()[2]) > 0


def test_the_oldest_server_follows_from_the_graph(exported, tmp_path):
    file = tmp_path / "saved_model.pb"

    def oldest(change):
        model = saved_model_pb2.SavedModel.FromString(
            (exported.path / "saved_model.pb").read_bytes()
        )
        change(model.meta_graphs[0].graph_def)
        file.write_bytes(model.SerializeToString())
        return serving.oldest_server(tmp_path)

    own = ".".join(tf.__version__.split(".")[:2])
    assert oldest(lambda graph: None) == "2.12"
    assert oldest(lambda graph: graph.library.function[0].node_def.add(op="DecodeWebP")) == own
    assert oldest(lambda graph: graph.node.add(op="NobodyKnows")) == own
    assert oldest(lambda graph: setattr(graph.versions, "min_consumer", 2000)) == own


def test_the_program_prints_how_to_serve(exported, tmp_path, capsys):
    assert (
        programs.main(["export", str(exported.workdir), f"--output={tmp_path / 'my models'}"]) == 0
    )
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["exported"].endswith("/1 (for TensorFlow Serving 2.12 or later)")
    words = shlex.split(lines["serve"])
    outside, inside = words[words.index("-v") + 1].split(":")
    named = [word.partition("=")[2] for word in words if word.startswith("--") and "=" in word]
    assert len(named) == 2
    for path in named:
        assert pathlib.Path(path.replace(inside, outside)).is_file()


def test_the_card_tells_where_it_came_from(exported):
    noted = json.loads((exported.path / "assets.extra" / "tfvmf.json").read_text())
    assert noted["calibration"] == {
        "source": "digits (train)", "images": 400, "ranks": 300, "alpha": 0.05
    }  # fmt: skip
    chosen = ("method", "step", "image_size", "dimension", "features")
    assert [noted[key] for key in chosen] == ["simclr_vmf", 7, 16, 8, 32]


def test_calibration_on_images_from_elsewhere(exported, rng, tmp_path):
    images = rng.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    source = f"folder:{tmp_path}"
    path = serving.export_model(exported.workdir, tmp_path / "models", calibrate_on=source)
    noted = serving.read_card(path)["calibration"]
    assert noted == {"source": f"{source} (all)", "images": 40, "ranks": 30, "alpha": 0.05}
    ours, theirs = (serving.load(place).embed(images) for place in (exported.path, path))
    np.testing.assert_allclose(ours["familiarity"], theirs["familiarity"], atol=1e-3)
    assert ours["confidence"].mean() < 0.05 < 0.3 < theirs["confidence"].mean()


@pytest.mark.parametrize(
    ("split", "use", "count"), [("test", "test", "400"), ("train", "training", "997")]
)
def test_calibration_on_training_or_test_images_is_refused(exported, tmp_path, split, use, count):
    with pytest.raises(UserError, match=f"of its {count} images are {use} images"):
        serving.export_model(exported.workdir, tmp_path, calibrate_on=split)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("calibrate_on", "data", "found"),
    [
        ("", "", ("", "digits")),
        ("test", "", ("test", "digits")),
        ("train[:45000]", "", ("train[:45000]", "digits")),
        ("folder:/x", "", ("all", "folder:/x")),
        ("mnist", "", ("all", "mnist")),
        ("digits", "", ("test", "digits")),  # of what it was trained on: not the training images
        ("", "npz:/x.npz", ("all", "npz:/x.npz")),
        ("test", "mnist", ("test", "mnist")),
    ],
)
def test_what_is_calibrated_on(calibrate_on, data, found):
    assert serving.calibration_data(default_config(), calibrate_on, data) == found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 1.5}, "alpha=1.5: expected a share"),
        ({"alpha": float("nan")}, "alpha="),
        ({"checkpoint": "/no/such/step-9"}, "/no/such/step-9"),
        ({"calibrate_on": "holidays"}, "holidays"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(exported, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        serving.export_model(exported.workdir, tmp_path / "models", **changes)
    assert not (tmp_path / "models").exists()


def test_what_cannot_be_served_is_refused(exported, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="output="):
        serving.export_model(exported.workdir, tmp_path / "file")
    plain = make_run(tmp_path / "plain", method="simclr")
    with pytest.raises(UserError, match="was not calibrated"):
        serving.export_model(plain, tmp_path / "models", alpha=0.1)
    other = make_run(tmp_path / "other", **{"model.dimension": 5})
    with pytest.raises(UserError, match="from another run"):
        serving.export_model(
            plain, tmp_path / "models", checkpoint=str(other / "checkpoints" / "step-7")
        )


def test_diverged_weights_are_refused(exported, tmp_path):
    _, method, _ = training.load_method(exported.workdir)
    method.encoder.variables[0].assign(np.full(method.encoder.variables[0].shape, np.nan))
    # Written past tfvmf, which would refuse to save it.
    state = tf.train.Checkpoint(optimizer=keras.optimizers.SGD(), **method.models)
    path = state.write(str(tmp_path / "step-7"))
    with pytest.raises(UserError, match="diverged"):
        serving.export_model(exported.workdir, tmp_path / "models", checkpoint=path)
    assert not (tmp_path / "models").exists()


def test_the_probe_is_served_if_asked_for(exported, digits, tmp_path):
    with pytest.raises(UserError, match=r"with_probe=True: .* has no probe: run `tfvmf evaluate"):
        serving.export_model(exported.workdir, tmp_path / "none", with_probe=True)
    workdir = tmp_path / "run"
    shutil.copytree(exported.workdir, workdir)
    evaluation.probe(evaluation.subject_from_run(workdir), max_images=50)
    assert (
        programs.main(["export", str(workdir), f"--output={tmp_path / 'models'}", "--with_probe"])
        == 0
    )
    path = tmp_path / "models" / "1"
    classes = serving.read_card(path)["classes"]
    assert classes["names"] == list("0123456789")
    assert classes["calibration"] == "400 images of digits (train)"
    probe = posthoc.load_probe(workdir)
    expected = probe.predict(exported.expected(digits[:40])["features"]).astype(str)
    signatures = tf.saved_model.load(str(path)).signatures
    for outputs in (
        signatures["serving_default"](images=digits[:40]),
        signatures["serving_bytes"](image_bytes=[png(image) for image in digits[:40]]),
    ):
        assert [name.decode() for name in outputs["class"].numpy()] == expected.tolist()
    for model in (serving.load(path), serving.load(workdir)):
        outputs = model.embed(digits[:40])
        assert outputs["class"].tolist() == expected.tolist()
        assert outputs["class_probability"].max() <= 1.0
        assert model.card["classes"] == classes
    assert serving.read_card(exported.path)["classes"] is None
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(3):
        Image.fromarray(digits[number]).save(folder / f"{number}.png")
    (folder / "broken.png").write_text("no image")
    for kind in (".parquet", ".npz", ".csv"):
        embedding.embed(path, folder, tmp_path / f"out{kind}")
        table = embedding.read_table(tmp_path / f"out{kind}")
        assert table["class"].tolist() == [*expected[:3], ""]
        np.testing.assert_allclose(
            table["class_probability"], [*outputs["class_probability"][:3], np.nan], rtol=1e-3
        )


def test_a_probe_of_another_step_is_refused(exported, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(exported.workdir, workdir)
    evaluation.probe(evaluation.subject_from_run(workdir), max_images=50)
    probe = posthoc.load_probe(workdir)
    dataclasses.replace(probe, step=3).save(workdir)
    with pytest.raises(UserError, match="is of step 3, not of step 7"):
        serving.export_model(workdir, tmp_path / "models", with_probe=True)
    assert "class" not in serving.load(workdir).embed(np.zeros((1, 16, 16, 3), np.uint8))
