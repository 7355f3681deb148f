"""Candidates of a worker that cost nothing."""

import time


def sleep(seconds):
    return lambda count: time.sleep(count * seconds)


def broken(message):
    def run(count):
        raise ValueError(message)

    return run
