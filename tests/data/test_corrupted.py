import threading

import numpy as np
import pytest

from tfvmf.data.corruptions.cache import Corrupted
from tfvmf.errors import UserError

PARTS = [("fog", 1, 0, 2), ("fog", 2, 0, 2), ("snow", 1, 0, 2)]


def test_the_next_part_is_made_while_one_is_used():
    started = {part: threading.Event() for part in PARTS}

    def read(*part):
        started[part].set()
        return np.full(2, PARTS.index(part))

    seen = []
    for part, images in Corrupted("made here", read).read_ahead(PARTS):
        seen.append((part, int(images[0])))
        following = PARTS[PARTS.index(part) + 1 :]
        if following:
            assert started[following[0]].wait(timeout=10)
            assert not any(started[later].is_set() for later in following[1:])
    assert seen == [(part, number) for number, part in enumerate(PARTS)]


def test_nothing_to_read():
    assert list(Corrupted("made here", lambda *part: np.zeros(2)).read_ahead([])) == []


def test_errors_come_when_their_part_is_due():
    def read(name, *_):
        if name == "snow":
            raise UserError("no snow")
        return np.zeros(2)

    parts = Corrupted("made here", read).read_ahead(PARTS)
    assert next(parts)[0] == PARTS[0]
    assert next(parts)[0] == PARTS[1]
    with pytest.raises(UserError, match="no snow"):
        next(parts)
