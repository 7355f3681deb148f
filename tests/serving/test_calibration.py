import numpy as np
import pytest
import tensorflow as tf

from tfvmf.serving.signatures import QUANTILES, calibrate


@pytest.fixture
def kappas(rng):
    return rng.gamma(2.0, size=400).astype(np.float32)


def test_confidence_is_the_share_with_lower_kappa(kappas, rng):
    calibration = calibrate(kappas, reject_below=0.05, split="test")
    asked = np.concatenate([rng.gamma(2.0, size=50), kappas[:50], [0.0, 1e9]]).astype(np.float32)
    share = [(kappas < kappa).mean() for kappa in asked]
    np.testing.assert_allclose(calibration(tf.constant(asked))["confidence"], share, atol=1e-6)


def test_it_rises_with_kappa_from_0_to_1(kappas):
    asked = np.linspace(-1.0, kappas.max() * 2, 1000, dtype=np.float32)
    confidence = calibrate(kappas, reject_below=0.05, split="test")(asked)["confidence"].numpy()
    assert confidence.dtype == np.float32
    assert (np.diff(confidence) >= 0).all()
    assert (confidence[0], confidence[-1]) == (0.0, 1.0)


@pytest.mark.parametrize("reject", [0.0, 0.05, 0.25, 1.0])
def test_of_what_it_was_calibrated_on_it_rejects_that_share(kappas, reject):
    accept = calibrate(kappas, reject_below=reject, split="test")(kappas)["accept"].numpy()
    assert accept.dtype == bool
    assert (~accept).sum() == round(reject * 400)


@pytest.mark.parametrize("size", [QUANTILES, QUANTILES + 1, 12_345])
def test_many_images_become_quantiles(size, rng):
    kappas = rng.gamma(2.0, size=size).astype(np.float32)
    calibration = calibrate(kappas, reject_below=0.05, split="test")
    assert len(calibration.table) == QUANTILES
    assert calibration.images == size
    confidence = calibration(kappas[:500])["confidence"].numpy()
    share = np.array([(kappas < kappa).mean() for kappa in kappas[:500]])
    np.testing.assert_allclose(confidence, share, atol=1.0 / QUANTILES)


def test_without_images_there_are_no_answers(kappas):
    outputs = calibrate(kappas, reject_below=0.05, split="test")(tf.zeros([0]))
    assert {name: value.shape for name, value in outputs.items()} == {
        "confidence": (0,),
        "accept": (0,),
    }
