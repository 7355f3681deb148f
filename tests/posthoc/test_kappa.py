import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.fitting import fit_head
from helpers.tiny import tiny_config
from helpers.untrained import make_run

from tfvmf import evaluation, posthoc, training
from tfvmf.data import Augmentation
from tfvmf.errors import UserError
from tfvmf.methods import build_method
from tfvmf.posthoc.kappa import fit_config
from tfvmf.training.inputs import image_inputs

QUICK = {"epochs": 1, "monitor.every_epochs": 0.0}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "encoder")


def outputs(workdir):
    run = evaluation.subject_from_run(workdir)
    return run, run.embed(run.test.subset(np.arange(40)))


@pytest.mark.parametrize(("levels", "views"), [("last", "augment"), ("all", "wide")])
def test_only_kappa_changes(encoder, tmp_path, levels, views):
    changes = {"concentration.levels": levels, "concentration.view_kind": views, **QUICK}
    posthoc.fit_kappa(encoder, tmp_path / "fitted", changes=changes)
    _, before = outputs(encoder)
    run, after = outputs(tmp_path / "fitted")
    for name in ("features", "mean_direction"):
        np.testing.assert_array_equal(after[name], before[name])
    assert np.abs(after["concentration"] - before["concentration"]).max() > 1e-3
    assert run.score(evaluation.Options()).name == "kappa"
    assert run.settings["fit_kappa.method"] == "simclr"


def test_a_head_learns_from_views_of_the_size_of_images(encoder):
    """Where an encoder was trained on small views, kappa is still asked about whole images."""
    config = fit_config(encoder, {"data.view_share": 0.5, **QUICK})
    assert config.data.view_share == 1.0
    _, (augmentation, _), *_ = image_inputs(config).views(build_method(config))
    assert augmentation.size == config.data.image_size == 16


def test_a_supervised_encoder_gets_a_kappa(tmp_path):
    make_run(tmp_path / "encoder", num_classes=10, method="supervised")
    changes = {"concentration.levels": "all", "concentration.view_kind": "augment", **QUICK}
    posthoc.fit_kappa(tmp_path / "encoder", tmp_path / "fitted", changes=changes)
    _, before = outputs(tmp_path / "encoder")
    run, after = outputs(tmp_path / "fitted")
    np.testing.assert_array_equal(after["mean_direction"], before["mean_direction"])
    assert (before["concentration"] == 1).all()
    assert after["concentration"].std() > 0
    assert run.probabilistic


def test_kappa_becomes_five_times_the_cosine(rng):
    sizes = {"model.hidden": 64, "model.width": 8}
    config = tiny_config(method="fit_kappa", **{"fit_kappa.method": "simclr", **sizes})
    keras.utils.set_random_seed(0)  # from some weights 300 steps do not suffice
    method = build_method(config)
    views = [tf.constant(rng.uniform(size=(24, 8, 8, 3)), tf.float32) for _ in range(2)]
    # Statistics of a trained encoder: at 0 and 1 all images look alike to it.
    method.encoder(tf.concat(views, axis=0), training=True)
    cosines, kappas = fit_head(method, views)
    for cosine, kappa in zip(cosines, kappas, strict=True):
        assert np.abs(kappa - 5 * np.maximum(cosine, 0)).mean() < 0.1
        assert np.std(cosine) > 0.05


def test_the_encoder_gets_no_gradient_from_wide_views(rng):
    config = tiny_config(**{"concentration.view_kind": "wide", "concentration.levels": "all"})
    method = build_method(config)
    assert [count for _, count in method.view_kinds(Augmentation())] == [2, 1]
    views = [tf.constant(rng.uniform(size=(6, 8, 8, 3)), tf.float32) for _ in range(3)]
    backbone = method.encoder.get_layer("resnet10").trainable_variables

    def gradients(pictures):
        with tf.GradientTape() as tape:
            loss = method.loss(pictures)["loss"]
        return tape.gradient(loss, backbone)

    # Another wide view changes kappa's loss, and nothing for the backbone: batch norm of the head
    # sees all views, so compare the directions' part by switching the alignment's weight off.
    method.config.concentration.align_weight = 0.0
    first = gradients(views)
    second = gradients([views[0], views[1], 1.0 - views[2]])
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_joint_training_with_wide_views(tmp_path):
    changes = {"concentration.view_kind": "wide", "concentration.levels": "all", "epochs": 1}
    values = training.train(tiny_config(**changes), tmp_path)
    assert values["kappa"] > 0


def test_the_encoders_own_directory_is_refused(encoder):
    with pytest.raises(UserError, match="the model's own"):
        posthoc.fit_kappa(encoder, encoder)


def test_a_head_needs_a_model(tmp_path):
    with pytest.raises(UserError, match="tfvmf fit-kappa MODEL"):
        training.train(tiny_config(method="fit_kappa"), tmp_path / "run")
