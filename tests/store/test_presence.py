"""Who works, and which queues are paused: what the stores know of both."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from delayedq.models import PausedQueue, Worker
from delayedq.store.presence import Presence
from delayedq.store.protocol import Lane
from tests.store.given import LANE, LEASE, NOW, at, claim, message, succeed, together

HOUR = timedelta(hours=1)


def worker(name="host:1", **fields):
    return Presence(
        **{"name": name, "host": "host", "pid": 1, "threads": 4, "queues": "", "lease": 60.0, "age": 5.5} | fields
    )


def pause(queue):
    PausedQueue.objects.create(queue=queue, paused_at=NOW)


# Workers


def test_a_worker_that_is_seen_has_a_row(store):
    store.attend([worker(queues="mail,ключ %s", held=3, running="[1, 2]")], NOW)
    row = Worker.objects.get()
    assert (row.name, row.host, row.pid, row.threads, row.queues) == ("host:1", "host", 1, 4, "mail,ключ %s")
    assert (row.lease, row.held, json.loads(row.running)) == (60.0, 3, [1, 2])
    assert (row.started_at, row.seen_at) == (at(-5.5), NOW)


def test_a_worker_that_is_seen_again_is_the_same_row(store):
    store.attend([worker()], NOW)
    store.attend([worker(age=15.5, held=7, running="[9]"), worker("host:2")], at(10))
    first, second = Worker.objects.order_by("name")
    assert (first.started_at, first.seen_at, first.held, first.running) == (at(-5.5), at(10), 7, "[9]")
    assert second.name == "host:2"


def test_another_process_under_the_same_name_starts_anew(store):
    store.attend([worker(threads=4)], NOW)
    store.attend([worker(threads=9, age=0.0)], at(100))
    row = Worker.objects.get()
    assert (row.threads, row.started_at) == (9, at(100))


def test_names_of_workers_compare_exactly(store):
    store.attend([worker("A"), worker("a"), worker("a ")], NOW)
    assert Worker.objects.count() == 3


def test_without_a_moment_the_clock_is_the_store_s(store):
    before = store.now()
    store.attend([worker()])
    # SQLite writes thousandths of a second.
    assert before - timedelta(milliseconds=1) <= Worker.objects.get().seen_at <= store.now()


def test_to_be_seen_is_one_statement_however_many_there_are(store):
    with CaptureQueriesContext(connections[store.alias]) as captured:
        store.attend([worker(f"host:{number}") for number in range(100)], NOW)
    assert len(captured) == 1


def test_a_worker_that_leaves_is_gone(store):
    store.attend([worker("a"), worker("b"), worker("c")], NOW)
    store.leave(["a", "c", "unknown"])
    assert Worker.objects.get().name == "b"


def test_workers_that_were_long_silent_are_forgotten(store):
    store.attend([worker("old")], NOW)
    store.attend([worker("new")], at(2))
    store.forget(HOUR, at(3601))
    assert Worker.objects.get().name == "new"


# Pauses


def test_a_paused_queue_is_not_seen(store):
    store.offer_many([message(queue=queue, priority=priority) for queue in "abc" for priority in (0, 1)], now=NOW)
    pause("b")
    assert {(sight.queue, sight.priority) for sight in store.look(now=NOW)} == {("a", 0), ("a", 1), ("c", 0), ("c", 1)}
    assert [sight.queue for sight in store.look(["b", "c"], NOW)] == ["c", "c"]
    assert store.paused() == {"b"}


def test_nothing_is_claimed_from_a_paused_queue(store):
    store.offer_many([message(queue=queue) for queue in "abc"], now=NOW)
    lanes = [Lane(queue, 0) for queue in "abc"]
    pause("b")
    assert {sight.queue for sight in store.glance(lanes, NOW)} == {"a", "c"}
    (first,) = store.claim(lanes[:2], 9, LEASE, "w", NOW)
    assert first.queue == "a"
    tick = store.tick([succeed(first)], lanes, 9, LEASE, "w", NOW)
    assert [one.queue for one in tick.claimed] == ["c"]

    PausedQueue.objects.all().delete()
    assert [one.queue for one in store.claim(lanes, 9, LEASE, "w", NOW)] == ["b"]


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_a_pause_that_is_not_committed_yet_stops_nobody(store, alias):
    store.offer_many([message(queue=queue) for queue in "ab"], now=NOW)
    pause("a")
    claimed = []
    with transaction.atomic(using=alias):
        PausedQueue.objects.all().delete()
        pause("b")
        together(lambda: claimed.extend(store.claim([Lane("a", 0), Lane("b", 0)], 9, LEASE, "w", NOW)))
    assert [one.queue for one in claimed] == ["b"]


def test_a_queue_that_is_resumed_is_seen_again(store):
    store.offer(message(), now=NOW)
    pause("mail")
    assert store.look(now=NOW) == []
    PausedQueue.objects.all().delete()
    assert [sight.queue for sight in store.look(now=NOW)] == ["mail"]
    assert store.paused() == set()


@pytest.mark.parametrize("other", ["MAIL", "mail ", "máil"])
def test_another_queue_of_a_similar_name_is_not_paused(store, other):
    store.offer(message(), now=NOW)
    pause(other)
    assert [sight.queue for sight in store.look(now=NOW)] == ["mail"]


def test_lanes_are_all_that_hold_a_message(store):
    store.offer_many(
        [
            message(queue="mail"),
            message(queue="paused", priority=-3),
            message(queue="later", priority=9, scheduled_at=at(9)),
        ],
        now=NOW,
    )
    pause("paused")
    assert len(claim(store, lanes=[LANE])) == 1
    assert sorted(store.lanes()) == [Lane("later", 9), Lane("mail", 0), Lane("paused", -3)]


def test_without_messages_there_are_no_lanes(store):
    assert store.lanes() == []


def test_a_pause_costs_a_look_no_statement(store, connection):
    def cost():
        with CaptureQueriesContext(connection) as captured:
            store.look(now=NOW)
        return len(captured)

    store.offer_many([message(queue=queue) for queue in "ab"], now=NOW)
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
