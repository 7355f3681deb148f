"""A moment of each fuzzer; in the slow tests a minute."""

import pytest
from fuzz.fuzzers import FUZZERS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of odd TIFF files


@pytest.mark.parametrize("kind", FUZZERS)
def test_a_few_damaged_files_do_no_harm(kind):
    assert FUZZERS[kind](count=300, seed=1, seconds=2) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", FUZZERS)
def test_a_minute_of_damaged_files_does_no_harm(kind):
    assert FUZZERS[kind](count=100_000, seed=0, seconds=60) == []
