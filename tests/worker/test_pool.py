"""Where tasks run: threads side by side, and one event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from delayedq import current_message
from delayedq.core.lifecycle import NotStarted, Raised, Returned
from delayedq.exceptions import TaskTimeout
from delayedq.worker import pool as pool_module
from delayedq.worker.ledger import Ledger
from delayedq.worker.pool import FLUSH, Pool
from tests.app import tasks
from tests.worker.attempts import PATIENCE, attempt_of, playing

SOON = timedelta(milliseconds=20)
HURRIED = replace(tasks.play, timeout=SOON)


class Worker:
    """A pool and the part of the loop that takes what ended."""

    def __init__(self, threads):
        self.woken = threading.Event()
        self.pool = Pool(threads, self.woken.set)

    def ended(self, count):
        """What ended, as soon as it is so many; timeouts are enforced meanwhile."""
        give_up = time.monotonic() + PATIENCE
        taken = self.pool.take_ended()
        while len(taken) < count:
            assert time.monotonic() < give_up, "Nothing ended."
            self.pool.enforce_timeouts()
            self.woken.wait(0.01)
            self.woken.clear()
            taken += self.pool.take_ended()
        return taken

    def run(self, *attempts):
        """Submit them, and wait for their ends, in the order of the attempts."""
        for attempt in attempts:
            self.pool.submit(attempt)
        ended = {one.attempt.id: one for one in self.ended(len(attempts))}
        return [ended[attempt.id] for attempt in attempts]


@contextmanager
def working(threads=2):
    worker = Worker(threads)
    try:
        yield worker
    finally:
        worker.pool.stop()


def values(ended):
    return [one.outcome.result for one in ended]


# Threads


def test_sync_tasks_run_side_by_side():
    barrier = threading.Barrier(3)
    with working(3) as worker:
        ended = worker.run(*(playing(lambda: barrier.wait(PATIENCE) < 3) for _ in range(3)))
    assert values(ended) == ["true"] * 3


def test_one_thread_runs_one_task_after_the_other_in_their_order():
    with working(1) as worker:
        ran = []
        worker.run(*(playing(ran.append, number) for number in range(10)))
    assert ran == list(range(10))


def test_each_task_sees_its_own_message():
    barrier = threading.Barrier(2)

    def body():
        barrier.wait(PATIENCE)
        return current_message().key

    with working(2) as worker:
        assert values(worker.run(playing(body, key="a"), playing(body, key="b"))) == ['"a"', '"b"']


def test_a_thread_goes_on_after_whatever_a_task_raised():
    def leave():
        raise SystemExit(3)

    with working(1) as worker:
        first, second = worker.run(playing(leave), attempt_of(tasks.remind, 7))
    assert (first.outcome, second.outcome) == (Raised(), Returned('"7 at None"'))


@contextmanager
def busy(worker):
    """One thread is held by a task until the end of the block."""
    started, release = threading.Event(), threading.Event()
    worker.pool.submit(playing(lambda: started.set() or release.wait(PATIENCE)))
    assert started.wait(PATIENCE)
    try:
        yield
    finally:
        release.set()


def test_what_no_thread_has_started_can_be_taken_back():
    waiting = [attempt_of(tasks.remind, number) for number in range(3)]
    with working(1) as worker:
        with busy(worker):
            for attempt in waiting:
                worker.pool.submit(attempt)
            assert worker.pool.in_threads == 4
            assert worker.pool.take_back() == waiting
            assert worker.pool.in_threads == 1
            assert worker.pool.take_back() == []
        worker.ended(1)
        assert worker.pool.idle()


def test_the_ledger_says_what_was_started():
    ledger = Ledger(8)
    with working(1) as worker, busy(worker):
        started = playing(lambda: [entry.started for entry in ledger.entries()], ledger=ledger)
        waiting = attempt_of(tasks.remind, 7, ledger=ledger)
        worker.pool.submit(started)
        worker.pool.submit(waiting)
        assert [entry.started for entry in ledger.entries()] == [False, False]
        assert worker.pool.take_back() == [started, waiting]
    with working(1) as worker:
        assert values(worker.run(started)) == ["[true,false]"]


# When the loop should look in


def test_it_counts_what_it_holds_until_it_is_taken():
    with working(2) as worker:
        assert worker.pool.idle()
        assert worker.pool.worth_taking() is None
        with busy(worker):
            worker.run(attempt_of(tasks.aecho, 7))
            assert (worker.pool.in_threads, worker.pool.in_loop) == (1, 0)
            assert not worker.pool.idle()
            assert worker.pool.worth_taking() is None
        worker.ended(1)
        assert (worker.pool.in_threads, worker.pool.in_loop) == (0, 0)
        assert worker.pool.idle()


def test_the_last_end_is_worth_taking_at_once():
    with working(2) as worker:
        worker.pool.submit(attempt_of(tasks.nothing))
        assert worker.woken.wait(PATIENCE)
        assert worker.pool.worth_taking() == 0.0
        assert worker.pool.idle()
        worker.ended(1)


def test_an_end_may_wait_a_moment_for_others_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(pool_module, "FLUSH_AFTER", PATIENCE)
    with working(2) as worker, busy(worker):
        worker.pool.submit(attempt_of(tasks.nothing))
        assert worker.woken.wait(PATIENCE)
        assert 0 < worker.pool.worth_taking() <= PATIENCE
        for _ in range(FLUSH):
            worker.pool.submit(attempt_of(tasks.nothing))
        worker.woken.clear()
        while worker.pool.worth_taking():
            assert worker.woken.wait(PATIENCE)
            worker.woken.clear()
        assert len(worker.ended(FLUSH)) >= FLUSH


# Timeouts of sync tasks


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
        worker.run(playing(body, task=HURRIED, key="a"))
    assert cleaned == ["a"]


def test_a_task_that_swallows_its_timeout_has_returned():
    def body():
        try:
            spin()
        except TaskTimeout:
            return "late"

    with working(1) as worker:
        assert values(worker.run(playing(body, task=HURRIED))) == ['"late"']


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


def count_to(steps):
    return sum(range(steps))


def test_a_timeout_that_comes_as_the_task_ends_harms_nothing():
    """Tasks that end just when their time is over, with somebody who enforces it all the while."""
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


# The event loop


def test_async_tasks_run_at_once_whatever_the_number_of_threads():
    barrier = asyncio.Barrier(200)

    async def body():
        await barrier.wait()
        return threading.current_thread().name

    with working(1) as worker, busy(worker):
        ended = worker.run(*(playing(body) for _ in range(200)))
        assert set(values(ended)) == {'"delayedq-async"'}


def test_an_async_task_that_waits_too_long_is_interrupted_and_others_go_on():
    gate = asyncio.Event()

    async def wait():
        await gate.wait()

    async def open_it():
        gate.set()

    with working(1) as worker:
        (late,) = worker.run(playing(wait, task=replace(tasks.aplay, timeout=SOON)))
        assert isinstance(late.error, TaskTimeout)
        waited, opened = worker.run(playing(wait), playing(open_it))
    assert (waited.outcome, opened.outcome) == (Returned(), Returned())


def test_an_async_task_that_raises_does_not_stop_the_event_loop():
    async def leave():
        raise SystemExit(3)

    async def cancel():
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    with working(1) as worker:
        first, second, third = worker.run(playing(leave), playing(cancel), attempt_of(tasks.aecho, 7))
    assert (first.outcome, second.outcome) == (Raised(), Raised())
    assert type(third.outcome) is Returned


def test_a_pool_that_ran_nothing_stops():
    with working(4):
        pass


def test_what_was_lost_while_it_waited_is_not_started():
    ledger, ran = Ledger(8), threading.Event()
    attempt = playing(ran.set, ledger=ledger)
    ledger.report_lost(ledger.entries()[0])
    with working(1) as worker:
        (ended,) = worker.run(attempt)
    assert (ended.outcome, ended.started) == (NotStarted(), None)
    assert not ran.is_set()
