import numpy as np
import pytest
from helpers.tiny import tiny_config

from tfvmf import evaluation, training
from tfvmf.errors import UserError
from tfvmf.training import loop, run_directory
from tfvmf.training.optimizers import make_optimizer


def encoder_weights(workdir):
    _, method, step = training.load_method(workdir)
    return [w.copy() for w in method.encoder.get_weights()], step


def differ(first, second):
    return any(np.abs(a - b).max() > 1e-3 for a, b in zip(first, second, strict=True))


@pytest.mark.slow
def test_members_of_other_seeds(tmp_path, monkeypatch):
    config = tiny_config(epochs=1, **{"ensemble.num_members": 2, "monitor.every_epochs": 0.0})
    training.train(config, tmp_path)
    members = [run_directory.member(tmp_path, number) for number in range(2)]
    assert [run_directory.read(member)[0].seed for member in members] == [0, 1]
    first, second = (encoder_weights(member)[0] for member in members)
    assert differ(first, second)

    run = evaluation.subject_from_run(tmp_path)
    options = evaluation.Options()
    assert run.score(options).name == "ensemble"
    assert len(run.members) == 2
    values = run.uncertainty(options)(run.test.images(0, 20))["ensemble"]
    assert (values > 0).all()

    with pytest.raises(UserError, match="members/00"):
        training.load_method(tmp_path)  # as `tfvmf export` does
    # Started again, finished members are not trained again.
    monkeypatch.setattr(loop.Run, "_collect", lambda *_: pytest.fail("trained again"))
    training.train(config, tmp_path)


def test_an_unfinished_ensemble_is_named(tmp_path):
    config = tiny_config(epochs=1, **{"ensemble.num_members": 2})
    run_directory.write_or_check_config(tmp_path, config, {})
    with pytest.raises(UserError, match="member 1 of 2 is not trained"):
        evaluation.subject_from_run(tmp_path)


def test_snapshots_of_one_run(tmp_path):
    config = tiny_config(
        epochs=2,
        **{"ensemble.num_members": 2, "ensemble.kind": "snapshot", "monitor.every_epochs": 0.0},
    )
    training.train(config, tmp_path)
    members = [encoder_weights(run_directory.member(tmp_path, number)) for number in range(2)]
    assert [step for _, step in members] == [4, 8]
    assert differ(members[0][0], members[1][0])
    last, step = encoder_weights(tmp_path)
    assert step == 8
    assert not differ(last, members[1][0])
    assert len(evaluation.subject_from_run(tmp_path).members) == 2
    rates = [line["learning_rate"] for line in training.read_metrics(tmp_path) if "loss" in line]
    assert min(rates) < 1e-9 < max(rates)


def test_the_learning_rate_starts_again_in_every_cycle():
    config = tiny_config().optimizer
    once = make_optimizer(config, [], steps_per_epoch=4, total_steps=20)
    cycles = make_optimizer(config, [], steps_per_epoch=4, total_steps=60, cycles=3)
    for step in range(60):
        once.iterations.assign(step % 20)
        cycles.iterations.assign(step)
        assert float(cycles.learning_rate) == pytest.approx(float(once.learning_rate), abs=1e-9)


def test_cycles_must_be_equal(tmp_path):
    config = tiny_config(epochs=3, **{"ensemble.num_members": 2, "ensemble.kind": "snapshot"})
    with pytest.raises(UserError, match="multiple"):
        training.train(config, tmp_path)
