"""When a process that died is started again."""

from __future__ import annotations

import pytest

from delayedq.worker import child
from delayedq.worker.child import SHORT_LIFE, Restarts


@pytest.fixture
def lives(monkeypatch):
    """Lets a process live for each of these seconds, one after the other; the pauses after their deaths."""
    moment = 100.0

    def live(process, *seconds):
        nonlocal moment
        pauses = []
        for life in seconds:
            process.started()
            moment += life
            pauses.append(process.died())
            assert process.due_in() == pytest.approx(pauses[-1])
            moment += pauses[-1]
            assert process.due_in() == 0.0
        return pauses

    monkeypatch.setattr(child.time, "monotonic", lambda: moment)
    return live


def test_one_that_lived_for_long_is_replaced_at_once(lives):
    assert lives(Restarts(), SHORT_LIFE, 1_000) == [0.0, 0.0]


def test_pauses_grow_while_lives_are_short_and_begin_anew_after_a_long_one(lives):
    process = Restarts()
    pauses = lives(process, *[1.0] * 8)
    assert 0 < pauses[0] <= 0.5
    assert 5 <= pauses[-1] <= 10
    assert lives(process, SHORT_LIFE) == [0.0]
    assert 0 < lives(process, 1.0)[0] <= 0.5


def test_pauses_can_be_bounded(lives):
    assert lives(Restarts(longest_pause=0.1), *[1.0] * 3) == pytest.approx([0.1] * 3)
