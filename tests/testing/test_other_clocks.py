"""freezegun and time-machine beside `clock()`: the project's own time is theirs, that of the queue is `clock`'s."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import freezegun
import pytest
import time_machine
from django.utils import timezone

from delayedq.testing import assert_scheduled, clock, run_due, run_until
from tests.app import tasks

START = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)
HOUR = timedelta(hours=1)


@contextmanager
def frozen():
    with freezegun.freeze_time(START) as other:
        yield other.move_to


@contextmanager
def travelled():
    with time_machine.travel(START, tick=False) as other:
        yield other.move_to


BOTH = pytest.mark.parametrize("other_clock", [frozen, travelled], ids=["freezegun", "time-machine"])


@BOTH
def test_both_are_moved_together(alias, other_clock):
    seen = []
    tasks.bodies["clocks"] = lambda: seen.append(timezone.now())
    with other_clock() as move, clock() as now:
        assert now() == START
        tasks.play.schedule_in(HOUR, "clocks")
        assert_scheduled(tasks.play, at=START + HOUR)
        assert run_due() == []
        move(now.advance(HOUR))
        (attempt,) = run_due()
    assert (attempt.outcome, seen) == ("succeeded", [START + HOUR])


@BOTH
def test_each_may_be_moved_alone(alias, other_clock):
    with clock(START) as now, other_clock() as move:
        result = tasks.fail.using(max_attempts=2).enqueue("no fuel")
        move(START + timedelta(days=1))
        assert now() == START
        assert run_due(raise_failures=False)[0].outcome == "retry"
        assert run_due() == []
        (attempt,) = run_until(START + HOUR, raise_failures=False)
        assert attempt.outcome == "failed"
        result.refresh()
    assert (result.enqueued_at, result.started_at) == (START, START)
    assert result.started_at < result.last_attempted_at == result.finished_at < START + HOUR
