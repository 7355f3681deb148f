"""How many processor cores this process may use."""

import os


def available() -> int:
    """The cores that the process is bound to, if the system tells; otherwise all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
