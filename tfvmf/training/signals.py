"""Ctrl-C and SIGTERM as a request to stop after the present step, not in the middle of it."""

import signal
from types import FrameType, TracebackType
from typing import Self


class Interrupted(Exception):
    """The run was asked to stop, and saved its state first."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, as shells count."""
        return 128 + self.signum


class StopRequest:
    """Remembers the first signal; a second one of the same kind acts as it always did."""

    def __init__(self) -> None:
        self.signum = 0
        self._previous: dict[int, object] = {}

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        del frame
        self.signum = signum
        signal.signal(signum, self._previous[signum])  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._previous[signum] = signal.signal(signum, self._remember)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]
