"""An export in a process without Python: TensorFlow's C++ loader, called by `loader.c`."""

import io
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from helpers.pictures import huge_png
from PIL import Image
from tensorflow.core.protobuf import saved_model_pb2

COMPILER = shutil.which("cc") or shutil.which("gcc")
INVALID_ARGUMENT = 3

pytestmark = pytest.mark.skipif(not COMPILER, reason="there is no C compiler")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    place, path = pathlib.Path(tf.__file__).parent, tmp_path_factory.mktemp("c") / "loader"
    libraries = [f"-l:{found.name}" for found in sorted(place.glob("libtensorflow_*.so.2"))]
    command = [
        *(COMPILER, "-Wall", "-Werror", pathlib.Path(__file__).parent / "loader.c", "-o", path),
        *(f"-I{tf.sysconfig.get_include()}", f"-L{place}", *libraries, f"-Wl,-rpath,{place}"),
        "-ldl",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def answers(program, exported, digits, photographs_and_files, tmp_path_factory):
    """What the program answers to nine requests, one after another, in one process."""
    place = tmp_path_factory.mktemp("requests")
    photographs, files = photographs_and_files
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((exported.path / "saved_model.pb").read_bytes())
    signatures = model.meta_graphs[0].signature_def

    def tensor(info):
        return info.name.replace(":", " ")

    def request(name, kind, *sizes, paths):
        (given,) = signatures[name].inputs.values()
        outputs = [tensor(signatures[name].outputs[key]) for key in OUTPUTS]
        return " ".join(map(str, (tensor(given), kind, *sizes, *paths, len(outputs), *outputs)))

    def pixels(images, name):
        (place / name).write_bytes(images.tobytes())
        sizes = (4, *images.shape)
        return request("serving_default", "uint8", *sizes, paths=[place / name])

    for number, content in enumerate(files):
        (place / f"{number}.file").write_bytes(content)
    (place / "broken.jpg").write_bytes(files[0][: len(files[0]) // 2])
    good = [place / f"{number}.file" for number in range(len(files))]
    broken = [*good[:2], place / "broken.jpg"]
    (place / "huge.png").write_bytes(huge_png(30_000))
    requests = [
        pixels(digits[:9], "digits"),
        pixels(photographs, "photographs"),
        request("serving_bytes", "string", len(good), paths=good),
        request("serving_bytes", "string", len(broken), paths=broken),
        pixels(np.zeros((1, 0, 5, 3), np.uint8), "nothing"),
        request("serving_bytes", "string", 1, paths=[place / "huge.png"]),
        request("serving_default", "string", 1, paths=good[:1]),
        pixels(digits[:0], "none"),
        request("serving_bytes", "string", len(good), paths=good),
    ]
    done = subprocess.run(
        [program, exported.path], input="\n".join(requests), capture_output=True, text=True,
        check=False, env={"TF_CPP_MIN_LOG_LEVEL": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


OUTPUTS = ("features", "mean_direction", "concentration", "familiarity", "confidence", "accept")


@pytest.fixture(scope="module")
def photographs_and_files():
    photographs = np.random.default_rng(2).integers(0, 256, (5, 40, 60, 3), dtype=np.uint8)
    files = []
    for number, image in enumerate(photographs):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG" if number % 2 else "JPEG")
        files.append(file.getvalue())
    return photographs, files


def test_it_answers_as_pythons_loader_and_lives_on_after_a_broken_file(
    answers, exported, digits, photographs_and_files
):
    photographs, files = photographs_and_files
    signatures = tf.saved_model.load(str(exported.path)).signatures
    expected = [
        signatures["serving_default"](images=digits[:9]),
        signatures["serving_default"](images=photographs),
        signatures["serving_bytes"](image_bytes=files),
        *[None] * 4,
        signatures["serving_default"](images=digits[:0]),
        signatures["serving_bytes"](image_bytes=files),
    ]
    lines = iter(answers.splitlines())
    for outputs in expected:
        if outputs is None:
            assert re.match(f"error {INVALID_ARGUMENT} ", next(lines))
            continue
        for name in OUTPUTS:
            found = np.array(next(lines).split(), float).reshape(outputs[name].shape)
            # A confidence is a rank: the last bit of a score may move it by a few images of 200.
            tolerance = {"confidence": 3.01 / 200, "familiarity": 1e-3}.get(name, 1e-5)
            np.testing.assert_allclose(found, outputs[name], rtol=1e-5, atol=tolerance)
    assert next(lines, None) is None


def test_errors_name_the_image(answers):
    errors = [line for line in answers.splitlines() if line.startswith("error")]
    assert "image 2 is broken" in errors[0]
    assert "images without pixels" in errors[1]
    assert "image 0 is too large" in errors[2]
    assert "uint8" in errors[3]
    assert "string" in errors[3]
