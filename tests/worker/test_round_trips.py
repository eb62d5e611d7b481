"""How often a busy worker goes to the database."""

from __future__ import annotations

from delayedq.models import FinishedMessage
from delayedq.worker import pool
from delayedq.worker.loop import AHEAD, Prefetch
from tests.app import chores

MESSAGES = 4 * pool.FLUSH


def test_a_busy_worker_ends_one_batch_and_claims_the_next_in_one_round_trip(store, drain, monkeypatch):
    monkeypatch.setattr(pool, "FLUSH_AFTER", 60.0)
    monkeypatch.setattr(Prefetch, "ahead", lambda prefetch: AHEAD)
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
