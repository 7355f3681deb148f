"""The processor cores that this process may use, and work that is done ahead on them."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def available() -> int:
    """Number of cores that the process is bound to, or of all if the system does not report it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def one_ahead(
    make: Callable[[_Item], _Made], items: Iterable[_Item], *, threads: int = 1
) -> Iterator[_Made]:
    """Yields what `make` returns for each item, and makes the next one in the meantime.

    With two threads, the next one is made while the current one is still being made.
    """
    with ThreadPoolExecutor(threads) as pool:
        made = (pool.submit(make, item) for item in items)
        last: Future[_Made] = Future()
        for now, _ in itertools.pairwise(itertools.chain(made, [last])):
            yield now.result()
