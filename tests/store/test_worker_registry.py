"""The worker registry, and paused queues, in each store."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from delayedq.models import PausedQueue, Worker
from delayedq.store import worker_registry
from delayedq.store.protocol import ClaimRequest, Lane
from delayedq.store.registry import WorkerState
from tests.store.given import LANE, LEASE, NOW, at, claim, message, succeed, together

HOUR = timedelta(hours=1)


def worker(name="host:1", **fields):
    return WorkerState(
        **{"name": name, "host": "host", "pid": 1, "threads": 4, "queues": "", "lease": 60.0, "age": 5.5} | fields
    )


def pause(queue):
    PausedQueue.objects.create(queue=queue, paused_at=NOW)


# Workers


def test_a_worker_that_is_seen_has_a_row(store):
    worker_registry(store.alias).at(NOW).heartbeat([worker(queues="mail,ключ %s", held=3, running="[1, 2]")])
    row = Worker.objects.get()
    assert (row.name, row.host, row.pid, row.threads, row.queues) == ("host:1", "host", 1, 4, "mail,ключ %s")
    assert (row.lease, row.held, json.loads(row.running)) == (60.0, 3, [1, 2])
    assert (row.started_at, row.seen_at) == (at(-5.5), NOW)


def test_a_worker_that_is_seen_again_is_the_same_row(store):
    worker_registry(store.alias).at(NOW).heartbeat([worker()])
    worker_registry(store.alias).at(at(10)).heartbeat([worker(age=15.5, held=7, running="[9]"), worker("host:2")])
    first, second = Worker.objects.order_by("name")
    assert (first.started_at, first.seen_at, first.held, first.running) == (at(-5.5), at(10), 7, "[9]")
    assert second.name == "host:2"


def test_another_process_under_the_same_name_starts_anew(store):
    worker_registry(store.alias).at(NOW).heartbeat([worker(threads=4)])
    worker_registry(store.alias).at(at(100)).heartbeat([worker(threads=9, age=0.0)])
    row = Worker.objects.get()
    assert (row.threads, row.started_at) == (9, at(100))


def test_names_of_workers_compare_exactly(store):
    worker_registry(store.alias).at(NOW).heartbeat([worker("A"), worker("a"), worker("a ")])
    assert Worker.objects.count() == 3


def test_without_a_moment_the_clock_is_the_store_s(store):
    before = store.now()
    worker_registry(store.alias).heartbeat([worker()])
    # SQLite writes thousandths of a second.
    assert before - timedelta(milliseconds=1) <= Worker.objects.get().seen_at <= store.now()


def test_to_be_seen_is_one_statement_however_many_there_are(store):
    with CaptureQueriesContext(connections[store.alias]) as captured:
        worker_registry(store.alias).at(NOW).heartbeat([worker(f"host:{number}") for number in range(100)])
    assert len(captured) == 1


def test_a_worker_that_leaves_is_gone(store):
    worker_registry(store.alias).at(NOW).heartbeat([worker("a"), worker("b"), worker("c")])
    worker_registry(store.alias).deregister(["a", "c", "unknown"])
    assert Worker.objects.get().name == "b"


def test_workers_that_were_long_silent_are_forgotten(store):
    worker_registry(store.alias).at(NOW).heartbeat([worker("old")])
    worker_registry(store.alias).at(at(2)).heartbeat([worker("new")])
    worker_registry(store.alias).at(at(3601)).expire(HOUR)
    assert Worker.objects.get().name == "new"


# Pauses


def test_a_paused_queue_is_not_seen(store):
    store.at(NOW).offer_many([message(queue=queue, priority=priority) for queue in "abc" for priority in (0, 1)])
    pause("b")
    assert {(head.queue, head.priority) for head in store.at(NOW).scan()} == {("a", 0), ("a", 1), ("c", 0), ("c", 1)}
    assert [head.queue for head in store.at(NOW).scan(["b", "c"])] == ["c", "c"]
    assert store.paused() == {"b"}


def test_nothing_is_claimed_from_a_paused_queue(store):
    store.at(NOW).offer_many([message(queue=queue) for queue in "abc"])
    lanes = [Lane(queue, 0) for queue in "abc"]
    pause("b")
    assert {head.queue for head in store.at(NOW).peek(lanes)} == {"a", "c"}
    (first,) = store.at(NOW).claim(ClaimRequest(lanes[:2], 9, LEASE, "w"))
    assert first.queue == "a"
    settle_and_claim = store.at(NOW).settle_and_claim([succeed(first)], ClaimRequest(lanes, 9, LEASE, "w"))
    assert [one.queue for one in settle_and_claim.claimed] == ["c"]

    PausedQueue.objects.all().delete()
    assert [one.queue for one in store.at(NOW).claim(ClaimRequest(lanes, 9, LEASE, "w"))] == ["b"]


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_a_pause_that_is_not_committed_yet_stops_nobody(store, alias):
    store.at(NOW).offer_many([message(queue=queue) for queue in "ab"])
    pause("a")
    claimed = []
    with transaction.atomic(using=alias):
        PausedQueue.objects.all().delete()
        pause("b")
        together(lambda: claimed.extend(store.at(NOW).claim(ClaimRequest([Lane("a", 0), Lane("b", 0)], 9, LEASE, "w"))))
    assert [one.queue for one in claimed] == ["b"]


def test_a_queue_that_is_resumed_is_seen_again(store):
    store.at(NOW).offer(message())
    pause("mail")
    assert store.at(NOW).scan() == []
    PausedQueue.objects.all().delete()
    assert [head.queue for head in store.at(NOW).scan()] == ["mail"]
    assert store.paused() == set()


@pytest.mark.parametrize("other", ["MAIL", "mail ", "máil"])
def test_another_queue_of_a_similar_name_is_not_paused(store, other):
    store.at(NOW).offer(message())
    pause(other)
    assert [head.queue for head in store.at(NOW).scan()] == ["mail"]


def test_lanes_are_all_that_hold_a_message(store):
    store.at(NOW).offer_many(
        [
            message(queue="mail"),
            message(queue="paused", priority=-3),
            message(queue="later", priority=9, scheduled_at=at(9)),
        ],
    )
    pause("paused")
    assert len(claim(store, lanes=[LANE])) == 1
    assert sorted(store.lanes()) == [Lane("later", 9), Lane("mail", 0), Lane("paused", -3)]


def test_without_messages_there_are_no_lanes(store):
    assert store.lanes() == []


def test_a_pause_costs_a_scan_no_statement(store, connection):
    def cost():
        with CaptureQueriesContext(connection) as captured:
            store.at(NOW).scan()
        return len(captured)

    store.at(NOW).offer_many([message(queue=queue) for queue in "ab"])
    before = cost()
    pause("c")
    assert cost() == before


@pytest.mark.parametrize("alias", ["sqlite", "mariadb"], indirect=True)
def test_a_pause_and_its_end_are_heard(store):
    listener = store.listener()
    try:
        for change in (
            partial(pause, "a"),
            partial(pause, "b"),
            PausedQueue.objects.filter(queue="a").delete,
            PausedQueue.objects.all().delete,
        ):
            change()
            assert listener.heard()
            assert not listener.heard()
    finally:
        listener.close()
