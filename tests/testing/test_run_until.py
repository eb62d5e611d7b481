"""The clock of a test, and `run_until`: by it all is stored, due, leased, retried, placed by cron, and pruned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from delayedq import Cancel, DelayedQueue
from delayedq.compat import default_task_backend, task_finished
from delayedq.models import CronTick, FinishedMessage, Message
from delayedq.signals import tick_missed
from delayedq.testing import clock, run_due, run_until
from tests.app import tasks
from tests.worker.attempts import drained

START = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DAILY = {"task": "tests.app.tasks.nothing", "cron": "30 2 * * *", "timezone": "America/New_York"}


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
        with pytest.raises(ValueError, match="can only move forward"):
            now.move_to("2026-03-08 00:00+00:00")
        with pytest.raises(ValueError, match="can only move forward"):
            now.advance(hours=-1)
        assert now() == START


def test_everything_up_to_a_moment_is_played_in_order(in_test_case, settings):
    settings.DELAYEDQ = {"CRON": {"daily": DAILY}}
    with clock("2026-03-07 12:00", "America/New_York") as now:
        tasks.remind.schedule_in(timedelta(hours=20), 7)
        attempts = run_until("2026-03-10 12:00")
        assert now() == datetime.fromisoformat("2026-03-10T12:00:00-04:00")
    assert [attempt.task.rpartition(".")[2] for attempt in attempts] == ["nothing", "remind", "nothing", "nothing"]
    assert CronTick.objects.exists()


@pytest.mark.slow
@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_year_of_a_daily_schedule(in_test_case, settings):
    """Moments are local ones with changes of clocks among them, over which delayedq counts as its database does."""
    settings.DELAYEDQ = {"CRON": {"daily": DAILY}}
    with clock("2026-01-01", "America/New_York"):
        assert len(run_until("2027-01-01")) == 365


def test_a_later_day_costs_what_an_earlier_one_costs(in_test_case, settings):
    """Neither the tombstones of ticks nor the history that is kept for RETENTION is walked over."""
    settings.DELAYEDQ = {"CRON": {"daily": DAILY}, "RETENTION": 5 * DAY}
    days = [f"2026-{day}" for day in ("10-25", "10-28", "11-07", "11-10")]
    with clock("2026-10-22", "America/New_York"):
        run_until(days[0])
        costs = []
        for day in days[1:]:
            with CaptureQueriesContext(connections[in_test_case]) as statements:
                played = run_until(day)
            costs.append(len(statements) / len(played))
    assert costs[2] <= costs[0] + 1
    assert costs[0] < 60


def test_history_is_pruned_and_dead_letters_stay(in_test_case, settings):
    settings.DELAYEDQ = {"RETENTION": 2 * DAY}
    with clock(START):
        tasks.remind.enqueue(7)
        tasks.fail.using(max_attempts=1).enqueue()
        tasks.remind.schedule_at(START + DAY, 8)
        tasks.remind.schedule_at(START + 4 * DAY, 9)
        run_until(START + 2 * DAY - HOUR, raise_failures=False)
        assert FinishedMessage.objects.count() == 3
        run_until(START + 2 * DAY + HOUR)
        assert sorted(row.outcome for row in FinishedMessage.objects.all()) == ["failed", "succeeded"]
        assert [attempt.args for attempt in run_until(START + 5 * DAY)] == [[9]]
    assert sorted(row.outcome for row in FinishedMessage.objects.all()) == ["failed", "succeeded"]


def run_in_test(store):
    run_due()


@pytest.mark.parametrize("runs", [run_in_test, drained])
@pytest.mark.parametrize("when", ["2013-05-20 12:00", "2040-05-20 12:00"])
def test_a_tick_that_was_missed_is_cancelled_and_its_task_is_finished_once(store, settings, runs, when):
    """By the clock of the test, whatever that of this host shows."""
    settings.DELAYEDQ = {"CRON": {"daily": {**DAILY, "misfire": "skip"}}}
    told = []
    task_finished.connect(finished := lambda task_result, **_: told.append(("finished", task_result)))
    tick_missed.connect(missed := lambda nominal_at, **_: told.append(("missed", nominal_at)))
    try:
        with clock(when, "UTC") as now:
            assert run_until(now()) == []
            due_at = Message.objects.get().scheduled_at
            now.move_to(due_at + HOUR)
            runs(store)
    finally:
        task_finished.disconnect(finished)
        tick_missed.disconnect(missed)
    assert [name for name, _ in told] == ["missed", "finished"]
    assert told[0][1] == due_at
    result, stored = told[1][1], default_task_backend.get_result(told[1][1].id)
    assert (result.status, result.started_at, result.attempts) == ("FAILED", None, 0)
    assert (stored.status, stored.started_at, stored.attempts) == ("FAILED", None, 0)
    assert [error.exception_class for error in result.errors] == [Cancel]
    assert FinishedMessage.objects.get().outcome == "cancelled"


def test_without_a_clock_no_time_is_played(in_test_case):
    with pytest.raises(RuntimeError, match=r"with delayedq\.testing\.clock"):
        run_until(START)
    with clock(START), pytest.raises(ValueError, match="already"):
        run_until(START - timedelta(days=1))
