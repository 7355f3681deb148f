"""How much of the machine others used while something was measured.

Taking turns makes noise alike for all, but not all suffer alike: PyTorch's threads wait for each
other at the end of every operation, and one that is kept from its core keeps all. With 1.3 of 2
cores taken by programs of a higher priority its step took about 8 times as long as alone, ours 2.5
times.
"""

import os
import pathlib
import time

MUCH = 0.2  # cores


class Noise:
    """Counts from when it is made. Linux tells; elsewhere nothing is known."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._before = self._foreign()

    def cores(self) -> float | None:
        """Cores that other processes than ours, and than those that we have ended, kept busy."""
        now = self._foreign()
        if now is None or self._before is None:
            return None
        return max(now - self._before, 0.0) / (time.perf_counter() - self._start)

    @staticmethod
    def _foreign() -> float | None:
        """CPU seconds of everybody but us."""
        try:
            line = pathlib.Path("/proc/stat").read_text().splitlines()[0]
        except OSError:
            return None
        user, nice, system, _, _, *rest = map(int, line.split()[1:9])
        ticks = user + nice + system + sum(rest)  # the rest: interrupts, and time that was stolen
        return ticks / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])
