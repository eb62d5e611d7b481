"""Timeouts of sync tasks: their threads are interrupted, wherever they are."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from delayedq import current_message
from delayedq.core.lifecycle import Raised, Returned
from delayedq.exceptions import TaskTimeout
from delayedq.worker.deadlines import Deadlines
from tests.app import tasks
from tests.worker.attempts import PATIENCE, attempt_of, playing
from tests.worker.pools import values, working

HURRIED = replace(tasks.play, timeout=timedelta(milliseconds=20))
#: Its time is not over before it has begun.
LIMITED = replace(tasks.play, timeout=timedelta(seconds=0.5))


def spin():
    """Busy in Python, until somebody interrupts it."""
    while True:
        pass


def test_a_busy_python_loop_is_interrupted_and_its_thread_goes_on():
    with working(1) as worker:
        for _ in range(3):
            (ended,) = worker.run(playing(spin, task=HURRIED))
            assert ended.outcome == Raised()
            assert type(ended.error) is TaskTimeout
            assert str(ended.error) == "It took longer than 0:00:00.020000."
            assert values(worker.run(attempt_of(tasks.remind, 7))) == ['"7 at None"']


def test_a_task_may_clean_up_when_its_time_is_over():
    cleaned = []

    def body():
        try:
            spin()
        finally:
            cleaned.append(current_message().key)

    with working(1) as worker:
        worker.run(playing(body, task=LIMITED, key="a"))
    assert cleaned == ["a"]


def test_a_task_that_swallows_its_timeout_has_returned():
    def body():
        try:
            spin()
        except TaskTimeout:
            return "late"

    with working(1) as worker:
        assert values(worker.run(playing(body, task=LIMITED))) == ['"late"']


class Cherished:
    """What takes its time to go, where Python drops exceptions."""

    def __del__(self):
        spin()


def test_a_timeout_that_python_drops_comes_again():
    """An exception in `__del__` is only reported, and the task would go on without a limit."""

    def body():
        Cherished()
        spin()

    with working(1) as worker:
        (late,) = worker.run(playing(body, task=HURRIED))
    assert isinstance(late.error, TaskTimeout)


def test_what_else_python_drops_is_reported_as_ever(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    hook = sys.unraisablehook

    class Bad:
        def __del__(self):
            raise ValueError

    with working(1) as worker:
        assert values(worker.run(playing(lambda: Bad() and 7))) == ["7"]
    assert [one.exc_type for one in reported] == [ValueError]
    assert sys.unraisablehook is hook


def test_only_the_late_task_is_interrupted():
    barrier = threading.Barrier(2)

    def body():
        barrier.wait(PATIENCE)
        return 7

    with working(3) as worker:
        late, *others = worker.run(
            playing(spin, task=HURRIED),
            playing(body),
            playing(body, task=replace(tasks.play, timeout=timedelta(hours=1))),
        )
    assert isinstance(late.error, TaskTimeout)
    assert values(others) == ["7", "7"]


def test_the_pool_says_when_the_next_task_is_late():
    with working(1) as worker:
        assert worker.pool.enforce_timeouts() is None
        started = threading.Event()
        release = threading.Event()
        hour = replace(tasks.play, timeout=timedelta(hours=1))
        worker.pool.submit(playing(lambda: started.set() or release.wait(PATIENCE), task=hour))
        assert started.wait(PATIENCE)
        assert 3500 < worker.pool.enforce_timeouts() <= 3600
        release.set()
        worker.ended(1)
        assert worker.pool.enforce_timeouts() is None


@pytest.mark.parametrize("point", ["_wake", "disarm"])
def test_a_timeout_that_comes_as_an_exactly_once_task_enters_or_leaves_its_limit_is_over_with_it(
    store, monkeypatch, point
):
    """The thread is not interrupted, and its connections are not given up, in the next task."""
    deadlines = Deadlines(lambda: None)
    raised = []

    def interrupted(*_):
        if not raised:
            raised.append(point)
            raise TaskTimeout

    real = getattr(deadlines, point)
    monkeypatch.setattr(deadlines, point, lambda: interrupted() or real())
    attempt = playing(lambda: 7, task=replace(tasks.play, exactly_once=True, timeout=timedelta(hours=1)))
    try:
        ended = deadlines.execute_exactly_once(attempt)
        assert (raised, ended.outcome, type(ended.error)) == ([point], Raised(), TaskTimeout)
        assert (deadlines.enforce(), deadlines.overdue(0.0)) == (None, [])
    finally:
        deadlines.close()


def test_a_timeout_that_comes_as_the_task_ends_harms_nothing():
    """Tasks that end just when their time is over, while another thread enforces it all the time."""
    tight = replace(tasks.play, timeout=timedelta(microseconds=50))
    stop = threading.Event()
    with working(2) as worker:

        def enforce():
            while not stop.is_set():
                worker.pool.enforce_timeouts()

        enforcer = threading.Thread(target=enforce)
        enforcer.start()
        try:
            ended = worker.run(
                *(playing(lambda steps: sum(range(steps)), steps, task=tight) for steps in range(0, 4000, 10))
            )
        finally:
            stop.set()
            enforcer.join()
        assert all(one.outcome == Raised() or type(one.outcome) is Returned for one in ended)
        assert all(one.error is None or type(one.error) is TaskTimeout for one in ended)
        assert len(worker.run(*(attempt_of(tasks.nothing) for _ in range(10)))) == 10
        with pytest.raises(LookupError):
            current_message()
