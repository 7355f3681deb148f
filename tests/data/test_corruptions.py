import colorsys
import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from tfvmf.data import corruptions
from tfvmf.data.corruptions import corrupt, filters, weather
from tfvmf.errors import UserError

DETERMINISTIC = (
    "brightness",
    "contrast",
    "defocus_blur",
    "gaussian_blur",
    "jpeg_compression",
    "pixelate",
    "saturate",
    "zoom_blur",
)
# Mean absolute difference from the clean image that the published CIFAR-10-C program makes on the
# first 1,000 CIFAR-10 test images, severities 1 to 5.
PUBLISHED = {
    "brightness": (10.03, 20.3, 30.1, 39.35, 55.87),
    "contrast": (10.68, 21.35, 25.62, 29.89, 36.29),
    "defocus_blur": (1.38, 3.32, 5.0, 6.51, 9.28),
    "elastic_transform": (21.9, 19.81, 17.91, 16.32, 13.63),
    "fog": (10.83, 21.38, 27.66, 32.82, 38.95),
    "frost": (30.74, 44.84, 49.15, 44.79, 43.58),
    "gaussian_blur": (1.33, 4.9, 6.27, 7.43, 9.45),
    "gaussian_noise": (7.99, 11.9, 15.75, 17.63, 19.54),
    "glass_blur": (11.14, 11.26, 11.07, 18.08, 17.34),
    "impulse_noise": (1.27, 2.56, 3.83, 6.39, 8.93),
    "jpeg_compression": (5.32, 6.59, 7.02, 7.48, 8.09),
    "motion_blur": (7.08, 10.41, 13.07, 13.11, 15.32),
    "pixelate": (1.78, 3.4, 4.13, 6.22, 8.63),
    "saturate": (11.52, 14.89, 8.04, 20.3, 29.53),
    "snow": (10.61, 23.63, 25.26, 37.02, 51.42),
    "spatter": (1.03, 2.75, 6.83, 3.02, 5.09),
    "speckle_noise": (5.68, 9.34, 11.15, 14.68, 18.16),
    "zoom_blur": (8.75, 10.31, 12.3, 14.36, 16.33),
}
# Compression depends most on what is in the picture; these have no edges.
TOLERANCE = {"jpeg_compression": 0.25}


def natural_images(count, side=32):
    """Noise with a falling spectrum, and CIFAR-10's mean, deviation and gradient (122, 64, 15)."""
    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)) * side
    fall = (np.maximum(frequency, 1) ** -1.6 * (frequency > 0))[..., None]

    def field(channels):
        noise = np.fft.rfft2(rng.standard_normal((count, side, side, channels)), axes=(1, 2))
        smooth = np.fft.irfft2(noise * fall, (side, side), (1, 2))
        return smooth / smooth.std(axis=(1, 2, 3), keepdims=True)

    texture = 0.95 * field(1) + 0.3 * field(3)
    level = (
        122 + 33 * rng.standard_normal((count, 1, 1, 1)) + 8 * rng.standard_normal((count, 1, 1, 3))
    )
    contrast = 52 * np.exp(0.2 * rng.standard_normal((count, 1, 1, 1)))
    return np.clip(level + contrast * texture, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def images():
    return natural_images(200)


def distance(corrupted, clean):
    return np.abs(corrupted.astype(float) - clean).mean()


def agree(ours, theirs):
    """Equal up to one level, which a rounding error before truncation can cost."""
    assert np.abs(ours.astype(int) - np.asarray(theirs).astype(int)).max() <= 1


def test_names():
    assert len(corruptions.CORRUPTIONS) == 18
    assert tuple(PUBLISHED) == corruptions.CORRUPTIONS
    assert (*corruptions.CORRUPTIONS, "shot_noise") == corruptions.ALL_CORRUPTIONS
    assert corruptions.canonical_name("frosted_glass_blur") == "glass_blur"
    assert corruptions.canonical_name("elastic") == "elastic_transform"
    assert corruptions.canonical_name("Zoom Blur") == "zoom_blur"


@pytest.mark.parametrize("name", corruptions.CORRUPTIONS)
def test_as_strong_as_published(name, images, monkeypatch):
    monkeypatch.setattr(weather, "_photographs_directory", lambda: None)
    ours = [distance(corrupt(images, name, severity), images) for severity in range(1, 6)]
    np.testing.assert_allclose(ours, PUBLISHED[name], rtol=TOLERANCE.get(name, 0.15))


@pytest.mark.parametrize("name", corruptions.ALL_CORRUPTIONS)
def test_batches_and_order_do_not_matter(name, images):
    few = images[:7]
    together = corrupt(few, name, 3, seed=5)
    split = [corrupt(few[:3], name, 3, 5), corrupt(few[3:], name, 3, 5, first_index=3)]
    np.testing.assert_array_equal(together, np.concatenate(split))
    last = corrupt(few[6:], name, 3, seed=5, first_index=6)
    np.testing.assert_array_equal(together[6:], last)
    some = corrupt(few[[5, 2]], name, 3, seed=5, indices=np.array([5, 2]))
    np.testing.assert_array_equal(together[[5, 2]], some)


def test_threads_and_chunks_do_not_matter(images, monkeypatch):
    together = corrupt(images, "snow", 2)
    monkeypatch.setattr(corruptions, "_THREADS", 1)
    monkeypatch.setattr(corruptions, "_CHUNK_PIXELS", 17 * 32 * 32)
    np.testing.assert_array_equal(together, corrupt(images, "snow", 2))


@pytest.mark.parametrize("name", corruptions.ALL_CORRUPTIONS)
def test_randomness(name, images):
    same = np.repeat(images[:1], 4, axis=0)
    corrupted = corrupt(same, name, 5)
    differs = any((corrupted[0] != other).any() for other in corrupted[1:])
    assert differs == (name not in DETERMINISTIC)
    reseeded = (corrupt(same, name, 5, seed=1) != corrupted).any()
    assert reseeded == (name not in DETERMINISTIC)


@pytest.mark.parametrize("side", [8, 32, 33, 64, 96])
@pytest.mark.parametrize("name", corruptions.ALL_CORRUPTIONS)
def test_sizes(name, side):
    clean = natural_images(2, side)
    before = clean.copy()
    corrupted = corrupt(clean, name, 5)
    assert corrupted.dtype == np.uint8
    assert corrupted.shape == clean.shape
    assert (corrupted != clean).any()
    np.testing.assert_array_equal(clean, before)


@pytest.mark.parametrize("name", corruptions.ALL_CORRUPTIONS)
@pytest.mark.parametrize("level", [0, 255])
def test_black_and_white(name, level):
    flat = np.full((3, 32, 32, 3), level, np.uint8)
    for severity in (1, 3, 5):
        corrupted = corrupt(flat, name, severity)
        if name.endswith("blur") or name in ("contrast", "elastic_transform", "pixelate"):
            np.testing.assert_array_equal(corrupted, flat)
        if level == 255 and name in ("brightness", "snow"):
            assert (corrupted == 255).all()
        if level == 0 and name in ("fog", "speckle_noise", "shot_noise", "saturate"):
            assert (corrupted == 0).all()


def test_no_images():
    nothing = np.zeros((0, 32, 32, 3), np.uint8)
    for name in corruptions.ALL_CORRUPTIONS:
        assert corrupt(nothing, name, 1).shape == nothing.shape


def test_not_contiguous(images):
    view = images[:10:2, :, ::-1]
    np.testing.assert_array_equal(corrupt(view, "fog", 2), corrupt(view.copy(), "fog", 2))


@pytest.mark.parametrize("name", ["brightness", "contrast", "gaussian_noise", "fog", "zoom_blur"])
def test_severity_grows(name, images):
    strength = [distance(corrupt(images[:50], name, s), images[:50]) for s in range(1, 6)]
    assert strength == sorted(strength)


@pytest.mark.parametrize("severity", [1, 5])
def test_brightness_and_saturate_by_colorsys(severity, images):
    def by_pixel(change):
        flat = [colorsys.rgb_to_hsv(*pixel) for pixel in (clean / 255).reshape(-1, 3)]
        rgb = [colorsys.hsv_to_rgb(*change(*pixel)) for pixel in flat]
        return (np.array(rgb).reshape(clean.shape) * 255 + 1e-6).astype(np.uint8)

    clean = images[:1].copy()
    clean[0, 0, :3] = [[0, 0, 0], [90, 90, 90], [255, 0, 0]]
    offset = {1: 0.05, 5: 0.3}[severity]
    agree(
        corrupt(clean, "brightness", severity), by_pixel(lambda h, s, v: (h, s, min(v + offset, 1)))
    )
    a, b = {1: (0.3, 0), 5: (2.5, 0.2)}[severity]
    agree(corrupt(clean, "saturate", severity), by_pixel(lambda h, s, v: (h, min(a * s + b, 1), v)))


def test_contrast_keeps_the_mean(images):
    mean = images[:5].mean(axis=(1, 2), keepdims=True)
    agree(corrupt(images[:5], "contrast", 4), 0.3 * (images[:5] - mean) + mean)


def test_gaussian_blur_by_scipy(images):
    theirs = ndimage.gaussian_filter(images[:3].astype(float), (0, 1, 1, 0), mode="nearest")
    agree(corrupt(images[:3], "gaussian_blur", 5), theirs)


def test_defocus_by_scipy(images):
    # At severity 4 the disk of radius 1 is a plus sign, at 5 that of radius 1.5 a square.
    plus = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]])[None, :, :, None] / 5
    theirs = ndimage.correlate(images[:3].astype(float), plus, mode="mirror")
    agree(corrupt(images[:3], "defocus_blur", 4), theirs)
    theirs = ndimage.uniform_filter(images[:3].astype(float), (0, 3, 3, 0), mode="mirror")
    agree(corrupt(images[:3], "defocus_blur", 5), theirs)


def test_zoom_blur_by_scipy(images):
    clean = images[0].astype(float)
    total = clean.copy()
    factors = np.arange(1, 1.16, 0.01)
    for factor in factors:
        crop = int(np.ceil(32 / factor))
        top = (32 - crop) // 2
        zoomed = ndimage.zoom(
            clean[top : top + crop, top : top + crop], (factor, factor, 1), order=1
        )
        trim = (len(zoomed) - 32) // 2
        total += zoomed[trim : trim + 32, trim : trim + 32]
    agree(corrupt(images[:1], "zoom_blur", 3)[0], total / (len(factors) + 1))


def test_jpeg_by_pillow(images):
    file = io.BytesIO()
    Image.fromarray(images[4]).save(file, "JPEG", quality=40)
    np.testing.assert_array_equal(
        corrupt(images[:5], "jpeg_compression", 5)[4], np.asarray(Image.open(file))
    )


def test_pixelate_has_fewer_columns():
    stripes = np.zeros((1, 64, 64, 3), np.uint8)
    stripes[:, :, ::2] = 255
    # 64 columns of alternating black and white on 41: at least 23 neighbors become equal.
    row = corrupt(stripes, "pixelate", 5)[0, 0, :, 0].astype(int)
    assert (np.diff(row) == 0).sum() >= 23


def test_noise_on_gray():
    gray = np.full((40, 32, 32, 3), 128, np.uint8)
    for name, deviation in [
        ("gaussian_noise", 255 * 0.08),
        ("speckle_noise", 128 * 0.12),
        ("shot_noise", 255 * np.sqrt(128 / 255 / 100)),
    ]:
        noisy = corrupt(gray, name, 3).astype(float)
        assert noisy.std() == pytest.approx(deviation, rel=0.02)
        # Half a level is lost to truncation.
        assert noisy.mean() == pytest.approx(127.5, abs=0.6)
    salted = corrupt(gray, "impulse_noise", 5)
    assert (salted == 255).mean() == pytest.approx(0.035, rel=0.1)
    assert (salted == 0).mean() == pytest.approx(0.035, rel=0.1)


def test_motion_blur_is_a_line():
    point = np.zeros((2, 31, 31, 1), np.float32)
    point[:, 15, 15] = 1
    blurred = filters.motion_blur(point, 6, 2, angles=np.array([0, 90], np.float32))
    weights = np.exp(-(np.arange(13) ** 2) / 8)
    weights /= weights.sum()
    # The blur looks to the right (down at 90 degrees): the point leaves a trail to the left (up).
    np.testing.assert_allclose(blurred[0, 15, 15:2:-1, 0], weights, atol=1e-4)
    np.testing.assert_allclose(blurred[1, 15:2:-1, 15, 0], weights, atol=1e-4)
    np.testing.assert_allclose(blurred.sum(axis=(1, 2, 3)), 1, atol=1e-5)


def test_glass_blur_takes_from_upper_left_neighbors(images):
    clean = images[:4].astype(int)
    scattered = corrupt(images[:4], "glass_blur", 1).astype(int)
    np.testing.assert_array_equal(scattered[:, :2], clean[:, :2])
    here = scattered[:, 2:, 2:]
    sources = [clean[:, 2 - a : 32 - a, 2 - b : 32 - b] for a in (0, 1) for b in (0, 1)]
    taken = [(here == source).all(axis=-1) for source in sources]
    assert np.any(taken, axis=0).all()
    for source in taken:
        assert source.mean() == pytest.approx(0.25, abs=0.05)


def test_fog_lies_between_none_and_thickest(images):
    brightest = images.max(axis=(1, 2, 3), keepdims=True).astype(float)
    fade = brightest / (brightest + 255 * 1.5)
    foggy = corrupt(images, "fog", 5)
    assert (foggy >= np.floor(images * fade)).all()
    assert (foggy <= np.ceil((images + 255 * 1.5) * fade)).all()


def test_elastic_keeps_what_is_flat():
    ramp = np.zeros((8, 32, 32, 3), np.uint8)
    ramp[...] = (np.arange(32) * 8)[None, None, :, None]
    warped = corrupt(ramp, "elastic_transform", 1).astype(float)
    # An affine map of a ramp is a ramp: no curvature, away from the mirrored borders.
    curvature = np.diff(warped[:, 12:20, 12:20, 0], n=2, axis=2)
    assert np.abs(curvature).max() <= 2
    assert distance(warped, ramp) > 3


def test_spatter_distance():
    edges = np.zeros((1, 32, 32), bool)
    edges[0, [3, 20], [5, 28]] = True
    exact = ndimage.distance_transform_edt(~edges[0])
    ours = weather._distance(edges)[0]
    near = exact <= 18
    np.testing.assert_allclose(ours[near], exact[near], rtol=0.03)
    assert (ours[exact > 21] > 20).all()


def test_spatter_equalizes():
    levels = np.repeat(np.arange(4, dtype=np.uint8), 16).reshape(1, 8, 8)
    equalized = weather._equalize(levels)
    np.testing.assert_array_equal(np.unique(equalized), [0, 85, 170, 255])
    flat = np.full((1, 8, 8), 20, np.uint8)
    np.testing.assert_array_equal(weather._equalize(flat), flat)


def test_spatter_edges_of_a_square():
    levels = np.zeros((1, 16, 16), np.uint8)
    levels[0, 5:11, 5:11] = 200
    edges = weather._edges(levels)[0]
    assert edges.any()
    assert not edges[7:9, 7:9].any()
    assert not edges[:3].any()
    labeled, count = ndimage.label(edges, np.ones((3, 3)))
    assert count == 1
    assert ndimage.binary_fill_holes(labeled > 0)[8, 8]


def test_spatter_without_a_drop_stays_dry():
    assert (weather._water(np.zeros((2, 16, 16), np.uint8)) == 0).all()


def test_made_textures_have_the_statistics_of_photographs(monkeypatch):
    monkeypatch.setattr(weather, "_photographs_directory", lambda: None)
    assert weather.frost_source() == "procedural ice texture"
    for texture, facts in zip(weather.textures(32), weather._STATISTICS, strict=True):
        color, deviation, gradient = facts
        np.testing.assert_allclose(texture.mean(axis=(0, 1)), color, atol=6)
        assert texture.mean(axis=-1).std() == pytest.approx(deviation, rel=0.15)
        assert np.abs(np.diff(texture.astype(float), axis=0)).mean() == pytest.approx(
            gradient, rel=0.15
        )


def test_photographs_are_found_without_importing(tmp_path, monkeypatch):
    package = tmp_path / "imagecorruptions"
    (package / "frost").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('needs OpenCV')")
    picture = np.zeros((310, 310, 3), np.uint8)
    picture[2::5, 2::5] = 200
    for name in weather._PHOTOGRAPHS:
        Image.fromarray(picture).save(package / "frost" / name, quality=100)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imagecorruptions", raising=False)
    assert weather.frost_source() == "photographs of the imagecorruptions package"
    first, *_ = weather.textures(32)
    assert first.shape == (62, 62, 3)
    assert (first == 200).all()
    # Too small for larger images: continued.
    assert min(weather.textures(96)[0].shape[:2]) > 96
    black = np.zeros((2, 32, 32, 3), np.uint8)
    np.testing.assert_allclose(corrupt(black, "frost", 1)[:, :, :, 0].max(), 40, atol=2)


@pytest.mark.parametrize("severity", [0, 6, -1, 2.5, True, "3"])
def test_wrong_severity(severity, images):
    with pytest.raises(UserError, match="from 1 to 5"):
        corrupt(images, "fog", severity)


def test_unknown_name(images):
    with pytest.raises(UserError, match="did you mean gaussian_noise"):
        corrupt(images, "gausian_noise", 1)
    with pytest.raises(UserError, match="known are brightness, contrast"):
        corrupt(images, "qqqq", 1)


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (np.zeros((2, 32, 32, 3), np.float32), "float32"),
        (np.zeros((32, 32, 3), np.uint8), r"\[32, 32, 3\]"),
        (np.zeros((2, 32, 32, 1), np.uint8), r"\[2, 32, 32, 1\]"),
        (np.zeros((2, 32, 48, 3), np.uint8), r"\[2, 32, 48, 3\]"),
        (np.zeros((2, 4, 4, 3), np.uint8), r"\[2, 4, 4, 3\]"),
        ([[1, 2], [3, 4]], "list"),
    ],
)
def test_wrong_images(bad, what):
    with pytest.raises(UserError, match=what):
        corrupt(bad, "fog", 1)


def test_does_not_need_tensorflow():
    program = """
import sys
import tfvmf.data.corruptions.corrupted
assert not {"tensorflow", "keras", "cv2"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
