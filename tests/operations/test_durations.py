"""How long messages waited and ran, by task and by queue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq.models import FinishedMessage
from delayedq.operations import counting
from delayedq.operations import figures as figures_module
from delayedq.operations.figures import Span, durations, figures
from delayedq.sql.waits import waited

NOW = datetime(2026, 5, 20, 9, 37, 30, tzinfo=UTC)


def ended(id_, wait, run, *, ago=60.0, **fields):
    """A message that waited and ran so many seconds; `wait` None: it never started."""
    at = NOW - timedelta(seconds=ago)
    started = at - timedelta(seconds=run)
    return FinishedMessage(
        id=id_,
        finished_at=at,
        started_at=None if wait is None else started,
        scheduled_at=started - timedelta(seconds=wait or 0),
        **{
            "scheduled_at_initially": at,
            "created_at": at,
            "priority": 0,
            "attempts": 1,
            "max_attempts": 1,
            "outcome": "succeeded",
            "queue": "mail",
            "kind": "tests.remind",
            "payload": "{}",
        }
        | fields,
    )


def shifted(row, by):
    """The same, so much later."""
    for name in ("finished_at", "started_at", "scheduled_at"):
        setattr(row, name, getattr(row, name) + by)
    return row


def stored_as_of_now(store, rows):
    """Store them as if NOW were now."""
    shift = store.now() - NOW
    FinishedMessage.objects.bulk_create(shifted(row, shift) for row in rows)


def test_waits_and_runs_of_a_task(store):
    rows = [ended(n, wait=n, run=10 * n) for n in range(1, 101)]
    rows += [ended(200, None, 0, outcome="cancelled"), ended(201, 5, 5, outcome="superseded")]
    rows += [ended(202, 1, 1, ago=7200.0), ended(203, 7, 9, kind="tests.other", queue="other", outcome="failed")]
    FinishedMessage.objects.bulk_create(rows)

    found = durations(store, Span.HOUR, NOW)

    remind, other = found.tasks
    assert (remind.name, remind.ended, remind.failed) == ("tests.remind", 101, 0)
    assert [remind.wait_p50, remind.wait_p95, remind.run_p50, remind.run_p95, remind.slowest] == pytest.approx(
        [50, 95, 500, 950, 1000], abs=0.01
    )
    assert (other.name, other.ended, other.failed) == ("tests.other", 1, 1)
    assert [other.wait_p50, other.run_p95] == pytest.approx([7, 9], abs=0.01)
    assert [(one.name, one.ended) for one in found.queues] == [("mail", 101), ("other", 1)]
    assert found.one_in == 1.0
    assert found.span == timedelta(minutes=59, seconds=30)


def test_what_never_started_has_no_durations(store):
    FinishedMessage.objects.bulk_create([ended(1, None, 0, outcome="cancelled")])
    (only,) = durations(store, Span.HOUR, NOW).tasks
    assert (only.ended, only.wait_p50, only.run_p95, only.slowest) == (1, None, None, None)


def test_what_was_moved_to_a_later_time_after_its_start_has_no_wait(store):
    rows = [ended(n, wait=n, run=1) for n in range(1, 5)] + [ended(9, wait=-0.4, run=1)]
    rows += [ended(10 + n, wait=-7 * 3600, run=3) for n in range(20)]
    FinishedMessage.objects.bulk_create(rows)

    (one,) = durations(store, Span.HOUR, NOW).tasks
    assert (one.ended, one.wait_p50, one.wait_p95) == (25, pytest.approx(2, abs=0.01), pytest.approx(4, abs=0.01))
    assert (one.run_p95, one.slowest) == (pytest.approx(3, abs=0.01),) * 2
    buckets = figures(store, Span.HOUR, NOW).buckets
    assert [bucket.p95 for bucket in buckets if bucket.ended] == [pytest.approx(4, abs=0.01)]
    assert waited(rows[4].scheduled_at, rows[4].started_at) == 0
    assert waited(rows[5].scheduled_at, rows[5].started_at) is None


def test_only_moved_messages_have_no_latency_at_all(store):
    FinishedMessage.objects.bulk_create([ended(1, wait=-60, run=3)])
    (one,) = durations(store, Span.HOUR, NOW).tasks
    assert (one.wait_p50, one.wait_p95, one.run_p50) == (None, None, pytest.approx(3, abs=0.01))


def test_nothing_ended(store):
    assert durations(store, Span.WEEK, NOW).tasks == []


def test_of_many_a_sample_is_read_and_counts_are_estimates(store, monkeypatch):
    monkeypatch.setattr(counting, "MOST", 200)
    FinishedMessage.objects.bulk_create([ended(n, 1, 2, ago=n) for n in range(1, 3001)], batch_size=500)
    found = durations(store, Span.HOUR, NOW)
    assert found.one_in > 5
    assert found.tasks[0].ended == pytest.approx(3000, rel=0.4)
    assert found.tasks[0].run_p50 == pytest.approx(2, abs=0.01)


def test_the_sample_is_no_larger_where_there_are_more_tasks_than_are_told(store, monkeypatch):
    monkeypatch.setattr(counting, "MOST", 200)
    monkeypatch.setattr(figures_module, "MOST", 2)
    rows = [ended(n, 1, 2, ago=n, kind=f"tests.task{n % 100}") for n in range(1, 3001)]
    FinishedMessage.objects.bulk_create(rows, batch_size=500)
    found = durations(store, Span.HOUR, NOW)
    assert len(found.tasks) == 2
    assert found.tasks[0].of_all <= 200
