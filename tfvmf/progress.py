"""Progress, as a bar on a terminal or as lines in a log file, and text that is safe to print."""

import io
import sys
import time
from typing import Self

import tqdm


def printable(text: str) -> str:
    r"""Text for a terminal, with escape codes in place of invisible characters.

    >>> print(printable("red \x1b[31m"))
    red \x1b[31m
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Progress:
    """Counts steps toward a total and shows the progress.

    `initial` steps are already done, `rate` shows steps per second, `seconds` is the time between
    lines of a log file. `brief`, for fast work, shows a bar after 2 seconds, on terminals only.
    """

    def __init__(
        self,
        total: int,
        *,
        initial: int = 0,
        unit: str = "step",
        description: str = "",
        rate: bool = True,
        seconds: float = 30.0,
        brief: bool = False,
    ) -> None:
        self._terminal = sys.stderr.isatty()
        self._lines = not self._terminal and not brief
        self._seconds = seconds
        self._shown = time.monotonic()
        self._bar = tqdm.tqdm(
            total=total,
            initial=initial,
            unit=f" {unit}s",
            desc=f"{printable(description)} " if description else None,
            dynamic_ncols=True,
            # A short bar: on a narrow terminal the text after it is more useful.
            bar_format="{desc}{percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt} "
            + "[{elapsed}<{remaining}"
            + (", {rate_fmt}" if rate else "")
            + "{postfix}]",
            disable=None if self._terminal else False,
            # Without a terminal the bar only counts: `update` prints lines.
            file=sys.stderr if self._terminal else _Nowhere(),
            mininterval=0.2,
            delay=2 if brief else 0,
            leave=not brief,
        )

    def update(self, steps: int = 1, text: str = "") -> None:
        """Advances by `steps`; `text` replaces the text after the bar."""
        if text:
            self._bar.set_postfix_str(text, refresh=steps == 0)
        self._bar.update(steps)
        now = time.monotonic()
        finished = self._bar.n >= (self._bar.total or 0) > self._bar.n - steps
        if self._lines and (finished or now - self._shown >= self._seconds):
            self._shown = now
            print(self._bar, file=sys.stderr, flush=True)

    def note(self, line: str) -> None:
        """Prints a permanent line above the bar."""
        line = printable(line)
        if self._terminal:
            self._bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()


class _Nowhere(io.StringIO):
    """A file that discards what is written to it."""

    def write(self, text: str) -> int:
        """Discards the text."""
        return len(text)
