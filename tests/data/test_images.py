import io
import os
import struct
import threading
import time
import warnings

import numpy as np
import pytest
from PIL import Image

from tfvmf.data import images
from tfvmf.data.images import read_image, read_images, resize_image
from tfvmf.errors import UserError


def encode(image, file_format="PNG", **options):
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


@pytest.fixture
def pixels(rng):
    return rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "TIFF"])
def test_lossless_formats_at_the_right_size_come_back_bit_by_bit(pixels, file_format):
    image = read_image(encode(pixels, file_format), 16)
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, pixels)


def test_reads_a_path_as_it_reads_bytes(pixels, tmp_path):
    (tmp_path / "a.png").write_bytes(encode(pixels))
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", 16), pixels)
    np.testing.assert_array_equal(read_image(str(tmp_path / "a.png"), 16), pixels)


def test_gray_becomes_three_equal_channels(pixels):
    gray = pixels[..., 0]
    np.testing.assert_array_equal(read_image(encode(gray), 16), gray[..., None].repeat(3, -1))


def test_one_bit_and_palette(pixels):
    bits = Image.fromarray(pixels[..., 0]).convert("1")
    expected = np.where(np.asarray(bits), 255, 0)[..., None].repeat(3, -1)
    np.testing.assert_array_equal(read_image(encode(bits), 16), expected)
    palette = Image.fromarray(pixels // 128 * 255).convert("P", palette=Image.Palette.ADAPTIVE)
    np.testing.assert_array_equal(read_image(encode(palette), 16), pixels // 128 * 255)


def test_sixteen_bits_are_scaled_and_not_clipped():
    gray = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    for file_format in ("PNG", "TIFF"):
        image = read_image(encode(gray, file_format), 16)
        np.testing.assert_allclose(image[..., 0], gray / 257, atol=0.51)
    assert read_image(encode(np.zeros((16, 16), np.uint16)), 16).max() == 0


def test_float_pixels_from_0_to_1_are_read_and_others_refused():
    ramp = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
    np.testing.assert_allclose(read_image(encode(ramp, "TIFF"), 16)[..., 0], ramp * 255, atol=0.51)
    for wrong in (ramp * 2, ramp - 1, np.full((16, 16), np.nan, np.float32)):
        with pytest.raises(UserError, match="between 0 and 1"):
            read_image(encode(wrong, "TIFF"), 16)


def test_transparency_is_laid_on_white(pixels):
    alpha = np.zeros((16, 16, 1), np.uint8)
    alpha[8:] = 255
    alpha[4:8] = 102
    image = read_image(encode(np.concatenate([pixels, alpha], -1)), 16)
    np.testing.assert_array_equal(image[:4], 255)
    np.testing.assert_array_equal(image[8:], pixels[8:])
    np.testing.assert_allclose(image[4:8], 0.4 * pixels[4:8] + 0.6 * 255, atol=1)
    gray_alpha = np.concatenate([pixels[..., :1], alpha], -1)
    assert (read_image(encode(Image.fromarray(gray_alpha, "LA")), 16)[:4] == 255).all()


def test_transparent_color_of_a_palette_is_white():
    image = Image.new("P", (16, 16), 0)
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.paste(1, (0, 8, 16, 16))
    got = read_image(encode(image, "GIF", transparency=0), 16)
    assert (got[:8] == 255).all()
    assert (got[8:] == [40, 50, 60]).all()


def test_cmyk():
    image = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    got = read_image(encode(image, "JPEG", quality=95), 16).astype(int)
    assert np.abs(got - [0, 255, 255]).max() < 8


def test_first_frame_of_an_animation():
    frames = [Image.new("RGB", (16, 16), color) for color in ("red", "lime", "blue")]
    for file_format in ("GIF", "PNG", "WEBP"):
        data = encode(frames[0], file_format, save_all=True, append_images=frames[1:])
        got = read_image(data, 16).astype(int)
        assert np.abs(got - [255, 0, 0]).max() < 8, file_format


def test_exif_orientation_is_honoured():
    upright = np.zeros((16, 16, 3), np.uint8)
    upright[:8] = 255  # white above
    turned = {3: upright[::-1, ::-1], 6: np.rot90(upright), 8: np.rot90(upright, -1)}
    for orientation, stored in turned.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encode(np.ascontiguousarray(stored), "PNG", exif=exif)
        np.testing.assert_array_equal(read_image(data, 16), upright)


def test_center_of_a_wide_or_tall_image_is_kept():
    wide = np.zeros((16, 48, 3), np.uint8)
    wide[:, 16:32] = 200
    assert (read_image(encode(wide), 16) == 200).all()
    assert (read_image(encode(wide.transpose(1, 0, 2).copy()), 16) == 200).all()


def test_shrinking_averages_and_does_not_alias():
    checks = np.indices((256, 256)).sum(0) % 2 * 255
    image = read_image(encode(checks.astype(np.uint8)), 16)
    assert np.abs(image.astype(int) - 127.5).max() < 3


def test_large_jpeg_decoded_at_a_fraction_looks_like_the_whole(rng):
    coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    large = Image.fromarray(coarse).resize((1024, 1024), Image.Resampling.BICUBIC)
    small = read_image(encode(large, "JPEG", quality=95), 32).astype(int)
    expected = np.asarray(large.resize((32, 32), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(small - expected).max() < 12


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (3, 2)])
def test_tiny_and_thin_images_of_one_color_stay_of_one_color(shape):
    image = read_image(encode(np.full((*shape, 3), 77, np.uint8)), 32)
    assert image.shape == (32, 32, 3)
    assert (image == 77).all()


@pytest.mark.parametrize("data", [b"", b"no image", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0"])
def test_garbage_is_refused_by_name(data):
    with pytest.raises(UserError, match=r"holiday: (not an|broken) image") as error:
        read_image(data, 16, name="holiday")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_cut_off_files_are_refused(rng, file_format):
    data = encode(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8), file_format)
    with pytest.raises(UserError):
        read_image(data[: len(data) // 2], 16)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])
def test_more_than_max_pixels_are_refused_before_they_are_decoded(pixels, file_format, monkeypatch):
    data = encode(pixels, file_format)
    assert read_image(data, 16, max_pixels=256).shape == (16, 16, 3)
    monkeypatch.setattr(Image.Image, "load", None)
    with pytest.raises(UserError, match=r"16 x 16 pixels, more than max_pixels=255"):
        read_image(data, 16, max_pixels=255)


def test_the_limit_of_pixels_is_ours_and_pillow_does_not_warn(pixels, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(read_image(encode(pixels), 16), pixels)


def test_other_formats_are_not_opened_whatever_they_are_called(pixels, tmp_path, monkeypatch):
    # Pillow gives EPS to Ghostscript; an endless program would be waited for for ever.
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "gs").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "gs").chmod(0o755)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n{ } loop\n%%EOF\n"
    for other in (eps, encode(pixels, "PPM"), encode(pixels, "ICO"), encode(pixels, "PDF")):
        (tmp_path / "a.png").write_bytes(other)
        for source in (other, tmp_path / "a.png"):
            with pytest.raises(UserError, match=r"none of JPEG, PNG, GIF, BMP, WebP, TIFF"):
                read_image(source, 16)


def test_only_regular_files_are_opened(pixels, tmp_path):
    os.mkfifo(tmp_path / "fifo.png")
    (tmp_path / "folder.png").mkdir()
    for path in (tmp_path / "fifo.png", tmp_path / "folder.png", "/dev/zero"):
        with pytest.raises(UserError, match="not a regular file"):
            read_image(path, 16)
    (tmp_path / "a.png").write_bytes(encode(pixels))
    (tmp_path / "link.png").symlink_to("a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "link.png", 16), pixels)


def test_strips_are_converted_as_the_whole(rng, monkeypatch):
    exif = Image.Exif()
    exif[0x0112] = 6
    rgba = Image.fromarray(rng.integers(0, 256, (61, 83, 4), dtype=np.uint8))
    files = [
        encode(rgba, exif=exif),
        encode(rgba.convert("LA")),
        encode(rgba.convert("P"), "GIF", transparency=3),
        encode(rgba.convert("CMYK"), "TIFF"),
        encode(rgba.convert("1")),
        encode(rng.integers(0, 65536, (61, 83), dtype=np.uint16)),
        encode(rng.random((61, 83), np.float32), "TIFF"),
    ]
    whole = read_images(files, 24)
    monkeypatch.setattr(images, "_STRIP", 500)
    np.testing.assert_array_equal(read_images(files, 24), whole)


def test_what_would_take_for_ever_is_refused():
    gray = Image.new("L", (512, 512), 9)
    jpeg = encode(gray, "JPEG", progressive=True)
    assert read_image(jpeg, 16, max_pixels=512**2).min() == 9
    scan = jpeg.rindex(b"\xff\xda")
    bomb = jpeg[:-2] + jpeg[scan:-2] * 40 + jpeg[-2:]
    with pytest.raises(UserError, match="too long"):
        read_image(bomb, 16, max_pixels=512**2)
    block = b"\xff\xe1" + struct.pack(">H", 9) + b"Exif\0\0a"
    with pytest.raises(UserError, match="too many parts"):
        read_image(jpeg[:2] + block * 20_000 + jpeg[2:], 16)
    palette = bytes(level for index in range(256) for level in (index, 255 - index, 0, 0))
    head = struct.pack("<IiiHHIIiiII", 40, 512, 512, 1, 8, 1, 4 * 512, 0, 0, 256, 0)
    head = b"BM" + struct.pack("<IHHI", 54 + 1024 + 2048, 0, 0, 54 + 1024) + head
    lines = head + palette + b"\1\5\0\0" * 512  # one pixel in each row, and end of line
    assert read_image(lines, 16).shape == (16, 16, 3)
    with pytest.raises(UserError, match="too long"):
        read_image(lines, 16, max_pixels=512**2)
    with pytest.raises(UserError, match="bytes"):
        read_image(jpeg + bytes(2**26), 16, max_pixels=512**2)
    with pytest.raises(UserError, match="65536 x 1 pixels"):
        read_image(encode(Image.new("L", (65536, 1))), 16)


def test_threads_share_the_memory_that_decoding_takes(rng, monkeypatch):
    budget = 3 * 8 * 512**2
    monkeypatch.setattr(images, "memory", images._Memory(budget))
    held, most, lock = 0, [], threading.Lock()
    convert = images._to_8_bits

    def counting(image):
        nonlocal held
        with lock:
            held += 8 * image.width * image.height
            most.append(held)
        time.sleep(0.01)  # so that another thread, if it may, comes here meanwhile
        with lock:
            held -= 8 * image.width * image.height
        return convert(image)

    monkeypatch.setattr(images, "_to_8_bits", counting)
    monkeypatch.setattr(images.cores, "available", lambda: 8)
    file = encode(rng.integers(0, 256, (512, 512, 3), dtype=np.uint8))
    assert read_images([file] * 16, 16).shape == (16, 16, 16, 3)
    assert max(most) == budget
    # One that wants more than there is gets all of it, alone.
    large = encode(Image.new("RGB", (2048, 1024)))
    assert read_images([large, *[file] * 4, large], 16).shape == (6, 16, 16, 3)
    with images.memory.taking(budget):
        images.memory.reset()  # as in a forked process
        with images.memory.taking(budget):
            pass


def test_many_images_keep_their_order_and_count_the_broken(rng):
    pixels = rng.integers(0, 256, (100, 16, 16, 3), dtype=np.uint8)
    files = [encode(image) for image in pixels]
    np.testing.assert_array_equal(read_images(files, 16), pixels)
    files[40] = files[70] = b"broken"
    with pytest.raises(UserError, match=r"image 40: .* \(and 1 more"):
        read_images(files, 16, names=[f"image {number}" for number in range(100)])
    assert read_images([], 16).shape == (0, 16, 16, 3)


def test_large_files_go_through_threads_in_order(rng):
    pixels = rng.integers(0, 256, (20, 64, 64, 3), dtype=np.uint8)
    np.testing.assert_array_equal(read_images([encode(image) for image in pixels], 64), pixels)


def test_resize_of_an_array_is_that_of_a_file(pixels):
    np.testing.assert_array_equal(resize_image(pixels, 40), read_image(encode(pixels), 40))
    gray = pixels[..., 0].copy()
    np.testing.assert_array_equal(resize_image(gray, 40), read_image(encode(gray), 40))
