"""How many processor cores this process may use."""

import os


def available() -> int:
    """Those that the process is bound to, where the system tells; otherwise all of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
