"""`run_due` and `run_until`: production's store and executor, in the transaction of a test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connections, transaction

from delayedq import DelayedQueue, Snooze
from delayedq.exceptions import UnknownTask
from delayedq.models import FinishedMessage, Message
from delayedq.testing import run_due
from tests.app import tasks
from tests.app.models import Mark

START = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)


def play(body, **options):
    name = f"run_due {id(body)}"
    tasks.bodies[name] = body
    return tasks.play.using(**options).enqueue(name)


def raising(error):
    def body():
        raise error

    return body


def test_what_is_due_runs(in_test_case):
    result = tasks.remind.enqueue(7, gate="B7")
    tasks.remind.schedule_in(timedelta(hours=1), 8)
    (attempt,) = run_due()
    assert (attempt.outcome, attempt.task, attempt.args, attempt.kwargs) == (
        "succeeded", "tests.app.tasks.remind", [7], {"gate": "B7"},
    )  # fmt: skip
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", "7 at B7")
    assert Message.objects.count() == 1


def test_async_tasks_run(in_test_case):
    result = tasks.aecho.enqueue(7)
    run_due()
    result.refresh()
    assert result.return_value == {"args": [7], "kwargs": {}}


@pytest.mark.parametrize("exactly_once", [False, True])
def test_writes_and_callbacks_take_effect(in_test_case, exactly_once):
    called = []

    def body():
        Mark.objects.create(name="written")
        transaction.on_commit(lambda: called.append(Mark.objects.count()), using=in_test_case)

    play_exactly_once(body) if exactly_once else play(body)
    run_due()
    assert (Mark.objects.count(), called) == (1, [1])


def play_exactly_once(body):
    tasks.bodies["once"] = body
    return tasks.play_once.enqueue("once")


def test_an_exactly_once_task_that_fails_has_written_nothing(in_test_case):
    def body():
        Mark.objects.create(name="written")
        raise ValueError

    play_exactly_once(body)
    (attempt,) = run_due(raise_failures=False)
    assert attempt.outcome == "retry"
    assert not Mark.objects.exists()


def test_a_statement_that_failed_does_not_break_the_test(in_test_case):
    def body():
        Message.objects.create(id=None, scheduled_at=None)

    play(body)
    (attempt,) = run_due(raise_failures=False)
    assert isinstance(attempt.error, IntegrityError)
    assert Message.objects.get().attempt == 1


def test_a_failure_is_raised_and_recorded(in_test_case):
    result = tasks.fail.enqueue("no fuel")
    with pytest.raises(ValueError, match="no fuel"):
        run_due()
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 1)


@pytest.mark.parametrize(("exactly_once", "outcome"), [(False, "retry"), (True, "succeeded")])
def test_a_callback_that_fails_is_raised_and_its_attempt_recorded(in_test_case, exactly_once, outcome):
    """As in a worker: a task that commits by itself raises it, an exactly-once one has succeeded by then."""

    def body():
        transaction.on_commit(raising(ZeroDivisionError("late")), using=in_test_case)

    enqueue = play_exactly_once if exactly_once else play
    enqueue(body)
    with pytest.raises(ZeroDivisionError, match="late"):
        run_due()
    Message.objects.all().delete()
    enqueue(body)
    (attempt,) = run_due(raise_failures=False)
    assert (attempt.outcome, str(attempt.error)) == (outcome, "late")


def test_what_tasks_enqueue_is_followed(in_test_case):
    def body():
        tasks.remind.enqueue(1)

    play(body)
    assert [attempt.task.rpartition(".")[2] for attempt in run_due()] == ["play", "remind"]
    play(body)
    assert len(run_due(follow=False)) == 1
    assert Message.objects.get().kind == "tests.app.tasks.remind"


def test_a_queue_and_a_limit(in_test_case):
    for number in range(3):
        tasks.remind.enqueue(number)
    tasks.send.enqueue("gate")
    assert [attempt.queue for attempt in run_due("mail")] == ["mail"]
    assert len(run_due(limit=2)) == 2
    assert len(run_due()) == 1
    assert run_due() == []


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_under_one_is_refused(limit):
    with pytest.raises(ValueError, match=f"at least 1 attempt; its limit is {limit}"):
        run_due(limit=limit)


@pytest.mark.parametrize("name", ["DummyBackend", "ImmediateBackend"])
def test_a_test_backend_is_named_rather_than_nothing_run(settings, name):
    settings.TASKS = {"default": {"BACKEND": f"delayedq.testing.{name}"}}
    with pytest.raises(RuntimeError, match=rf"TASKS\['default'\] is {name}\. Use delayedq\.backend\.DelayedQBackend"):
        run_due()


def test_ctrl_c_stops_the_test(in_test_case):
    play(raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run_due(raise_failures=False)


def test_a_higher_priority_goes_first(in_test_case):
    tasks.remind.using(priority=-5).enqueue(1)
    tasks.remind.using(priority=5).enqueue(2)
    assert [attempt.args for attempt in run_due()] == [[2], [1]]


def test_bare_queues_are_left_alone(in_test_case):
    DelayedQueue("contacts").offer_or_update("a", 1)
    assert run_due() == []


def test_an_unknown_task_fails(in_test_case):
    tasks.nothing.enqueue()
    Message.objects.update(kind="no.such.task")
    with pytest.raises(UnknownTask):
        run_due()
    assert FinishedMessage.objects.get().outcome == "failed"


def test_a_task_without_end_is_named(in_test_case, monkeypatch):
    monkeypatch.setattr("delayedq.testing.running.MOST", 5)
    play(raising(Snooze(timedelta())))
    with pytest.raises(RuntimeError, match=r"After 5 attempts, tests\.app\.tasks\.play is due again"):
        run_due()


def test_a_message_replaced_or_cancelled_while_it_runs(in_test_case):
    def body():
        tasks.play.schedule_at(START, "again", key="a")

    tasks.bodies["first"], tasks.bodies["again"] = body, lambda: tasks.play.unschedule(key="a")
    tasks.play.schedule_at(START, "first", key="a")
    assert [attempt.outcome for attempt in run_due()] == ["superseded", "lease lost"]


# What leads here


def test_run_workers_refuses_inside_a_transaction(in_test_case):
    with pytest.raises(CommandError, match=r"inside a transaction.* delayedq\.testing\.run_due\(\)"):
        call_command("run_workers", drain=True)
    assert connections[in_test_case].in_atomic_block


def test_run_workers_refuses_a_database_in_memory(django_db_setup, django_db_blocker, monkeypatch):
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", ":memory:")
    with pytest.raises(CommandError, match=r"in memory.* delayedq\.testing\.run_due\(\)"):
        call_command("run_workers", drain=True, skip_checks=True)


def test_what_waits_in_a_channel_behind_cancelled_messages_runs(in_test_case):
    for key in "ab":
        tasks.deliver.schedule_in(timedelta(), "acme", key=key)
    tasks.deliver.enqueue("acme")
    assert all(tasks.deliver.unschedule(key=key) for key in "ab")

    assert [attempt.key for attempt in run_due()] == [None]
