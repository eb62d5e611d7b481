"""Round trips to the database, made by a thread of their own."""

from __future__ import annotations

import threading
import time

import pytest
from django.db import IntegrityError, OperationalError, connections

from delayedq.core.lifecycle import Returned
from delayedq.exceptions import PayloadTooLarge
from delayedq.limits.channels import Channels
from delayedq.models import FinishedMessage
from delayedq.store.protocol import Lane
from delayedq.worker import store_thread as store_thread_module
from delayedq.worker.store_thread import RoundTrip, StoreThread
from delayedq.worker.transitions import AttemptResult
from tests.app import tasks
from tests.store.given import kill_others
from tests.worker.attempts import LEASE, PATIENCE, WORKER, attempt_of

LANE = Lane("default", 0)


class Errands:
    def __init__(self, store):
        self.woken = threading.Event()
        self.store_thread = StoreThread(store, LEASE, WORKER, self.woken.set)
        self.store_thread.start()

    def make(self, ended=(), room=0):
        round_trip = RoundTrip(list(ended), [LANE] if room else [], room)
        self.woken.clear()
        self.store_thread.send(round_trip)
        assert self.woken.wait(PATIENCE)
        assert round_trip.done.is_set()
        assert round_trip.sending.is_set()
        return round_trip


@pytest.fixture
def errands(store):
    errands = Errands(store)
    yield errands
    errands.store_thread.stop()


def ended(claimed):
    """It succeeded just now."""
    attempt = attempt_of(tasks.remind)
    attempt.claimed = claimed
    moment = time.monotonic()
    return AttemptResult(attempt, Returned(), moment, moment)


def claimed(errands, count):
    tasks.remind.enqueue_many(((number,), {}) for number in range(count))
    return errands.make(room=count).answer.claimed


def test_a_round_trip_ends_what_ran_and_brings_what_is_due(errands):
    first = claimed(errands, 2)
    tasks.remind.enqueue(7)

    round_trip = errands.make(map(ended, first), room=9)

    assert [one.payload for one in round_trip.answer.claimed] == ['{"args":[7]}']
    assert round_trip.error is None
    assert round_trip.began_at <= round_trip.ended_at
    assert FinishedMessage.objects.succeeded().count() == 2


@pytest.mark.parametrize("refusal", [IntegrityError, PayloadTooLarge])
def test_an_end_that_can_not_be_stored_keeps_no_other_from_it(errands, store, monkeypatch, refusal):
    bad, good = claimed(errands, 2)
    tasks.remind.enqueue(7)
    monkeypatch.setattr(store, "settle_and_claim", refusing(store.settle_and_claim, bad.id, refusal))
    monkeypatch.setattr(store, "settle", refusing(store.settle, bad.id, refusal))

    round_trip = errands.make([ended(bad), ended(good)], room=9)

    assert (round_trip.unstorable, round_trip.error, round_trip.planned) == ({bad.id}, None, ())
    assert FinishedMessage.objects.get().id == good.id
    assert [one.payload for one in errands.make(room=9).answer.claimed] == ['{"args":[7]}'], "that was left for later"


def refusing(verb, id_, refusal=IntegrityError):
    def refuse(transitions, *rest, **options):
        if any(one.claimed.id == id_ for one in transitions):
            raise refusal("it is taken")
        return verb(transitions, *rest, **options)

    return refuse


def test_what_it_could_not_settle_singly_is_settled_later(errands, store, monkeypatch):
    """The database goes away in the middle of it."""
    bad, good, later = claimed(errands, 3)
    settle = refusing(store.settle, bad.id)

    def away(transitions, *rest):
        if transitions[0].claimed.id == later.id:
            raise OperationalError("the connection was lost")
        return settle(transitions, *rest)

    monkeypatch.setattr(store, "settle_and_claim", refusing(store.settle_and_claim, bad.id))
    monkeypatch.setattr(store, "settle", away)

    round_trip = errands.make(map(ended, (bad, good, later)))

    assert (round_trip.unstorable, round_trip.answer.settled.busy) == ({bad.id}, {later.id})
    assert isinstance(round_trip.error, OperationalError)
    assert FinishedMessage.objects.get().id == good.id


@pytest.mark.parametrize("expired", [True, False])
def test_a_claim_from_channels_is_told_whether_it_may_give_expired_leases_away(errands, store, monkeypatch, expired):
    told = []
    claim = Channels.claim

    def watched(*arguments, **options):
        told.append(options["expired"])
        return claim(*arguments, **options)

    monkeypatch.setattr(Channels, "claim", watched)
    round_trip = RoundTrip([], [], 9, channels=True, expired=expired)
    errands.store_thread.send(round_trip)
    assert round_trip.done.wait(PATIENCE)
    assert told == [expired]


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_after_its_connection_was_killed_it_has_a_new_one(errands, connection):
    first = claimed(errands, 1)
    assert kill_others(connection) >= 1  # the server may not have ended that of the test before

    assert isinstance(errands.make(map(ended, first)).error, Exception)
    assert errands.make(map(ended, first)).error is None
    assert FinishedMessage.objects.count() == 1


def test_nothing_that_goes_wrong_ends_it(errands, store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store, "settle_and_claim", leave)
        assert isinstance(errands.make(room=1).error, SystemExit)
    assert errands.make(room=1).error is None


def leave(*_, **__):
    raise SystemExit(3)


def test_not_even_a_connection_that_can_not_be_closed_ends_it(errands, store, monkeypatch):
    class Stuck:
        def __getitem__(self, alias):
            raise RuntimeError("it can't be closed")

    with monkeypatch.context() as patch:
        patch.setattr(store, "settle_and_claim", lambda *_, **__: 1 / 0)
        patch.setattr(store_thread_module, "connections", Stuck())
        assert isinstance(errands.make(room=1).error, ZeroDivisionError)
    assert errands.make(room=1).error is None


def test_it_closes_its_connection(store, alias, monkeypatch):
    opened = []
    wrapper = type(connections[alias])
    connect = wrapper.connect
    monkeypatch.setattr(wrapper, "connect", lambda self: opened.append(self) or connect(self))
    errands = Errands(store)
    errands.make(room=1)
    errands.store_thread.stop()
    assert [one.connection for one in opened] == [None]
