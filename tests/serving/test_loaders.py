"""The contract as loaders see it that are not ours."""

import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import openvino
import pytest
import tensorflow as tf

FLOATS = ("mean_direction", "concentration", "features")

FRESH = """
import sys
sys.modules["tfvmf"] = None
try:
    import tfvmf
    sys.exit("tfvmf can be imported")
except ImportError:
    pass
import numpy as np
import tensorflow as tf
inputs, outputs = sys.argv[2:]
served = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
answers = served(images=tf.constant(np.load(inputs)))
np.savez(outputs, **{name: value.numpy() for name, value in answers.items()})
"""

FUZZ = """
import io, struct, sys, zlib
sys.modules["tfvmf"] = None
import numpy as np
import tensorflow as tf
from PIL import Image
rng = np.random.default_rng(0)
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_bytes"]
exif = Image.Exif()
exif[0x010F], exif[0x0112] = "maker", 6
picture = Image.fromarray(rng.integers(0, 256, (24, 40, 4), dtype=np.uint8), "RGBA")
seeds = []
for mode, kind, options in (
    ("RGB", "JPEG", {"exif": exif}), ("L", "JPEG", {}), ("CMYK", "JPEG", {}),
    ("RGB", "JPEG", {"progressive": True}), ("RGBA", "PNG", {}), ("P", "PNG", {}),
    ("1", "PNG", {}), ("LA", "PNG", {}), ("RGB", "PNG", {}),
):
    file = io.BytesIO()
    picture.convert(mode).save(file, kind, **options)
    seeds.append(file.getvalue())

def fuzzed(number):
    data = bytearray(seeds[number % len(seeds)])
    way = rng.integers(6)
    if way == 0:
        return rng.bytes(rng.integers(200))
    if way == 1:  # a right beginning and nonsense
        return bytes(data[: rng.integers(30)]) + rng.bytes(rng.integers(200))
    if way == 2:
        return bytes(data[: rng.integers(len(data))])
    if way == 3 and data[:4] == b"\\x89PNG":  # another header, with its right checksum
        fields = rng.choice([0, 1, 2, 40, 24, 4000, 70000, 2**31 - 1, 2**32 - 1], 2)
        kind = rng.choice([0, 1, 2, 3, 4, 6, 8, 16], 5).astype(np.uint8)
        head = struct.pack(">II", *fields.tolist()) + kind.tobytes()
        data[16:33] = head + struct.pack(">I", zlib.crc32(b"IHDR" + head))
        return bytes(data)
    area = 64 if way < 5 else len(data)
    for place in rng.integers(2, area, rng.integers(1, 12)):
        data[place] = rng.integers(256)
    return bytes(data)

refused = 0
for start in range(0, 10_000, 50):
    batch = [fuzzed(start + i) for i in range(50)]
    try:
        outputs = serve(image_bytes=tf.constant(batch))
    except tf.errors.InvalidArgumentError as error:
        assert "image " in error.message, error.message
        refused += 1
good = 0
for number in range(300):  # one by one: what is accepted is finite
    try:
        outputs = serve(image_bytes=tf.constant([fuzzed(number)]))
    except tf.errors.InvalidArgumentError as error:
        assert "image 0 is" in error.message, error.message
        continue
    good += 1
    assert all(np.isfinite(value).all() for value in outputs.values())
assert serve(image_bytes=tf.constant(seeds))["concentration"].shape == len(seeds)
print("refused", refused, "good", good)
"""


def python(script, *arguments, cwd):
    """Runs a script in a new process that sees neither the checkout nor our environment."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, "-I", "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )


def assert_equal_to_training(outputs, expected):
    for name in FLOATS:
        np.testing.assert_allclose(outputs[name], expected[name], rtol=1e-4, atol=1e-4)


def test_tensorflow_in_a_fresh_process_without_tfvmf(exported, digits, tmp_path):
    np.save(tmp_path / "images.npy", digits[:9])
    done = python(FRESH, exported.path, tmp_path / "images.npy", tmp_path / "out.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_equal_to_training(np.load(tmp_path / "out.npz"), exported.expected(digits[:9]))


@pytest.mark.slow
def test_ten_thousand_fuzzed_byte_strings_do_not_crash_the_process(exported, tmp_path):
    done = python(FUZZ, exported.path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    words = done.stdout.split()
    assert int(words[1]) > 150  # of 200 batches
    assert 0 < int(words[3]) < 300


def test_a_session_with_tag_serve_as_tensorflow_serving_runs_it(exported, digits):
    expected = exported.expected(digits[:9])
    files = [tf.io.encode_png(image).numpy() for image in digits[:9]]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(exported.path))
        for name, given in (("serving_default", digits[:9]), ("serving_bytes", files)):
            signature = meta.signature_def[name]
            assert signature.method_name == "tensorflow/serving/predict"
            (entry,) = signature.inputs.values()
            outputs = session.run(
                {key: value.name for key, value in signature.outputs.items()}, {entry.name: given}
            )
            assert_equal_to_training(outputs, expected)
            assert outputs["accept"].dtype == bool
        with pytest.raises(tf.errors.InvalidArgumentError, match="image 0 is neither"):
            session.run(
                [value.name for value in signature.outputs.values()], {entry.name: [b"no image"]}
            )


def test_saved_model_cli_shows_the_contract(exported, tmp_path):
    program = pathlib.Path(sys.executable).parent / "saved_model_cli"
    done = subprocess.run(
        [program, "show", "--dir", exported.path, "--tag_set", "serve", "--all"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    for line in (
        "signature_def['serving_default']:",
        "signature_def['serving_bytes']:",
        "inputs['images'] tensor_info: dtype: DT_UINT8 shape: (-1, -1, -1, 3)",
        "inputs['image_bytes'] tensor_info: dtype: DT_STRING shape: (-1)",
        "outputs['mean_direction'] tensor_info: dtype: DT_FLOAT shape: (-1, 8)",
        "outputs['features'] tensor_info: dtype: DT_FLOAT shape: (-1, 32)",
        "outputs['concentration'] tensor_info: dtype: DT_FLOAT shape: (-1)",
        "outputs['familiarity'] tensor_info: dtype: DT_FLOAT shape: (-1)",
        "outputs['confidence'] tensor_info: dtype: DT_FLOAT shape: (-1)",
        "outputs['accept'] tensor_info: dtype: DT_BOOL shape: (-1)",
    ):
        assert line in shown


def test_openvino_reads_the_saved_model_itself(exported, digits, photographs):
    compiled = openvino.Core().compile_model(
        str(exported.path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    assert_equal_to_training(compiled(digits[:9]), exported.expected(digits[:9]))
    served = tf.saved_model.load(str(exported.path)).signatures["serving_default"]
    for images in (digits[:9], photographs):  # resized in its own graph
        ours, theirs = served(images=images), compiled(images)
        assert_equal_to_training(theirs, ours)
        np.testing.assert_allclose(theirs["familiarity"], ours["familiarity"], atol=1e-3)
        # A share of 200 images: where a score is that of one of them, the last bit decides.
        np.testing.assert_allclose(theirs["confidence"], ours["confidence"], atol=3.01 / 200)
        accept = ours["confidence"].numpy() > np.float32(0.05)
        np.testing.assert_array_equal(ours["accept"], accept)
        assert theirs["accept"].dtype == bool


def test_keras_loads_the_encoder(exported, digits):
    encoder = keras.models.load_model(exported.path / "assets.extra" / "encoder.keras")
    outputs = encoder(digits[:9] / np.float32(255), training=False)
    assert_equal_to_training(outputs, exported.expected(digits[:9]))
