import io

import numpy as np
import pytest
from PIL import Image

import tfvmf
from tfvmf import serving
from tfvmf.data.images import resize_image
from tfvmf.errors import UserError
from tfvmf.serving import sheet


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
    assert model.path == exported.path
    assert tfvmf.load(str(exported.path)).path == exported.path
    assert model.image_size == 16
    assert model.facts["step"] == 7


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
    with pytest.raises(UserError, match="holds no exported model"):
        tfvmf.load(tmp_path)
    with pytest.raises(UserError, match="holds no exported model"):
        tfvmf.load(tmp_path / "nowhere")
    (tmp_path / "1").mkdir()
    with pytest.raises(UserError, match="bin/export"):
        tfvmf.load(tmp_path)
    notes = tmp_path / "1" / "assets.extra" / "tfvmf.json"
    notes.parent.mkdir()
    notes.write_bytes((exported.path / "assets.extra" / "tfvmf.json").read_bytes())
    (tmp_path / "1" / "saved_model.pb").write_text("damaged")
    with pytest.raises(UserError, match="cannot be loaded"):
        tfvmf.load(tmp_path)


def test_a_folder_becomes_a_file_and_a_sheet(exported, digits, folder, tmp_path):
    output = tmp_path / "out.npz"
    returned = serving.embed_folder(exported.directory, folder, output, sort="kappa", batch_size=5)
    with np.load(output, allow_pickle=False) as written:
        names = [f"{number:02}.png" for number in range(11)]
        assert list(written["names"]) == [*names, "below/grün.webp"]
        for name, value in returned.items():
            np.testing.assert_array_equal(written[name], value)
        expected = exported.expected(digits[:11])
        np.testing.assert_allclose(
            written["mean_direction"][:11], expected["mean_direction"], atol=1e-4
        )
        assert written["concentration"].shape == (12,)
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size == (10 * 100 + 4, 2 * 114 + 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npz", "out.png", "pictures"]


def test_the_sheet_goes_from_the_least_to_the_most_certain(tmp_path):
    paths = []
    for level in range(0, 250, 10):
        paths.append(str(tmp_path / f"{level}.png"))
        Image.new("RGB", (8, 8), (level, level, level)).save(paths[-1])
    kappa = np.random.default_rng(0).permutation(len(paths)).astype(np.float32)
    order = sheet.draw_sheet(paths, kappa, output=tmp_path / "sheet.png")
    np.testing.assert_array_equal(kappa[order], np.arange(25))
    with Image.open(tmp_path / "sheet.png") as picture:
        for place, index in enumerate(order):  # ten in a row
            corner = (4 + place % 10 * 100, 4 + place // 10 * 114)
            assert picture.getpixel(corner) == (index * 10,) * 3


def test_of_many_images_the_sheet_shows_both_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "LIMIT", 4)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    kappa = np.arange(50, dtype=np.float32)[::-1]
    order = sheet.draw_sheet([str(tmp_path / "a.png")] * 50, kappa, output=tmp_path / "sheet.png")
    assert [kappa[index] for index in order] == [0, 16, 33, 49]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": "/no/such/folder"}, "--images"),
        ({"output": "out.txt"}, "--output"),
        ({"output": "/no/such/folder/out.npz"}, "--output"),
        ({"model": "/no/such/model"}, "/no/such/model"),
    ],
)
def test_mistakes_are_named(exported, folder, tmp_path, changes, message):
    arguments = {"model": exported.directory, "images": folder, "output": tmp_path / "out.npz"}
    with pytest.raises(UserError, match=message):
        serving.embed_folder(**{**arguments, **changes})
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no images"):
        serving.embed_folder(exported.directory, tmp_path / "empty", tmp_path / "out.npz")


def test_a_broken_file_is_named_and_nothing_is_written(exported, folder, tmp_path):
    (folder / "05.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(UserError, match=r"05\.png"):
        serving.embed_folder(exported.directory, folder, tmp_path / "out.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]
