"""`run_due` and `run_until`: production's store and executor, in the transaction of a test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connections, transaction

from delayedq import Cancel, DelayedQueue, Retry, Snooze, current_message
from delayedq.exceptions import UnknownTask
from delayedq.models import CronTick, FinishedMessage, Message
from delayedq.testing import clock, run_due, run_until
from tests.app import tasks
from tests.app.models import Mark
from tests.worker.attempts import work

START = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)


@pytest.fixture
def in_test_case(alias):
    """Inside the transaction of a TestCase, on each database."""
    with transaction.atomic(using=alias):
        yield alias
        transaction.set_rollback(True, using=alias)


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
    with pytest.raises(RuntimeError, match=r"5 attempts, and tests\.app\.tasks\.play is due again"):
        run_due()


def test_a_message_replaced_or_cancelled_while_it_runs(in_test_case):
    def body():
        tasks.play.schedule_at(START, "again", key="a")

    tasks.bodies["first"], tasks.bodies["again"] = body, lambda: tasks.play.unschedule(key="a")
    tasks.play.schedule_at(START, "first", key="a")
    assert [attempt.outcome for attempt in run_due()] == ["superseded", "lease lost"]


# As a worker does

LIFECYCLE = {
    "succeeds": lambda: play(lambda: 7),
    "fails": lambda: play(raising(ValueError("no fuel")), max_attempts=1),
    "retries": lambda: play(raising(ValueError("no fuel"))),
    "asks for a retry": lambda: play(raising(Retry("busy", delay=timedelta(hours=1)))),
    "snoozes": lambda: play(raising(Snooze(timedelta(hours=1)))),
    "cancels": lambda: play(raising(Cancel("gone"))),
    "exits": lambda: play(raising(SystemExit(3)), max_attempts=1),
    "returns what can't be stored": lambda: play(object),
    "does not fit": lambda: (tasks.depart.enqueue("a", 1), Message.objects.update(payload='{"args":[1,2,3]}')),
    "exactly once": lambda: play_exactly_once(lambda: 7),
    "exactly once, fails": lambda: play_exactly_once(raising(ValueError("no fuel"))),
    "async": lambda: tasks.aecho.enqueue(7),
    "sees its message": lambda: play(lambda: current_message().attempt),
}


def row():
    """What is left of the one message, but for times and the worker."""
    live, ended = Message.objects.first(), FinishedMessage.objects.first()
    if live:
        return live.attempt, live.lease_token, [error["exception"] for error in errors(live)]
    return ended.outcome, ended.attempts, ended.result, [error["exception"] for error in errors(ended)]


def errors(message):
    from delayedq.core.error_records import known_errors

    return known_errors(message.errors)


@pytest.mark.parametrize("case", LIFECYCLE.values(), ids=LIFECYCLE)
def test_the_end_is_that_of_a_worker(store, alias, case):
    case()
    work(store)
    by_worker = row()
    Message.objects.all().delete()
    FinishedMessage.objects.all().delete()
    with transaction.atomic(using=alias):
        case()
        run_due(raise_failures=False)
        assert row() == by_worker
        transaction.set_rollback(True, using=alias)


# Time


def test_the_clock_moves_due_times_and_retries(in_test_case):
    with clock("2026-03-08 01:55", "America/New_York") as now:
        tasks.remind.schedule_in(timedelta(hours=1), 7)
        assert run_due() == []
        assert not Message.objects.due()
        now.advance(hours=1)  # 03:55: daylight saving time has begun
        assert now().hour == 3
        assert Message.objects.due().count() == 1
        assert len(run_due()) == 1

        tasks.fail.using(max_attempts=2).enqueue()
        run_due(raise_failures=False)
        assert run_due(raise_failures=False) == []
        now.advance(timedelta(hours=1))
        (attempt,) = run_due(raise_failures=False)
    assert (attempt.attempt, attempt.outcome) == (2, "failed")


def test_the_clock_moves_bare_queues_and_leases(in_test_case):
    queue = DelayedQueue("contacts", lease=timedelta(minutes=1))
    with clock(START) as now:
        queue.offer_or_update("a", 1, START + timedelta(hours=1))
        assert queue.try_poll() is None
        now.advance(hours=1)
        assert queue.try_poll().attempt == 1
        assert queue.try_poll() is None
        now.advance(minutes=1)
        assert queue.try_poll().attempt == 2


def test_what_is_stored_has_the_times_of_the_clock(in_test_case):
    with clock(START) as now:
        result = tasks.remind.enqueue(7)
        now.advance(seconds=5)
        run_due()
        result.refresh()
    assert (result.enqueued_at, result.finished_at - result.enqueued_at) == (START, timedelta(seconds=5))


def test_a_clock_goes_forward_only():
    with clock(START) as now:
        with pytest.raises(ValueError, match="forward only"):
            now.move_to("2026-03-08 00:00+00:00")
        with pytest.raises(ValueError, match="forward only"):
            now.advance(hours=-1)
        assert now() == START


def test_everything_up_to_a_moment_is_played_in_order(in_test_case, settings):
    settings.DELAYEDQ = {
        "CRON": {"daily": {"task": "tests.app.tasks.nothing", "cron": "30 2 * * *", "timezone": "America/New_York"}}
    }
    with clock("2026-03-07 12:00", "America/New_York") as now:
        tasks.remind.schedule_in(timedelta(hours=20), 7)
        attempts = run_until("2026-03-10 12:00")
        assert now() == datetime.fromisoformat("2026-03-10T12:00:00-04:00")
    assert [attempt.task.rpartition(".")[2] for attempt in attempts] == ["nothing", "remind", "nothing", "nothing"]
    assert CronTick.objects.exists()


def test_a_year_of_a_daily_schedule(in_test_case, settings):
    """Moments are local ones with changes of clocks among them, over which delayedq counts as its database does."""
    settings.DELAYEDQ = {
        "CRON": {"daily": {"task": "tests.app.tasks.nothing", "cron": "30 2 * * *", "timezone": "America/New_York"}}
    }
    with clock("2026-01-01", "America/New_York"):
        assert len(run_until("2027-01-01")) == 365


def test_without_a_clock_no_time_is_played(in_test_case):
    with pytest.raises(RuntimeError, match=r"with delayedq\.testing\.clock"):
        run_until(START)
    with clock(START), pytest.raises(ValueError, match="already"):
        run_until(START - timedelta(days=1))


# What leads here


def test_run_workers_refuses_inside_a_transaction(in_test_case):
    with pytest.raises(CommandError, match=r"inside a transaction.* delayedq\.testing\.run_due\(\)"):
        call_command("run_workers", drain=True)
    assert connections[in_test_case].in_atomic_block


def test_run_workers_refuses_a_database_in_memory(django_db_setup, django_db_blocker, monkeypatch):
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", ":memory:")
    with pytest.raises(CommandError, match=r"in memory.* delayedq\.testing\.run_due\(\)"):
        call_command("run_workers", drain=True, skip_checks=True)
