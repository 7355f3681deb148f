"""SavedModels from elsewhere are read before they are loaded: what could do harm is refused."""

import json
import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.foreign import foreign_cnn
from helpers.tiny import tiny_config
from tensorflow.core.protobuf import saved_model_pb2

import tfvmf
from tfvmf import evaluation, files, models, posthoc, serving
from tfvmf.errors import UserError
from tfvmf.models.saved_model import allowed_ops, load_saved_model, refused_ops

IMAGES = [tf.TensorSpec([None, None, None, 3], tf.float32)]


def save(path, body):
    """A SavedModel of images -> {features}, which does `body` first."""

    @tf.function(input_signature=IMAGES)
    def features(images):
        with tf.control_dependencies(body()):
            return {"features": tf.reduce_mean(images, [1, 2]) + tf.constant([0.1, 0.2, 0.3])}

    tf.saved_model.save(tf.Module(), str(path), signatures=features)
    return path


def write_file(target):
    return [tf.raw_ops.WriteFile(filename=str(target), contents="owned")]


def nested(target):
    """The same, three functions down: in a branch of a loop of a data set's function."""

    def element(number):
        def body(i):
            with tf.control_dependencies(
                [tf.cond(i > 0, lambda: tf.group(write_file(target)), tf.no_op)]
            ):
                return i + 1

        return tf.while_loop(lambda i: i < 2, body, [tf.cast(number, tf.int32)])[0]

    return [tf.data.Dataset.range(1).map(element).get_single_element()]


HOSTILE = {
    "WriteFile": write_file,
    "ReadFile": lambda target: [tf.io.read_file("/etc/hostname")],
    "MatchingFiles": lambda target: [tf.io.matching_files("/etc/*")],
    "EagerPyFunc": lambda target: [tf.py_function(lambda: 1.0, [], tf.float32)],
    "PyFunc": lambda target: [tf.numpy_function(lambda: np.float32(1), [], tf.float32)],
    "PyFuncStateless": lambda target: [
        tf.numpy_function(lambda: np.float32(1), [], tf.float32, stateful=False)
    ],
    "PrintV2": lambda target: [tf.print("owned", output_stream=f"file://{target}")],
    "TextLineDataset": lambda target: [
        tf.data.TextLineDataset("/etc/passwd").take(1).get_single_element()
    ],
    "ImmutableConst": lambda target: [
        tf.raw_ops.ImmutableConst(dtype=tf.uint8, shape=[1], memory_region_name="/etc/hostname")
    ],
    "SaveV2": lambda target: [
        tf.raw_ops.SaveV2(
            prefix=str(target), tensor_names=["x"], shape_and_slices=[""], tensors=[tf.zeros([1])]
        )
    ],
}


@pytest.mark.parametrize("op", HOSTILE)
def test_what_could_do_harm_is_named_and_not_loaded(op, tmp_path):
    path = save(tmp_path / "model", lambda: HOSTILE[op](tmp_path / "owned"))
    with pytest.raises(UserError, match=f"contains .*{op}.*--trust_model"):
        load_saved_model(path)
    assert op in refused_ops(path)
    assert not list(tmp_path.glob("owned*"))


def test_an_operation_deep_inside_is_found(tmp_path):
    path = save(tmp_path / "model", lambda: nested(tmp_path / "owned"))
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((path / "saved_model.pb").read_bytes())
    holders = [
        function.signature.name
        for function in model.meta_graphs[0].graph_def.library.function
        if any(node.op == "WriteFile" for node in function.node_def)
    ]
    assert not any("signature_wrapper" in name for name in holders)
    assert refused_ops(path) == {"WriteFile"}


def test_a_trusted_model_is_loaded_and_does_what_it_does(tmp_path):
    path = save(tmp_path / "model", lambda: write_file(tmp_path / "owned"))
    loaded = load_saved_model(path, trust_model=True)
    loaded.signatures["serving_default"](tf.zeros([1, 4, 4, 3]))
    assert (tmp_path / "owned").read_text() == "owned"


class Everything(tf.Module):
    """Variables, tables of either kind, random numbers, loops."""

    def __init__(self):
        super().__init__()
        keys = tf.lookup.KeyValueTensorInitializer([0, 1], [0.5, 0.25])
        self.table = tf.lookup.StaticHashTable(keys, 0.0)
        self.counts = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
        self.scale = tf.Variable(2.0)
        self.generator = tf.random.Generator.from_seed(1)

    @tf.function(input_signature=IMAGES)
    def __call__(self, images):
        counts = self.counts.lookup(tf.range(2, dtype=tf.int64))
        found = self.table.lookup(tf.range(2)) + tf.cast(counts, tf.float32)
        noise = self.generator.normal([2]) + tf.random.uniform([2])
        for _ in tf.range(3):
            noise = noise * self.scale
        return tf.reduce_mean(images, [1, 2])[:, :2] + found + noise


def test_what_saving_writes_is_allowed(tmp_path):
    tf.saved_model.save(Everything(), str(tmp_path / "module"))
    foreign_cnn(outputs="maps").export(tmp_path / "keras", verbose=False)
    for name in ("module", "keras"):
        assert refused_ops(tmp_path / name) == set()
        load_saved_model(tmp_path / name)


def test_functions_that_save_are_allowed_only_where_nobody_calls_them(tmp_path):
    path = save(tmp_path / "model", list)
    assert refused_ops(path) == set()
    original = (path / "saved_model.pb").read_bytes()

    def changed(change):
        model = saved_model_pb2.SavedModel()
        model.ParseFromString(original)
        graph = model.meta_graphs[0]
        library = graph.graph_def.library
        (saver,) = (f for f in library.function if "traced_save" in f.signature.name)
        (called,) = (f for f in library.function if "signature_wrapper" in f.signature.name)
        change(model, graph, saver, called)
        (path / "saved_model.pb").write_bytes(model.SerializeToString())
        return refused_ops(path)

    def call(model, graph, saver, called):
        node = called.node_def.add(name="saving", op="StatefulPartitionedCall")
        node.attr["f"].func.name = saver.signature.name

    def bind(model, graph, saver, called):
        node = graph.object_graph_def.nodes.add()
        node.function.concrete_functions.append(saver.signature.name)

    def implement(model, graph, saver, called):
        saver.attr["api_implements"].s = called.attr["api_implements"].s = b"features"

    def of_version_1(model, graph, saver, called):
        graph.ClearField("object_graph_def")

    def masked(model, graph, saver, called):
        called.node_def.add(name="write", op="WriteFile")
        model.meta_graphs[0].graph_def.library.function.add().signature.name = "WriteFile"

    for change in (call, bind, implement, of_version_1):
        assert changed(change) >= {"MergeV2Checkpoints", "SaveV2"}
    assert changed(masked) == {"WriteFile"}


def test_files_that_are_no_saved_model(tmp_path):
    with pytest.raises(UserError, match="no file saved_model"):
        load_saved_model(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(UserError, match="damaged"):
        load_saved_model(tmp_path)


def test_the_list_has_only_operations_that_there_are_and_none_of_files():
    assert all(hasattr(tf.raw_ops, name) for name in allowed_ops())
    words = ("File", "Print", "PyFunc", "Save", "Restore", "Reader", "Summary", "Rpc", "Remote")
    assert not [name for name in allowed_ops() if any(word in name for word in words)]


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory):
    """A run of somebody else's: a head for a SavedModel that has been replaced since."""
    place = tmp_path_factory.mktemp("hostile")
    config = tiny_config(**{"monitor.every_epochs": 0.0, "batch_size": 700})
    changes = {"epochs": 1, "concentration.view_kind": "augment"}
    posthoc.fit_kappa(save(place / "good", list), place / "run", config=config, changes=changes)
    shutil.rmtree(place / "run" / "encoder")
    save(place / "run" / "encoder", lambda: write_file(place / "owned"))
    stored = json.loads((place / "run" / "config.json").read_text())
    stored["config"]["fit_kappa"]["fingerprint"] = files.fingerprint(place / "run" / "encoder")
    stored["config"]["fit_kappa"]["trust_model"] = True  # it would like to
    (place / "run" / "config.json").write_text(json.dumps(stored))
    return place / "run"


def test_a_run_with_such_a_model_is_neither_evaluated_nor_exported(hostile_run, tmp_path):
    owned = hostile_run.parent / "owned"
    for use in (
        lambda: tfvmf.load(hostile_run),
        lambda: evaluation.subject_from_run(hostile_run),
        lambda: serving.export_model(hostile_run, tmp_path / "export"),
        lambda: posthoc.fit_kappa(hostile_run, tmp_path / "again"),
    ):
        with pytest.raises(UserError, match=r"contains WriteFile.*--trust_model"):
            use()
    assert not owned.exists()
    path = serving.export_model(hostile_run, tmp_path / "export", trust_model=True)
    assert owned.read_text() == "owned"
    owned.unlink()
    with pytest.raises(UserError, match="contains WriteFile"):
        tfvmf.load(path)
    assert not owned.exists()
    images = np.zeros((1, 8, 8, 3), np.uint8)
    tfvmf.load(path, trust_model=True).embed(images)
    assert owned.exists()


def test_a_keras_file_with_code_is_refused(tmp_path):
    inputs = keras.Input((8, 8, 3))
    features = keras.layers.GlobalAveragePooling2D()(inputs)
    marker = str(tmp_path / "ran")
    outputs = keras.layers.Lambda(lambda x, marker=marker: (os.mkdir(marker), x)[1])(features)
    keras.Model(inputs, outputs).save(tmp_path / "evil.keras")
    shutil.rmtree(marker, ignore_errors=True)
    with pytest.raises(UserError, match="Lambda"):
        tfvmf.load(tmp_path / "evil.keras")
    with pytest.raises(UserError, match="Lambda"):
        models.load_backbone(str(tmp_path / "evil.keras"), trust_model=True)
    assert not (tmp_path / "ran").exists()


def test_a_keras_file_cannot_bring_a_saved_model(tmp_path):
    path = save(tmp_path / "model", lambda: write_file(tmp_path / "owned"))
    inputs = keras.Input((8, 8, 3))
    outputs = keras.layers.TFSMLayer(str(path), call_endpoint="serving_default")(inputs)
    keras.Model(inputs, outputs).save(tmp_path / "evil.keras")
    (tmp_path / "owned").unlink(missing_ok=True)
    with pytest.raises(UserError, match="cannot be loaded by Keras"):
        tfvmf.load(tmp_path / "evil.keras")
    assert not (tmp_path / "owned").exists()
