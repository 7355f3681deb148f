"""The judge of a run: what it is fitted to, and what is refused."""

import numpy as np
import pytest
from fuzz import corpus
from fuzz.hunt import hunt
from helpers.untrained import make_run

from tfvmf import data, inference, models, posthoc, training
from tfvmf.errors import UserError
from tfvmf.posthoc.judge import make_judge, refuse_overlap


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    workdir = make_run(tmp_path_factory.mktemp("run"), **{"data.reserve": 300.0})
    posthoc.fit_judge(workdir)
    return workdir


def test_the_decision_is_calibrated_on_the_reserve_and_familiarity_on_the_rest(run):
    judge = posthoc.load(run, step=7)
    config, method, _ = training.load_method(run)
    reserve = training.load_reserve(config)
    assert judge.images == reserve.size == 300
    outputs = inference.Embedder(models.with_levels(method.encoder))(reserve.images())
    judged = judge(outputs)
    quarter = np.random.default_rng(0).permutation(300)[:75]
    kappas = np.sort(outputs["concentration"][quarter])
    np.testing.assert_allclose(judge.decision.concentration, kappas, rtol=1e-5)
    familiarities = np.sort(judged["familiarity"].numpy()[quarter])
    np.testing.assert_allclose(judge.decision.familiarity, familiarities, atol=1e-4)
    train = training.load_source(config, "digits", "train")
    seen = inference.Embedder(method.encoder)(train.images())["features"]
    unit = seen / np.linalg.norm(seen, axis=1, keepdims=True)
    bank = judge.familiarity.bank.astype(np.float32)
    nearest = unit[(bank @ unit.T).argmax(axis=1)]
    np.testing.assert_allclose(bank, nearest, atol=1e-3)  # each a training image


def test_the_same_run_gives_the_same_bytes(run):
    first = (run / "judge.npz").read_bytes()
    posthoc.fit_judge(run)
    assert (run / "judge.npz").read_bytes() == first


def test_other_images_are_judged_and_about_alpha_of_these_are_rejected(run):
    config, method, _ = training.load_method(run)
    judge = posthoc.load(run)
    embed = inference.Embedder(models.with_levels(method.encoder))
    test = training.load_source(config, "digits", "test").images()
    clean = judge(embed(test))["accept"].numpy()
    assert 0.0 < (~clean).mean() < 0.12  # 5 %, three deviations of both samples apart
    noise = np.random.default_rng(0).integers(0, 256, test.shape, dtype=np.uint8)
    assert not judge(embed(noise))["accept"].numpy().any()


def test_without_a_reserve_nothing_happens_and_one_line_says_so(tmp_path, capsys):
    workdir = make_run(tmp_path / "run")
    assert posthoc.fit_judge(workdir) is None
    assert "not calibrated" in capsys.readouterr().out
    assert posthoc.load(workdir) is None


def test_a_method_without_kappa_decides_by_familiarity(tmp_path):
    judge = posthoc.fit_judge(
        make_run(tmp_path / "run", method="simclr", **{"data.reserve": 100.0})
    )
    outputs = {
        "features": np.ones((3, 32), np.float32),
        "levels": np.full((3, 120), 1e3, np.float32),
        "concentration": np.ones(3, np.float32),
    }
    assert not judge(outputs)["accept"].numpy().any()


def test_overlap_is_found_by_pixels(run):
    config, _, _ = training.load_method(run)
    reserve = training.load_reserve(config)
    refuse_overlap(config, reserve)
    train = training.load_source(config, "digits", "train")
    with pytest.raises(UserError, match="2 of its 2 images are training images"):
        refuse_overlap(config, train.subset(np.array([3, 5])))


def test_too_few_calibration_images_are_refused(run):
    config, method, _ = training.load_method(run)
    few = training.load_reserve(config).subset(np.arange(19))
    assert isinstance(few, data.Source)
    with pytest.raises(UserError, match="19 calibration images: at least 20"):
        make_judge(config, method, few, step=7)


@pytest.fixture
def arrays(run):
    with np.load(run / "judge.npz") as found:
        return dict(found)


HOSTILE = {
    "familiarity.bank": [np.full((9, 4), np.nan, np.float16), np.zeros((0, 64), np.float16)],
    "familiarity.bandwidth": [np.array(-1.0), np.array([1.0]), np.array("x")],
    "familiarity.columns": [np.array([-1]), np.array([0.5])],
    "familiarity.whitening": [np.eye(3, dtype=np.float32), np.array([{}], dtype=object)],
    "familiarity.reference": [np.zeros((2, 2)), np.ones((3, 3)), np.ones((2, 2), ">f8")],
    "decision.concentration": [np.arange(150.0)[::-1], np.ones(0), np.full(150, np.inf)],
    "decision.familiarity": [np.ones(7)],
    "decision.joined": [np.ones(3, complex), np.ones(2)],
    "decision.weights": [np.ones(3), np.array([1.0, -1.0])],
    "decision.alpha": [np.array(7.0), np.array(np.nan)],
    "step": [np.array(-1), np.array(7.0)],
    "source": [np.array(3), np.array(["a", "b"])],
}


@pytest.mark.parametrize("key", HOSTILE)
def test_a_judge_with_other_arrays_is_refused_in_a_line_that_names_it(arrays, tmp_path, key):
    for value in HOSTILE[key]:
        np.savez(tmp_path / "judge.npz", **{**arrays, key: value})
        with pytest.raises(UserError, match=r"judge\.npz") as caught:
            posthoc.load(tmp_path)
        assert len(str(caught.value).splitlines()) == 1
    del arrays[key]
    np.savez(tmp_path / "judge.npz", **arrays)
    with pytest.raises(UserError, match=key):
        posthoc.load(tmp_path)


def test_a_judge_that_promises_gigabytes_is_refused_unread(arrays, tmp_path):
    members = {key: corpus.npy(value) for key, value in arrays.items()}
    members["decision.joined"] = corpus.npy_header((2000 * 2**17,), "<f8"), 2000
    (tmp_path / "judge.npz").write_bytes(corpus.archive(**members))

    def case(_):
        with pytest.raises(UserError, match="bytes"):
            posthoc.load(tmp_path)

    assert hunt("a bomb in a judge", case, count=1, seed=0) == []


def test_a_judge_that_is_no_file_is_not_the_same_as_none(tmp_path):
    (tmp_path / "judge.npz").symlink_to("judge.npz")
    with pytest.raises(UserError, match="symbolic links"):
        posthoc.load(tmp_path)


def test_the_judge_of_another_encoder_is_refused(run, tmp_path):
    other = make_run(tmp_path / "other", **{"model.width": 8})
    (other / "judge.npz").write_bytes((run / "judge.npz").read_bytes())
    _, method, step = training.load_method(other)
    with pytest.raises(UserError, match="another encoder"):
        posthoc.load(other, step=step, encoder=method.encoder)
    _, method, step = training.load_method(run)
    assert posthoc.load(run, step=step, encoder=method.encoder) is not None
