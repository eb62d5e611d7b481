"""Cancelling: what waits ends at once, what runs is told, and the answer says which it was."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connections, transaction

from delayedq import Cancellation, cancel_all, current_message
from delayedq.compat import default_task_backend
from delayedq.exceptions import TaskCancelled
from delayedq.models import FinishedMessage, Message
from delayedq.operations.edits import stop
from delayedq.results import cancelling, dropped
from delayedq.store.protocol import ClaimRequest, Lane
from delayedq.testing import run_due
from delayedq.worker.attempt import Attempt
from delayedq.worker.shared_leases import SharedLeases
from tests.app import lifecycle, tasks
from tests.worker.attempts import PATIENCE, WORKER, attempt_of, claimed, playing
from tests.worker.pools import values, working

from .test_waiting import LONG, play, worker_of

HOUR = timedelta(hours=1)
INTERRUPTIBLE = replace(tasks.play, interruptible=True)


def eventually(condition):
    give_up_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def outcomes():
    return sorted(FinishedMessage.objects.values_list("outcome", flat=True))


def test_what_waits_ends_at_once_and_what_has_ended_stays(alias):
    done = tasks.remind.enqueue(1)
    run_due()
    due, later = tasks.remind.enqueue(2), default_task_backend.get_result(tasks.remind.schedule_in(HOUR, 3).id)
    assert cancel_all([done, due, later, due]) == ["ended", "cancelled", "cancelled", "cancelled"]
    assert [one.outcome for one in (done, due, later)] == ["succeeded", "cancelled", "cancelled"]
    assert due.cancel() is Cancellation.ENDED
    assert run_due() == []


def test_what_was_dropped_has_ended_and_hinders_no_other(alias):
    lost, due = dropped(tasks.remind, [7], {}, "default"), tasks.remind.enqueue(7)
    assert lost.progress is None
    assert lost.cancel() == "ended"
    assert cancel_all([lost, due]) == ["ended", "cancelled"]


def test_what_was_deleted_has_ended_and_the_answers_for_the_others_are_not_lost(alias):
    deleted, due = tasks.remind.enqueue(1), tasks.remind.enqueue(2)
    Message.objects.filter(id=int(deleted.id)).delete()
    assert cancel_all([deleted, due]) == ["ended", "cancelled"]
    assert [deleted.outcome, due.outcome] == [None, "cancelled"]


def test_what_is_no_result_is_refused_and_nothing_is_cancelled(alias):
    due, scheduled = tasks.remind.enqueue(7), tasks.remind.enqueue_many([((7,), {})])
    with pytest.raises(TypeError, match=r"Results are cancelled, as `enqueue` and .* return them, not Scheduled"):
        cancel_all([due, *scheduled])
    assert Message.objects.count() == 2


def test_it_takes_part_in_the_transaction_of_the_caller(alias):
    result = tasks.remind.enqueue(7)
    with transaction.atomic(using=alias):
        assert result.cancel() == "cancelled"
        transaction.set_rollback(True, using=alias)
    result.refresh()
    assert result.outcome is None
    assert Message.objects.exists()


def test_a_running_task_is_told_and_its_result_refused(store, alias, settings):
    if alias != "postgresql":
        return  # elsewhere it is told by the lease keeper: worker/test_lease_keeper.py
    began, told = threading.Event(), threading.Event()

    def body():
        began.set()
        eventually(lambda: current_message().cancelled)
        told.set()
        current_message().raise_if_cancelled()

    with worker_of(store):
        result = play("told", body)
        assert began.wait(PATIENCE)
        assert result.cancel() is Cancellation.STOPPED
        assert result.outcome == "cancelled"
        assert told.wait(PATIENCE)
    assert outcomes() == ["cancelled"]
    assert not Message.objects.exists()


def test_an_interruptible_and_an_async_task_are_stopped(store, alias, monkeypatch):
    if alias != "postgresql":
        return
    began, ended = threading.Barrier(3), []

    def spin():
        began.wait(PATIENCE)
        try:
            while True:
                pass
        except TaskCancelled:
            ended.append("sync")
            raise

    async def sleep():
        await asyncio.to_thread(began.wait, PATIENCE)
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.append("async")
            raise

    tasks.bodies.update({"spin": spin, "sleep": sleep})
    with worker_of(store):
        running = [lifecycle.interruptible.enqueue("spin"), tasks.aplay.enqueue("sleep")]
        began.wait(PATIENCE)
        assert cancel_all(running) == ["stopped", "stopped"]
        assert tasks.remind.enqueue(7).wait(LONG).return_value == "7 at None"
        eventually(lambda: len(ended) == 2)
    assert sorted(ended) == ["async", "sync"]
    assert outcomes() == ["cancelled", "cancelled", "succeeded"]


def test_a_stop_by_an_operator_is_told_as_well(store, alias):
    if alias != "postgresql":
        return
    began, told = threading.Event(), threading.Event()

    def body():
        began.set()
        eventually(lambda: current_message().cancelled)
        told.set()

    with worker_of(store):
        play("operator", body)
        assert began.wait(PATIENCE)
        assert stop(store, Message.objects.get()) is not None
        assert told.wait(PATIENCE)


def test_a_message_that_is_locked_is_left_alone_and_said_to_be_busy(store, alias, monkeypatch):
    if alias == "default":
        return  # SQLite locks the whole file: it waits
    monkeypatch.setattr(cancelling, "PATIENCE", 0.05)
    result = tasks.remind.enqueue(7)
    locked, done = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic(using=alias):
            list(Message.objects.select_for_update().all())
            locked.set()
            done.wait(PATIENCE)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert locked.wait(PATIENCE)
        assert result.cancel() is Cancellation.BUSY
    finally:
        done.set()
        thread.join()
    assert result.cancel() is Cancellation.CANCELLED


def test_a_backend_without_a_database_has_nothing_to_cancel(settings, db):
    settings.TASKS = {"default": {"BACKEND": "delayedq.testing.DummyBackend"}}
    with pytest.raises(TypeError, match="The backend 'default' keeps no messages in a database"):
        tasks.remind.enqueue(7).cancel()


# Interrupting a thread


def lose(leases, attempt):
    (entry,) = [entry for entry in leases.entries() if entry.id == attempt.id]
    leases.report_lost(entry)


@contextmanager
def eager_threads():
    """Threads take turns a thousand times more often than usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def claim_one_of(store, task):
    """An attempt of a message that is claimed; just before its end, its worker is told that its lease is lost."""

    def body():
        lose(current_message()._leases, current_message())

    tasks.bodies["once"] = body
    task.enqueue("once")
    (message,) = store.claim(ClaimRequest([Lane("default", 0)], 1, HOUR, WORKER))
    leases = SharedLeases(64)
    return Attempt(message, task, WORKER, leases, leases.hold(message.id, message.token))


def test_an_exception_is_never_raised_in_the_next_run_of_the_thread():
    """Each attempt is cancelled by itself just before its end, while another thread interrupts what it may."""

    def body(rounds):
        lose(current_message()._leases, current_message())
        return sum(range(rounds))

    interrupted, done = 0, threading.Event()
    with working(1) as worker, eager_threads():
        thread = threading.Thread(target=lambda: [worker.pool.enforce_timeouts() for _ in iter(done.is_set, True)])
        thread.start()
        try:
            for number in range(500):
                attempt = playing(body, number % 50 * 40, task=INTERRUPTIBLE)
                ended, following = worker.run(attempt, attempt_of(tasks.remind, number))
                assert values([following]) == [f'"{number} at None"']
                assert ended.error is None or type(ended.error) is TaskCancelled
                interrupted += ended.error is not None
        finally:
            done.set()
            thread.join()
    assert interrupted > 0, "some were in time"


def test_an_exactly_once_task_is_not_interrupted_in_its_commit(store):
    """The commit of a task that was cancelled is refused because of its lease, and by nothing else."""
    task = replace(tasks.play_once, interruptible=True)
    outcomes, done = set(), threading.Event()
    with working(1) as worker, eager_threads():
        thread = threading.Thread(target=lambda: [worker.pool.enforce_timeouts() for _ in iter(done.is_set, True)])
        thread.start()
        try:
            for _ in range(50):
                message = claim_one_of(store, task)
                (ended,) = worker.run(message)
                outcomes.add(type(ended.error))
                assert (ended.settled is None) == (ended.error is not None)
        finally:
            done.set()
            thread.join()
    assert outcomes <= {type(None), TaskCancelled}
    assert FinishedMessage.objects.filter(outcome="succeeded").count() + Message.objects.count() == 50


def test_a_task_that_is_not_interruptible_runs_on():
    def body():
        (entry,) = current_message()._leases.entries()
        current_message()._leases.report_lost(entry)
        return sum(range(200_000))

    with working(1) as worker:
        assert values(worker.run(playing(body, task=replace(tasks.play, timeout=HOUR)))) == [str(sum(range(200_000)))]


def test_what_is_cancelled_in_time_says_why():
    def body():
        (entry,) = current_message()._leases.entries()
        current_message()._leases.report_lost(entry)
        while True:
            pass

    with working(1) as worker:
        (ended,) = worker.run(playing(body, task=INTERRUPTIBLE))
    assert (type(ended.error), str(ended.error)) == (TaskCancelled, "Its message was cancelled while it ran.")


def test_the_message_of_a_claim_is_not_cancelled_by_itself():
    attempt = attempt_of(tasks.remind, 7)
    assert not attempt.cancelled
    attempt.raise_if_cancelled()
    lose(attempt._leases, attempt)
    assert attempt.cancelled
    with pytest.raises(TaskCancelled, match="was cancelled"):
        attempt.raise_if_cancelled()
    assert claimed(tasks.remind, 7).errors is None
