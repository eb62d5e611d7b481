"""How often a busy worker goes to the database."""

from __future__ import annotations

from delayedq.models import FinishedMessage
from delayedq.worker import pool
from delayedq.worker.pace import AHEAD, Pace
from tests.app import chores

MESSAGES = 4 * pool.FLUSH


def test_a_busy_worker_ends_one_batch_and_claims_the_next_in_one_trip(store, drain, monkeypatch):
    monkeypatch.setattr(pool, "FLUSH_AFTER", 60.0)
    monkeypatch.setattr(Pace, "ahead", lambda pace: AHEAD)
    trips = []
    tick = store.tick

    def counted(transitions, lanes, *rest):
        done = tick(transitions, lanes, *rest)
        trips.append((len(transitions), len(done.claimed)))
        return done

    monkeypatch.setattr(store, "tick", counted)
    chores.nothing.enqueue_many(((), {}) for _ in range(MESSAGES))
    drain()

    claimed_before = [sum(claimed for _, claimed in trips[:number]) for number in range(len(trips))]
    full = [
        claimed
        for (ended, claimed), before in zip(trips, claimed_before, strict=True)
        if ended >= pool.FLUSH and before < MESSAGES
    ]
    assert full
    assert all(full), f"some trips only ended messages: {trips}"
    assert FinishedMessage.objects.count() == MESSAGES
