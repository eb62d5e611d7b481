"""How often a busy worker goes to the database."""

from __future__ import annotations

import pytest

from delayedq.models import FinishedMessage
from delayedq.worker import loop, pool
from delayedq.worker.loop import Loop, Prefetch
from delayedq.worker.options import ExitCode
from delayedq.worker.shared_leases import SharedLeases
from delayedq.worker.store_thread import StoreThread
from tests.app import chores, tasks

MESSAGES = 4 * pool.FLUSH


def test_a_busy_worker_ends_one_batch_and_claims_the_next_in_one_round_trip(store, drain, monkeypatch):
    monkeypatch.setattr(pool, "FLUSH_AFTER", 60.0)
    monkeypatch.setattr(Prefetch, "ahead", lambda prefetch, batch: 2 * batch)
    round_trips = []
    settle_and_claim = store.settle_and_claim

    def counted(transitions, request):
        done = settle_and_claim(transitions, request)
        round_trips.append((len(transitions), len(done.claimed)))
        return done

    monkeypatch.setattr(store, "settle_and_claim", counted)
    chores.nothing.enqueue_many(((), {}) for _ in range(MESSAGES))
    drain()

    claimed_before = [sum(claimed for _, claimed in round_trips[:number]) for number in range(len(round_trips))]
    full = [
        claimed
        for (ended, claimed), before in zip(round_trips, claimed_before, strict=True)
        if ended >= pool.FLUSH and before < MESSAGES
    ]
    assert full
    assert all(full), f"some round trips only ended messages: {round_trips}"
    assert FinishedMessage.objects.count() == MESSAGES


@pytest.mark.parametrize(("queues", "largest"), [(12, 4), (24, 6), (80, 8)])
def test_where_a_claim_names_many_lanes_it_takes_more_messages(queues, largest, store, drain, monkeypatch):
    monkeypatch.setattr(loop, "BATCH", 4)
    monkeypatch.setattr(loop, "LARGEST_BATCH", 8)
    monkeypatch.setattr(Prefetch, "ahead", lambda prefetch, batch: 2 * batch)
    limits = set()
    settle_and_claim = store.settle_and_claim

    def noted(transitions, request):
        limits.add(request.limit)
        return settle_and_claim(transitions, request)

    monkeypatch.setattr(store, "settle_and_claim", noted)
    offers = (
        chores.nothing.offer((), {}, when=None)._replace(queue=f"queue-{number % queues}") for number in range(80)
    )
    store.offer_many(offers)
    drain()
    assert max(limits) == largest
    assert FinishedMessage.objects.count() == 80


def test_no_more_is_claimed_than_the_lease_keeper_can_hold(store, options):
    leases = SharedLeases(capacity=10)
    chores.nothing.enqueue_many(((), {}) for _ in range(50))
    assert Loop(store, options, "test", leases).run() is ExitCode.DONE
    assert FinishedMessage.objects.count() == 50


def test_what_ends_in_a_channel_makes_room_for_the_next_in_the_same_round_trip(store, drain, monkeypatch):
    round_trips = []
    make = StoreThread._make

    def made(thread, round_trip):
        make(thread, round_trip)
        if round_trip.results:
            round_trips.append((len(round_trip.results), len(round_trip.answer.claimed)))

    monkeypatch.setattr(StoreThread, "_make", made)
    tasks.ring.enqueue_many((("one",), {}) for _ in range(20))
    drain()
    assert round_trips == [(1, 1)] * 19 + [(1, 0)]
    assert FinishedMessage.objects.succeeded().count() == 20
