#!/usr/bin/env python3
"""Starts a multi-worker run on this machine: the same command several times, each with TF_CONFIG.

  examples/multi_worker.py --workers=2 tfvmf train --strategy=multi_worker --workdir=runs/two

This is for trying out what several machines would do; for several GPUs in one machine use
--strategy=mirrored. Worker 0 writes to the terminal, the others to worker-1.log and so on in
--logs. Ctrl-C and SIGTERM are passed on to all. Ends when all have ended, with the first exit code
that is not 0. For several machines see docs/scaling.md. Needs nothing but Python.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from types import FrameType


def cluster(workers: int) -> list[str]:
    """One TF_CONFIG for each worker on this machine."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(workers)]
    addresses = [f"localhost:{place.getsockname()[1]}" for place in sockets]
    for place in sockets:
        place.close()
    return [
        json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        for index in range(workers)
    ]


def main() -> int:
    """Starts the workers, passes signals on and waits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="how many processes")
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path(), help="directory")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what every worker runs")
    options = parser.parse_args()
    if options.workers < 1 or not options.command:
        parser.error("expected --workers of at least 1 and a command")
    options.logs.mkdir(parents=True, exist_ok=True)
    processes = []
    for index, config in enumerate(cluster(options.workers)):
        log = (options.logs / f"worker-{index}.log").open("w") if index else None
        processes.append(
            subprocess.Popen(
                options.command,
                env={**os.environ, "TF_CONFIG": config},
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches them only once, through `pass_on`
            )
        )

    def pass_on(signum: int, frame: FrameType | None) -> None:
        del frame
        for process in processes:
            process.send_signal(signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, pass_on)
    codes = [process.wait() for process in processes]
    for index, code in enumerate(codes):
        if code:
            print(f"worker {index} ended with {code}", file=sys.stderr)
    return next((abs(code) for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
