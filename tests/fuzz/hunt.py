"""Runs a case again and again with changed input, and notes what must not happen.

A case fails if it raises anything but the errors it may, or one whose message is more than a line;
if it takes more than 10 s (twice: the machine may have been busy; seconds in which a thread waited
for a core do not count), or more than 2 GiB of memory above what the process had before. One that
never ends, ends the process with a traceback after 5 minutes.
"""

import contextlib
import faulthandler
import io
import pathlib
import random
import time
from collections.abc import Callable
from typing import Any

from tfvmf.errors import UserError

SECONDS = 10
MEBIBYTES = 2048
VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 0.5, -0.0, 7, 10**6, 2**31, 2**63, -(2**63), 10**30, 10**400),
    *(1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
    *("", "x", "\0", "\ud800", "\n", "../../x", "folder:/proc", "npz:/dev/null", "[x]"),
    "x" * 10**5,
    *([], [1], [[]], {}, {"a": 1}, {"": {}}),
]
NUMBERS = (0, 1, 2, 7, 8, 16, 255, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Content with a few bytes changed, lost, repeated or moved."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        start = chance.randrange(len(found) + 1)
        stop = min(len(found), start + chance.choice((1, 1, 2, 16, 300)))
        part = found[start:stop]
        other = chance.randrange(len(found) + 1)
        match chance.randrange(8):
            case 0:
                found[start:stop] = bytes(byte ^ (1 << chance.randrange(8)) for byte in part)
            case 1:
                del found[start:stop]
            case 2:
                found[other:other] = part
            case 3:
                found[start:stop] = bytes(len(part))
            case 4:
                found[start:stop] = chance.randbytes(len(part))
            case 5:
                found[start:stop] = str(chance.choice(VALUES))[:400].encode(errors="replace")
            case 6:
                length, order = chance.choice((1, 2, 4)), chance.choice(("little", "big"))
                number = chance.choice(NUMBERS) % 256**length
                found[start : start + length] = number.to_bytes(length, order)
            case 7:
                del found[start:]
        if not found:
            break
    return bytes(found)


def _memory(field: str) -> float:
    """VmRSS or VmHWM of this process, in MiB."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 2**10


def _waited() -> dict[str, float]:
    """Seconds for which each thread of this process could have run, but no core was free."""
    found = {}
    for thread in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            found[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found


def _try(
    case: Callable[[random.Random], None],
    seed: str,
    refusals: tuple[type[Exception], ...],
) -> tuple[str, bool, float]:
    """What a case did wrong or "", whether it was refused, and its seconds."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    faulthandler.dump_traceback_later(300, exit=True)
    waited, clock, failure, refused = _waited(), time.perf_counter(), "", False
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            case(random.Random(seed))
    except refusals as error:
        refused = True
        text = str(error)
        if (isinstance(error, UserError) and len(text.splitlines()) != 1) or "Traceback" in text:
            failure = f"message {text!r}"
    except Exception as error:
        failure = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    faulthandler.cancel_dump_traceback_later()
    took = time.perf_counter() - clock
    delays = [after - waited.get(thread, 0.0) for thread, after in _waited().items()]
    return failure, refused, took - max(delays)


def hunt(
    kind: str,
    case: Callable[[random.Random], None],
    *,
    count: int,
    seed: int,
    seconds: float = float("inf"),
    refusals: tuple[type[Exception], ...] = (UserError,),
) -> list[str]:
    """Runs so many cases, or for so long; prints a summary and returns what failed.

    Args:
        kind: What to call the cases.
        case: Makes an input and tries it; all that is random comes from its argument.
        count: Number of cases.
        seed: Together with a case's number, the seed of its `random.Random`.
        seconds: No new case is started after so long.
        refusals: Errors that a case may end with; the programs print them in one line.
    """
    failures, refused, done = [], 0, 0
    before, started = _memory("VmRSS"), time.perf_counter()
    slowest = most = 0.0
    for number in range(count):
        if time.perf_counter() - started > seconds:
            break
        failure, was_refused, took = _try(case, f"{kind} {seed} {number}", refusals)
        if took > SECONDS and not failure:  # once more: the machine may have been busy
            failure, was_refused, took = _try(case, f"{kind} {seed} {number}", refusals)
        grown = _memory("VmHWM") - before
        slowest, most, done = max(slowest, took), max(most, grown), done + 1
        refused += was_refused
        if took > SECONDS:
            failure = failure or f"took {took:.0f} s"
        if grown > MEBIBYTES:
            failure = failure or f"took {grown:.0f} MiB"
        if failure:
            failures.append(f"{kind} --seed={seed}, case {number}: {failure}")
            print(failures[-1], flush=True)
    print(
        f"{kind}: {done} cases, {refused} refused, {len(failures)} failed, "
        f"{time.perf_counter() - started:.0f} s, slowest {slowest:.1f} s, "
        f"peak {before + most:.0f} MiB ({before:.0f} before)",
        flush=True,
    )
    return failures
