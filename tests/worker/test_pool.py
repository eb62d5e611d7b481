"""Where tasks run: threads side by side, and one event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from queue import SimpleQueue

import pytest

from delayedq import current_message
from delayedq.core.lifecycle import NotStarted, Raised, Returned
from delayedq.exceptions import TaskTimeout
from delayedq.sql.priority import LIMITED
from delayedq.worker import pool as pool_module
from delayedq.worker.pool import FLUSH
from delayedq.worker.shared_leases import SharedLeases
from tests.app import tasks
from tests.worker.attempts import PATIENCE, attempt_of, playing
from tests.worker.pools import busy, values, working

APLAY = tasks.aplay.module_path

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


class UnjudgedError(TypeError):
    """One that nobody can look into."""

    @property
    def __traceback__(self):
        raise MemoryError


def test_an_attempt_ends_and_its_thread_goes_on_when_its_error_can_not_be_judged():
    def fail():
        raise UnjudgedError

    async def afail():
        raise UnjudgedError

    with working(1) as worker:
        ended = worker.run(playing(fail), playing(afail), attempt_of(tasks.remind, 7))
    assert [type(one.error) for one in ended] == [MemoryError, MemoryError, type(None)]
    assert [one.outcome for one in ended] == [Raised(), Raised(), Returned('"7 at None"')]


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


def test_the_shared_leases_says_what_was_started():
    leases = SharedLeases(8)
    with working(1) as worker, busy(worker):
        started = playing(lambda: [entry.started for entry in leases.entries()], leases=leases)
        waiting = attempt_of(tasks.remind, 7, leases=leases)
        worker.pool.submit(started)
        worker.pool.submit(waiting)
        assert [entry.started for entry in leases.entries()] == [False, False]
        assert worker.pool.take_back() == [started, waiting]
    with working(1) as worker:
        assert values(worker.run(started)) == ["[true,false]"]


# When the loop should take results


def test_it_counts_what_it_holds_until_it_is_taken():
    with working(2) as worker:
        assert worker.pool.idle()
        assert worker.pool.take_in() is None
        with busy(worker):
            worker.run(attempt_of(tasks.aecho, 7))
            assert (worker.pool.in_threads, worker.pool.in_event_loop) == (1, 0)
            assert not worker.pool.idle()
            assert worker.pool.take_in() is None
        worker.ended(1)
        assert (worker.pool.in_threads, worker.pool.in_event_loop) == (0, 0)
        assert worker.pool.idle()


def test_the_last_end_is_worth_taking_at_once():
    with working(2) as worker:
        worker.pool.submit(attempt_of(tasks.nothing))
        assert worker.woken.wait(PATIENCE)
        assert worker.pool.take_in() == 0.0
        assert worker.pool.idle()
        worker.ended(1)


def test_an_end_may_wait_a_moment_for_others_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(pool_module, "FLUSH_AFTER", PATIENCE)
    with working(2) as worker, busy(worker):
        worker.pool.submit(attempt_of(tasks.nothing))
        assert worker.woken.wait(PATIENCE)
        assert 0 < worker.pool.take_in() <= PATIENCE
        for _ in range(FLUSH):
            worker.pool.submit(attempt_of(tasks.nothing))
        while worker.pool.take_in():
            assert worker.woken.wait(PATIENCE)
        assert len(worker.ended(FLUSH)) >= FLUSH


def test_an_end_that_makes_room_in_its_channel_waits_for_nobody_if_a_thread_is_free(monkeypatch):
    monkeypatch.setattr(pool_module, "FLUSH_AFTER", PATIENCE)
    with working(2) as worker, busy(worker):
        worker.pool.submit(attempt_of(tasks.call, "a", priority=-LIMITED))
        assert worker.woken.wait(PATIENCE)
        assert worker.pool.take_in() == 0.0
        with busy(worker):
            worker.pool.submit(attempt_of(tasks.nothing))
            assert 0 < worker.pool.take_in() <= PATIENCE


def test_where_round_trips_take_long_an_end_waits_longer_for_others(monkeypatch):
    monkeypatch.setattr(pool_module, "LONGEST_FLUSH_AFTER", PATIENCE)
    with working(2) as worker, busy(worker):
        worker.pool.submit(attempt_of(tasks.nothing))
        assert worker.woken.wait(PATIENCE)
        time.sleep(2 * pool_module.FLUSH_AFTER)
        assert worker.pool.take_in() == 0.0
        worker.pool.round_trip_took(60.0)
        assert 0.0 < worker.pool.take_in() <= PATIENCE
        worker.pool.round_trip_took(0.0)
        assert worker.pool.take_in() == 0.0


def test_what_has_ended_occupies_no_thread():
    with working(2) as worker, busy(worker):
        worker.pool.submit(attempt_of(tasks.nothing))
        worker.pool.submit(attempt_of(tasks.aecho, 7))
        while worker.pool.occupying() > 1:
            assert worker.woken.wait(PATIENCE)
        assert worker.pool.in_threads == 2
        worker.ended(2)
        assert (worker.pool.occupying(), worker.pool.in_threads, worker.pool.in_event_loop) == (1, 1, 0)


def test_each_end_may_be_worth_a_round_trip():
    with working(2, flush=1) as worker, busy(worker):
        worker.pool.round_trip_took(60.0)
        worker.pool.submit(attempt_of(tasks.nothing))
        assert worker.woken.wait(PATIENCE)
        assert worker.pool.take_in() == 0.0


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
        (late,) = worker.run(playing(wait, task=replace(tasks.aplay, timeout=timedelta(milliseconds=20))))
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


def test_an_async_task_that_stops_the_event_loop_ends_no_other_and_is_named_once(caplog):
    gate = asyncio.Event()

    async def wait():
        await gate.wait()

    async def stop():
        for _ in range(3):
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0.01)
        gate.set()

    with working(1) as worker:
        ended = worker.run(playing(wait), playing(stop))
    assert [one.outcome for one in ended] == [Returned()] * 2
    (told,) = caplog.records
    assert told.levelname == "WARNING"
    assert told.message.endswith(f"loop.stop() on the event loop of all async tasks, which goes on. Running: {APLAY}.")


async def leave():
    raise SystemExit(3)


async def interrupt():
    raise KeyboardInterrupt


BESIDE = {
    "a task": lambda loop: loop.create_task(leave()),
    "an interrupted task": lambda loop: loop.create_task(interrupt()),
    "a callback": lambda loop: loop.call_soon(sys.exit, 3),
}


@pytest.mark.parametrize("begin", BESIDE.values(), ids=BESIDE)
def test_what_leaves_the_event_loop_beside_an_async_task_ends_no_other_and_is_told(begin, caplog):
    gate, begun = asyncio.Event(), []

    async def wait():
        await gate.wait()

    async def start():
        begun.append(begin(asyncio.get_running_loop()))
        await asyncio.sleep(0.01)
        gate.set()

    with working(1) as worker:
        ended = worker.run(playing(wait), playing(start)) + worker.run(playing(wait))
    assert [one.outcome for one in ended] == [Returned()] * 3
    (told,) = [one.message for one in caplog.records if one.name == "delayedq"]
    assert "outside of its own coroutine, in the event loop of all async tasks, which goes on" in told


def test_one_that_stops_the_event_loop_and_returns_at_once_is_named(caplog):
    async def stop():
        asyncio.get_running_loop().stop()

    with working(1) as worker:
        (ended,) = worker.run(playing(stop))
    assert ended.outcome == Returned()
    assert [told.message.rpartition(" ")[2] for told in caplog.records] == [f"{APLAY}."]


def test_a_pool_that_ran_nothing_stops():
    with working(4):
        pass


@pytest.mark.parametrize("task", [tasks.play, tasks.aplay], ids=["sync", "async"])
def test_what_was_lost_while_it_waited_is_not_started(task):
    leases, ran = SharedLeases(8), threading.Event()
    attempt = playing(ran.set, task=task, leases=leases)
    leases.report_lost(leases.entries()[0])
    with working(1) as worker:
        (ended,) = worker.run(attempt)
    assert (ended.outcome, ended.started) == (NotStarted(), None)
    assert not ran.is_set()


def test_an_async_attempt_whose_lease_is_lost_before_its_first_step_ends():
    leases, ended, ran = SharedLeases(8), SimpleQueue(), threading.Event()
    attempt = playing(ran.set, task=tasks.aplay, leases=leases)
    leases.report_lost(leases.entries()[0])
    coroutines = pool_module.Coroutines(ended.put)

    def at_once():
        coroutines.submit(attempt)
        coroutines._begin_given()
        coroutines._watch()

    coroutines._loop.call_soon_threadsafe(at_once)
    assert ended.get(timeout=PATIENCE).attempt is attempt
    coroutines.stop()
    assert not ran.is_set()
    assert not coroutines._tasks


def test_more_async_attempts_than_begin_at_once_all_end():
    async def nothing():
        pass

    number = 3 * pool_module.BEGUN_AT_ONCE + 1
    with working(1) as worker:
        ended = worker.run(*(playing(nothing, task=tasks.aplay) for _ in range(number)))
    assert values(ended) == [None] * number
