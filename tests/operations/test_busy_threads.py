"""How many threads were busy over the last hour, day or week, by queue and by worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq.models import FinishedMessage
from delayedq.operations import busy_threads as module
from delayedq.operations import counting
from delayedq.operations.busy_threads import BusySpan, busy_threads
from delayedq.store import worker_registry
from tests.operations.test_durations import ended, shifted
from tests.store.test_worker_registry import worker

#: On a whole hour, so that the last bucket of a day has just begun: it has 30 minutes.
NOW = datetime(2026, 5, 20, 9, 30, tzinfo=UTC)
MINUTE = 60.0


def ran(id_, began, seconds, **fields):
    """A message whose attempt began so many minutes before NOW."""
    at = began * MINUTE - seconds
    shift = NOW - datetime(2026, 5, 20, 9, 37, 30, tzinfo=UTC)
    return shifted(ended(id_, 0, seconds, ago=at, **{"worker": "w1", **fields}), shift)


def of(rows, name):
    return next(row for row in rows if row.name == name)


def test_a_run_is_divided_among_the_hours_in_which_it_ran(store):
    # From 7:15 to 9:15: three quarters of an hour, an hour, and a quarter of the half hour that has passed.
    FinishedMessage.objects.bulk_create([ran(1, 135, 2 * 3600), ran(2, 135, 2 * 3600), ran(3, 120, 6 * MINUTE)])

    found = busy_threads(store, BusySpan.DAY, NOW)

    (mail,) = found.queues
    assert [round(one, 3) for one in mail.buckets[-4:]] == [0, 1.6, 2, 1]
    assert sum(mail.buckets[:-4]) == 0
    assert mail.average == pytest.approx((4 * 3600 + 6 * MINUTE) / (23.5 * 3600), abs=0.001)
    assert found.all.buckets == mail.buckets
    assert found.starts[-1] == NOW.replace(minute=0)
    assert found.one_in == 1.0


def test_what_began_before_the_span_counts_from_its_beginning(store):
    FinishedMessage.objects.bulk_create([ran(1, 30 * 60, 7 * 3600)])  # from 3:30 to 10:30 on the day before
    (mail,) = busy_threads(store, BusySpan.DAY, NOW).queues
    assert [round(one, 3) for one in mail.buckets[:2]] == [0.5, 0]


def test_by_queue_and_by_worker_with_the_threads_that_there_are_now(store):
    rows = [ran(1, 50, 600, queue="sms"), ran(2, 50, 1800), ran(3, 50, 1800, worker="gone")]
    rows += [ran(4, 50, 1200, queue="a|json", kind="a|json", worker="code"), ran(5, 50, 60, outcome="superseded")]
    rows += [ended(6, None, 0, outcome="cancelled", worker=None)]
    FinishedMessage.objects.bulk_create(rows)
    registry = worker_registry(store.alias).at(NOW)
    registry.heartbeat([worker("w1", threads=8, queues="mail"), worker("w2", threads=4)])

    found = busy_threads(store, BusySpan.DAY, NOW)

    assert [(row.name, row.threads) for row in found.queues] == [("mail", 12), ("sms", 4)]
    assert [(row.name, row.threads) for row in found.workers] == [("w1", 8), ("gone", None)]
    assert found.all.threads == 12
    seconds = [round(row.average * 23.5 * 3600) for row in (found.all, *found.queues, *found.workers)]
    assert seconds == [4260, 3660, 600, 2460, 1800]


def test_beyond_the_busiest_there_is_one_row_of_the_others(store, monkeypatch):
    monkeypatch.setattr(module, "SHOWN", 2)
    FinishedMessage.objects.bulk_create([ran(n, 50, n * MINUTE, queue=f"q{n}") for n in range(1, 6)])
    found = busy_threads(store, BusySpan.HOUR, NOW)
    assert [row.name for row in found.queues] == ["q5", "q4"]
    assert found.other_queues.number == 3
    others, every = found.other_queues.average, found.all.average
    assert others == pytest.approx(every * 6 / 15, abs=0.001)


def test_of_many_a_sample_is_read(store, monkeypatch):
    monkeypatch.setattr(counting, "MOST", 200)
    rows = [ran(n, n / 60 + 1, 3, queue=f"q{n % 50}") for n in range(1, 3001)]
    FinishedMessage.objects.bulk_create(rows, batch_size=500)
    found = busy_threads(store, BusySpan.HOUR, NOW)
    assert found.one_in > 5
    assert sum(found.all.buckets) * 300 == pytest.approx(9000, rel=0.4)


def test_nothing_ended(store):
    found = busy_threads(store, BusySpan.WEEK, NOW)
    assert (found.queues, found.workers, found.all.average) == ([], [], 0)


def test_clocks_that_differ_make_no_thread_busy_for_less_than_no_time(store):
    FinishedMessage.objects.bulk_create([ran(1, 50, -3), ran(2, 90, 1)])
    found = busy_threads(store, BusySpan.DAY, NOW)
    assert min(found.all.buckets) == 0
    assert found.all.average == pytest.approx(1 / (23.5 * 3600), rel=0.1)
    assert timedelta(hours=24) - found.elapsed == timedelta(minutes=30)
