"""How often a busy worker goes to the database."""

from __future__ import annotations

from delayedq.models import FinishedMessage
from delayedq.worker import lanes, loop, pool
from delayedq.worker.loop import Loop, Prefetch
from delayedq.worker.options import ExitCode
from delayedq.worker.shared_leases import SharedLeases
from delayedq.worker.store_thread import StoreThread
from tests.app import chores, tasks

MESSAGES = 4 * pool.FLUSH


def test_a_busy_worker_ends_one_batch_and_claims_the_next_in_one_round_trip(store, drain, monkeypatch):
    monkeypatch.setattr(pool, "FLUSH_AFTER", 60.0)
    monkeypatch.setattr(Prefetch, "ahead", lambda prefetch: 2 * loop.BATCH)
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


def test_of_many_queues_a_claim_names_some(store, drain, monkeypatch):
    monkeypatch.setattr(lanes, "MOST_NAMED", 4)
    monkeypatch.setattr(lanes, "FEWEST_NAMED", 2)
    named = set()
    settle_and_claim = store.settle_and_claim

    def noted(transitions, request):
        named.add(len(request.lanes))
        return settle_and_claim(transitions, request)

    monkeypatch.setattr(store, "settle_and_claim", noted)
    store.offer_many(chores.nothing.offer((), {}, when=None)._replace(queue=f"queue-{n % 20}") for n in range(80))
    drain()
    assert 4 in named
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
