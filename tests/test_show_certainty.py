"""examples/show_certainty.py: its images, its table and its picture, from invented outputs."""

import importlib.util
import pathlib

import matplotlib.image
import numpy as np
import pytest

PATH = pathlib.Path(__file__).parents[1] / "examples" / "show_certainty.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("show_certainty", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_images_are_stratified_and_small(example):
    assert example.IMAGES.stat().st_size <= 1_200_000
    with np.load(example.IMAGES, allow_pickle=False) as archive:
        assert archive["images"].shape == (300, 32, 32, 3)
        assert np.bincount(archive["labels"]).tolist() == [30] * 10
        assert len(set(archive["rows"])) == 300


@pytest.mark.parametrize("calibrated", [False, True])
def test_table_and_picture(example, calibrated, rng, tmp_path):
    images = {
        name: rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
        for name in ("clean", "fog 3", "fog 5", *example.FOREIGN)
    }
    labels = np.array(["cat", "dog", "frog"] * 4)
    found = {}
    for name in images:
        kappa = rng.random(12).astype(np.float32)
        found[name] = {"concentration": kappa}
        if calibrated:
            confidence = rng.random(12)
            found[name] |= {"familiarity": 1 - kappa, "confidence": confidence}
            found[name]["accept"] = confidence > 0.3
            found[name]["class"] = rng.permutation(labels)
    table = example.table(found, labels)
    clean, last = (example.certainty(found[name]) for name in ("clean", "fog 5"))
    _, _, familiarity, accepted, auroc, *accuracy = table.rows[2]
    assert auroc == pytest.approx((clean[:, None] > last).mean())
    assert table.rows[0][4] is None
    assert table.rows[-1][5:] == [None, None]
    assert (accepted is None, familiarity is None) == (not calibrated, not calibrated)
    if calibrated:
        assert accepted == pytest.approx((last > 0.3).mean())
        right = found["fog 5"]["class"] == labels
        assert accuracy == pytest.approx([right.mean(), right[last > 0.3].mean()])
        first, second = example.summary(found, labels)
        assert f"accepted: {(clean > 0.3).mean():.0%} of the clean" in first
        assert f"{(last > 0.3).mean():.0%} of those with the strongest" in first
        assert "of the accepted images" in second
    else:
        assert example.summary(found, labels) == []
    example.draw(images, found, tmp_path / "picture.png")
    assert matplotlib.image.imread(tmp_path / "picture.png").std() > 0.01


def test_the_groups_are_images_of_their_kind(example):
    clean, labels = example.read_images()
    found = example.groups(clean[:20])
    assert next(iter(found)) == "clean"
    assert list(found)[-4:] == list(example.FOREIGN)
    assert set(labels) == set(example.CLASSES)
    for name, images in found.items():
        assert (len(images), images.dtype, images.shape[3]) == (20, np.uint8, 3)
        assert len(np.unique(images.reshape(20, -1), axis=0)) == 20, name
