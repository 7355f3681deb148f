"""The same command gives the same bits, also while other processes take the cores."""

from slow import determinism


def test_two_processes_end_with_the_same_bits(tmp_path):
    with determinism.busy(1):
        equal, compared = determinism.compare("simclr_vmf-exact_penalty", 2, tmp_path)
    assert equal == 2, compared


def test_a_step_taken_again_gives_the_same_bits():
    with determinism.busy(1):
        found = determinism.repeat("simclr_vmf", 40)
    assert found.total() == 40
    assert len(found) == 1
