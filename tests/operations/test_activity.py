"""What goes on now: figures of the last ten minutes, busy threads, the backlog, and what comes next."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq.core.outlook import Trend
from delayedq.models import CronSchedule, FinishedMessage, Message
from delayedq.operations import activity as module
from delayedq.operations import workers
from delayedq.operations.activity import activity, next_messages, next_ticks
from delayedq.operations.pauses import pause, pause_task
from delayedq.store import worker_registry
from delayedq.store.protocol import ClaimRequest, Lane
from tests.admin.given import run
from tests.store.given import LEASE, message
from tests.store.test_worker_registry import worker


def ended(number, now, *, ago, wait=1.0, ran=2.0, queue="mail", outcome="succeeded"):
    at = now - timedelta(seconds=ago)
    started = at - timedelta(seconds=ran)
    return FinishedMessage(
        id=1_000_000 + number,
        finished_at=at,
        started_at=started,
        scheduled_at=started - timedelta(seconds=wait),
        scheduled_at_initially=at,
        created_at=at,
        priority=0,
        attempts=1,
        max_attempts=1,
        outcome=outcome,
        queue=queue,
        kind="tests.remind",
        payload="{}",
    )


def waiting(store, now, number, *, ago=3600, **fields):
    for one in range(number):
        store.offer(message(f"{fields}{ago}{one}", scheduled_at=now - timedelta(seconds=ago), **fields))


@pytest.fixture
def now(store):
    return store.now()


def test_throughput_latency_and_busy_threads_of_the_last_ten_minutes(store, now):
    rows = [ended(number, now, ago=60, ran=30.0, wait=4.0) for number in range(10)]
    rows += [ended(10, now, ago=60, outcome="failed"), ended(11, now, ago=60, outcome="superseded")]
    rows += [ended(12, now, ago=700)]
    FinishedMessage.objects.bulk_create(rows)
    worker_registry(store.alias).heartbeat([worker("w1", threads=8)])
    found = activity(store, store.now())
    assert (found.ended, found.failed, found.window) == (11, 1, pytest.approx(600, abs=5))
    assert (found.p50, found.p95) == (4.0, 4.0)
    assert found.average == pytest.approx(302 / 600, abs=0.01)
    assert (found.busy, found.threads) == (0, 8)
    assert [(one.name, one.threads) for one in found.queues] == [("mail", 8)]


def test_what_runs_still_is_busy_since_it_was_claimed(store, now):
    """Else threads that run tasks of an hour would be idle on average."""
    for key in "ab":
        store.offer(message(key, scheduled_at=None))
    ids = [run(store).id for _ in "ab"]
    Message.objects.filter(id=ids[0]).update(claimed_at=now - timedelta(hours=1))
    Message.objects.filter(id=ids[1]).update(claimed_at=now - timedelta(minutes=5))
    worker_registry(store.alias).heartbeat([worker("w1", threads=2, running=str(ids))])
    found = activity(store, store.now())
    assert (found.busy, found.average) == (2, pytest.approx(1.5, abs=0.05))
    assert [one.average for one in found.queues] == [pytest.approx(1.5, abs=0.05)]


def test_threads_of_a_queue_are_those_of_the_workers_that_serve_it(store, now):
    waiting(store, now, 2)
    ids = list(Message.objects.values_list("pk", flat=True))
    registry = worker_registry(store.alias)
    registry.heartbeat([worker("w1", threads=8, queues="mail", running=f"{ids}", held=2)])
    registry.heartbeat([worker("w2", threads=4, queues="sms")])
    found = activity(store, store.now())
    assert [(one.name, one.busy, one.threads) for one in found.queues] == [("mail", 2, 8)]
    assert [(one.name, one.busy, one.threads) for one in found.workers] == [("w1", 2, 8), ("w2", 0, 4)]


@pytest.fixture
def thirty_workers(store):
    """Each has 100 threads; the first 20 run 60 messages each, the others 80: 2,000 in all."""
    store.offer_many([message(f"{n}", scheduled_at=None) for n in range(2_000)])
    ids = [one.id for one in store.claim(ClaimRequest([Lane("mail", 0)], 2_000, LEASE, "w"))]
    sizes = [60] * 20 + [80] * 10
    held = [[ids.pop() for _ in range(size)] for size in sizes]
    worker_registry(store.alias).heartbeat(
        [worker(f"w-{n:02}", threads=100, running=f"{one}") for n, one in enumerate(held)]
    )


def test_busy_threads_of_a_queue_are_all_that_run_in_it(store, thirty_workers, monkeypatch):
    monkeypatch.setattr(module, "MOST", 500)
    monkeypatch.setattr(module, "AT_ONCE", 600)
    found = activity(store, store.now())
    assert (found.busy, found.threads, found.is_whole) == (2_000, 3_000, True)
    assert [(one.name, one.busy, one.threads) for one in found.queues] == [("mail", 2_000, 3_000)]


def test_the_workers_are_those_with_the_largest_share_of_busy_threads(store, thirty_workers):
    registry = worker_registry(store.alias)
    registry.heartbeat([worker("x", threads=2, running=f"{[*Message.objects.values_list('pk', flat=True)[:2]]}")])
    found = activity(store, store.now())
    assert [one.name for one in found.workers] == ["x", *(f"w-{n}" for n in range(20, 29))]
    assert (found.of_workers, found.of_queues) == (31, 1)


def test_beyond_a_bound_at_least_so_many_are_busy(store, thirty_workers, monkeypatch):
    monkeypatch.setattr(workers, "MOST_RUNNING", 1_500)
    found = activity(store, store.now())
    assert (found.busy, found.queues[0].busy, found.is_whole) == (2_000, 1_500, False)


def test_a_backlog_that_shrinks_steadily_has_an_end(store, now):
    waiting(store, now, 20)
    rows = [ended(n, now, ago=30 + 60 * (n % 10), wait=3_600.0) for n in range(20)]
    FinishedMessage.objects.bulk_create(rows)
    found = activity(store, now).outlook
    assert found.trend == Trend.SHRINKS
    assert found.about == pytest.approx(600, rel=0.1)  # two a minute


def test_a_backlog_that_grows_has_none(store, now):
    waiting(store, now, 20, ago=30)
    FinishedMessage.objects.bulk_create([ended(1, now, ago=60)])
    assert activity(store, now).outlook.trend in {Trend.STAYS, Trend.UNSURE}
    assert activity(store, now).outlook.about is None


def test_more_that_fell_due_than_is_read_does_not_shrink(store, now, monkeypatch):
    monkeypatch.setattr(module, "MOST", 5)
    waiting(store, now, 8, ago=30)
    assert activity(store, now).outlook.trend == Trend.STAYS


def test_with_many_ends_the_window_is_shorter(store, now, monkeypatch):
    monkeypatch.setattr(module, "MOST", 5)
    FinishedMessage.objects.bulk_create([ended(n, now, ago=10 * n + 10) for n in range(20)])
    found = activity(store, now)
    assert (found.window, found.ended) == (pytest.approx(50, abs=2), 5)


def test_what_is_paused_is_no_backlog(store, now):
    waiting(store, now, 3, queue="mail")
    waiting(store, now, 2, queue="sms", kind="tests.other")
    assert activity(store, now).due.number == 5
    pause("mail", store=store)
    assert activity(store, now).due.number == 2
    pause_task("tests.other", store=store)
    assert activity(store, now).outlook.trend == Trend.EMPTY


def test_what_comes_next_is_in_the_order_of_time(store, now):
    for hours in (3, 1, 2, 4, -1):
        store.offer(message(f"{hours}", scheduled_at=now + timedelta(hours=hours), queue=f"q{hours}"))
    assert [row.key for row in next_messages(store, now)] == ["1", "2", "3", "4"]
    for name, hours in (("past", -1), ("later", 2), ("soon", 1)):
        CronSchedule.objects.create(
            owner="", name=name, config_hash="x", covered_until=now, next_at=now + timedelta(hours=hours)
        )
    assert [name for _, name in next_ticks(store, now)] == ["soon", "later"]
