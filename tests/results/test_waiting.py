"""Waiting until messages have ended: one, many, in a thread, in an event loop; and what their results say then."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import Error, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq import as_completed, as_completed_async, await_all, wait_all
from delayedq.compat import TaskResultDoesNotExist, TaskResultStatus, default_task_backend
from delayedq.models import FinishedMessage, Message
from delayedq.results import dropped, waiting
from delayedq.store.postgresql.sql import LISTEN_TO_ENDS
from delayedq.store.postgresql.store import EndListener
from delayedq.testing import run_due
from delayedq.worker.loop import Loop
from delayedq.worker.options import Options
from tests.app import tasks
from tests.worker.attempts import LEASE, PATIENCE, WORKER

SECOND, LONG = timedelta(seconds=1), timedelta(seconds=PATIENCE)


@contextmanager
def worker_of(store):
    """A worker in a thread of this process."""
    options = Options(lease=LEASE, poll_interval=SECOND, shutdown_timeout=5 * SECOND, drain=False, cron=False)
    loop = Loop(store, options, WORKER)

    def run():
        loop.run()
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        loop.stop()
        thread.join(PATIENCE)


def play(name, body):
    tasks.bodies[name] = body
    return tasks.play.enqueue(name)


def test_a_result_waits_for_its_end(store):
    with worker_of(store):
        result = tasks.remind.enqueue(7)
        assert result.outcome is None
        assert result.wait(LONG) is result
    assert (result.status, result.outcome) == (TaskResultStatus.SUCCESSFUL, "succeeded")
    assert result.return_value == "7 at None"


def test_many_results_wait_together(store):
    with worker_of(store):
        given = [tasks.remind.enqueue(number) for number in range(20)]
        ended = wait_all([*given, given[0]], LONG)
    assert [one.return_value for one in ended[:20]] == [f"{number} at None" for number in range(20)]


def test_results_come_as_they_end(store):
    gate = threading.Event()
    with worker_of(store):
        slow = play("slow", lambda: gate.wait(PATIENCE))
        quick = play("quick", lambda: "done")
        coming = as_completed([slow, quick], LONG)
        first = next(coming)
        gate.set()
        assert (first, *coming) == (quick, slow)


def test_the_event_loop_waits_without_a_thread(store):
    async def first_of(given):
        async for result in as_completed_async(given, LONG):
            return result.return_value
        return None

    async def main():
        values = [await first_of([await tasks.remind.aenqueue(1)])]
        values.append((await (await tasks.remind.aenqueue(2)).await_(LONG)).return_value)
        values += [one.return_value for one in await await_all([await tasks.remind.aenqueue(3)], LONG)]
        await sync_to_async(connections.close_all)()
        return values

    with worker_of(store):
        assert asyncio.run(main()) == ["1 at None", "2 at None", "3 at None"]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_on_postgresql_an_end_wakes_who_waits(store, alias, monkeypatch, way):
    if alias != "postgresql":
        return

    def body():
        while store._ends[0] < time.monotonic():
            time.sleep(0.01)

    async def main(result):
        await result.await_(LONG)
        await sync_to_async(connections.close_all)()

    with worker_of(store):
        tasks.nothing.enqueue().wait(LONG)  # from now on, the worker listens
        monkeypatch.setattr(waiting, "FIRST", 600.0)  # it would ask again when its patience is over
        monkeypatch.setattr(waiting, "LONGEST", 600.0)
        store._ends[0] = 0.0
        result = play("told", body)
        result.wait(LONG) if way == "sync" else asyncio.run(main(result))
    assert result.outcome == "succeeded"


def test_workers_tell_nobody_while_nobody_waits(store, connection):
    with CaptureQueriesContext(connection) as queries:
        store.tell_ends()
    assert not queries.captured_queries


def test_questions_become_rare():
    waits = waiting._Unended([], None)
    pauses = [waits._patience() for _ in range(15)]
    assert pauses[0] == waiting.FIRST
    assert pauses[-1] == waiting.LONGEST
    assert pauses == sorted(pauses)


def test_after_each_question_it_sleeps_also_if_something_had_ended(alias, monkeypatch):
    asked, given = [], [tasks.echo.enqueue(number) for number in range(3)]
    ask = waiting._ended
    monkeypatch.setattr(waiting, "_ended", lambda *of: asked.append(of) or ask(*of))
    monkeypatch.setattr(waiting._Unended, "sleep", lambda _: run_due(limit=1))
    assert list(as_completed(given)) == given
    assert len(asked) == 4


def test_a_timeout_says_how_many_had_not_ended(store):
    given = [tasks.remind.enqueue(1), tasks.remind.enqueue(2)]
    with pytest.raises(TimeoutError, match="2 of the messages did not end within the timeout"):
        wait_all(given, timedelta(seconds=0.05))
    with pytest.raises(TypeError, match="A timeout is a timedelta or None, not 5"):
        given[0].wait(5)


def test_what_is_no_result_is_refused_with_the_way_to_one(alias):
    scheduled = tasks.nothing.enqueue_many([((), {})] * 2)
    with pytest.raises(TypeError, match=r"as `enqueue` and `task.get_result\(id\)` return them, not Scheduled"):
        wait_all(scheduled)
    run_due()
    results = wait_all(tasks.nothing.get_result(one.id) for one in scheduled)
    assert [one.outcome for one in results] == ["succeeded"] * 2


def test_no_end_is_waited_for_in_a_transaction(store, alias):
    result = tasks.remind.enqueue(7)
    with transaction.atomic(using=alias):
        with pytest.raises(RuntimeError, match=f"A transaction on '{alias}' may not see"):
            result.wait()
        run_due()
        assert result.wait().return_value == "7 at None"


def test_a_message_that_was_deleted_has_no_result(store):
    result = tasks.remind.enqueue(7)
    Message.objects.all().delete()
    with pytest.raises(TaskResultDoesNotExist):
        result.wait(SECOND)


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_a_result_says_how_its_message_ended(alias, how):
    if how == "cancelled":
        id_ = tasks.remind.schedule_in(SECOND, 7, key="a").id
        tasks.remind.unschedule(key="a")
    else:
        id_ = tasks.fail.using(max_attempts=1).enqueue().id
        run_due(raise_failures=False)
    result = default_task_backend.get_result(id_)
    assert (result.outcome, result.status) == (how, TaskResultStatus.FAILED)


def test_errors_have_their_attempt_and_what_they_were_raised_from(alias):
    def body():
        missing = LookupError("no gate")
        missing.__cause__ = KeyError("gate")
        raise ValueError("can't board") from missing

    result = play("chain", body)
    run_due(raise_failures=False)
    Message.objects.update(scheduled_at=Message.objects.get().created_at)
    run_due(raise_failures=False)
    result.refresh()
    assert [error.attempt for error in result.errors] == [1, 2]
    assert result.errors[1].message == "can't board"
    assert result.errors[1].chain == ("builtins.LookupError: no gate", "builtins.KeyError: 'gate'")
    assert result.errors[1].failed_at > result.errors[0].failed_at


def test_secrets_are_masked_in_the_chain_too(alias):
    tasks.pay.enqueue(7, token="s3cret")
    run_due(raise_failures=False)
    assert "s3cret" not in (Message.objects.get().errors or "")


def test_a_test_backend_that_runs_nothing_is_not_waited_for(settings, db):
    settings.TASKS = {"default": {"BACKEND": "delayedq.testing.DummyBackend"}}
    with pytest.raises(TimeoutError, match="The backend 'default' never runs its messages"):
        tasks.remind.enqueue(7).wait()
    settings.TASKS = {"default": {"BACKEND": "delayedq.testing.ImmediateBackend"}}
    assert tasks.remind.enqueue(7).wait().return_value == "7 at None"
    assert not FinishedMessage.objects.exists()


def test_what_has_ended_comes_also_when_the_time_is_over(alias):
    done = tasks.remind.enqueue(7)
    run_due()
    waits = tasks.remind.using(run_after=timezone.now() + LONG).enqueue(8)
    coming = as_completed([done, waits], timedelta(0))
    assert next(coming) is done
    with pytest.raises(TimeoutError, match="1 of the messages"):
        next(coming)

    async def together():
        given = [one async for one in _until_timeout(as_completed_async([done, waits], timedelta(0)))]
        await sync_to_async(connections.close_all)()
        return given

    assert asyncio.run(together()) == [done]


async def _until_timeout(coming):
    try:
        async for one in coming:
            yield one
    except TimeoutError:
        pass


def test_what_was_dropped_is_not_waited_for(alias):
    lost = dropped(tasks.remind, [7], {}, "default")
    done = tasks.remind.enqueue(7)
    run_due()
    assert wait_all([lost, done], timedelta(0)) == [lost, done]
    assert lost.wait(timedelta(0)).status is TaskResultStatus.FAILED


@pytest.mark.parametrize("way", ["sync", "async"])
def test_who_waits_goes_on_if_the_connection_of_its_listener_is_lost(store, alias, monkeypatch, way):
    if alias != "postgresql":
        return
    killed, lost, heard = [], threading.Event(), EndListener.heard

    def watched(listener):
        try:
            return heard(listener)
        except Error:
            lost.set()
            raise

    def body():
        with connections[alias].cursor() as cursor:
            while not killed:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND query = %s",
                    [LISTEN_TO_ENDS],
                )
                killed.extend(cursor.fetchall())
        assert lost.wait(PATIENCE)

    async def main():
        await result.await_(LONG)
        await sync_to_async(connections.close_all)()

    monkeypatch.setattr(EndListener, "heard", watched)
    with worker_of(store):
        result = play("kills", body)
        result.wait(LONG) if way == "sync" else asyncio.run(main())
    assert result.outcome == "succeeded"
