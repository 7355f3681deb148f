"""The process that holds candidates and runs them on demand; `interleaved.Worker` starts it.

    python -m benchmarks.side_by_side.worker '{"NAME": ["module:maker", {"keyword": value}]}'

Each maker gives a function of a count. A line on standard input, `["NAME", COUNT]`, runs one; the
answer is a JSON line. What libraries print goes to the error stream.
"""

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

Candidate = Callable[[int], None]


def make(maker: str, settings: dict[str, Any]) -> Candidate:
    """Calls `module:function` with keywords."""
    module, function = maker.split(":")
    return getattr(importlib.import_module(module), function)(**settings)


def main() -> None:
    """Makes all candidates, then answers until nobody asks."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    candidates = {name: make(*spec) for name, spec in json.loads(sys.argv[1]).items()}
    print(json.dumps({"ready": True}), file=answers)
    waited, worked = time.perf_counter(), time.process_time()
    for line in sys.stdin:
        name, count = json.loads(line)
        # Threads that wait for work must sleep: what they burn here, the others lack.
        answer = {"waited": time.perf_counter() - waited, "burnt": time.process_time() - worked}
        start = time.perf_counter()
        candidates[name](count)
        answer["seconds"] = time.perf_counter() - start
        answer["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(answer), file=answers)
        waited, worked = time.perf_counter(), time.process_time()


if __name__ == "__main__":
    main()
