"""A minute of each fuzzer of run directories."""

import pytest
from fuzz import runs


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["config", "metrics", "checkpoint"])
def test_a_damaged_run_directory_does_no_harm(kind):
    assert runs.fuzz(kind, cases=10_000, seed=0, seconds=60) == []
