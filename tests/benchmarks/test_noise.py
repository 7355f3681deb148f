import time

import pytest

from benchmarks.side_by_side.noise import Noise


def test_what_we_burn_ourselves_is_not_noise(monkeypatch):
    noise = Noise()
    if noise.cores() is None:
        pytest.skip("/proc/stat is Linux's")
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        pass
    ours = noise.cores()
    # Without our share it would be that much more.
    monkeypatch.setattr("os.times", lambda: (0.0, 0.0, 0.0, 0.0, 0.0))
    assert noise.cores() > ours
