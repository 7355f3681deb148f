"""The study of concentration heads judges what it says, and its shifts damage more and more."""

import numpy as np
import pytest
from scipy import ndimage

from studies.kappa import shifts, study
from studies.kappa.views import KINDS
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES

ROW = study.Row("all", ("crop",), steps=200)


@pytest.fixture(scope="module")
def vectors():
    """Images whose first level *is* the cosine of their direction with the image's own."""
    rng = np.random.default_rng(0)

    def at(cosine):
        angle = np.arccos(cosine)
        direction = np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)
        return {"mean_direction": direction, "levels": cosine[..., None].astype(np.float32)}

    found = {"train_view0": at(np.ones(400)), "train_view1": at(rng.uniform(0.97, 1, 400))}
    found |= {f"train_{kind}": at(rng.uniform(0.2, 1, 400)) for kind in KINDS}
    for group, names in (("validation", shifts.SHIFTS), ("suite", CORRUPTIONS)):
        found[f"{group}_clean"] = at(rng.uniform(0.9, 1, 50))
        for name in names:
            middle = np.linspace(0.8, 0.3, 5)[:, None]
            found[f"{group}_{name}"] = at(middle + rng.uniform(-0.1, 0.1, (5, 50)))
    found["validation_view"] = at(np.ones(50))
    found["foreign_cifar100"] = at(rng.uniform(0.2, 0.5, 50))
    found["foreign_mnist"] = at(rng.uniform(0.9, 1, 50))
    return found


def test_a_head_that_sees_the_cosine_gets_full_marks(vectors):
    head = study.fit_row(ROW, 0, vectors)
    found = study.judge(ROW, head, vectors)
    assert found["lower, least"] > 0.95
    assert found["truth"] > 0.98
    assert found["falls, suite"] == found["falls, validation"] == pytest.approx(-1.0)
    assert -0.99 < found["images, suite"] < -0.9
    assert found["CIFAR-100"] == 1.0
    assert found["error"] < 0.1
    assert {*shifts.SHIFTS, *CORRUPTIONS} < set(found)


def test_a_head_that_sees_nothing_gets_none(vectors):
    blind = {
        name: value | {"levels": np.random.default_rng(1).normal(size=value["levels"].shape)}
        for name, value in vectors.items()
    }
    found = study.judge(ROW, study.fit_row(ROW, 0, vectors), blind)
    assert found["lower, mean"] == pytest.approx(0.5, abs=0.1)
    assert abs(found["truth"]) < 0.2
    assert abs(found["images, suite"]) < 0.2
    assert found["error"] > 0.2


@pytest.mark.parametrize("name", shifts.SHIFTS)
def test_shifts_damage_more_and_more(name):
    noise = np.random.default_rng(0).uniform(0, 255, (20, 32, 32, 3))
    smooth = ndimage.gaussian_filter(noise, (0, 2, 2, 0))
    images = np.interp(smooth, (smooth.min(), smooth.max()), (0, 255)).astype(np.uint8)
    damaged = [shifts.SHIFTS[name](images, severity) for severity in SEVERITIES]
    assert all(each.shape == images.shape and each.dtype == np.uint8 for each in damaged)
    distances = [np.abs(each.astype(float) - images).mean() for each in damaged]
    assert distances[0] > 0
    assert distances[-1] > distances[0]
