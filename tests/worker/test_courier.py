"""Trips to the database, made by a thread of their own."""

from __future__ import annotations

import threading
import time

import pytest
from django.db import IntegrityError, OperationalError, connections

from delayedq.core.lifecycle import Returned
from delayedq.models import FinishedMessage
from delayedq.store.protocol import Lane
from delayedq.worker import courier as courier_module
from delayedq.worker.courier import Courier, Trip
from delayedq.worker.executor import Ended
from delayedq.worker.outage import Outage
from tests.app import tasks
from tests.store.given import kill_others
from tests.worker.attempts import LEASE, PATIENCE, WORKER, attempt_of

LANE = Lane("default", 0)


class Errands:
    def __init__(self, store):
        self.woken = threading.Event()
        self.courier = Courier(store, Outage(WORKER), LEASE, WORKER, self.woken.set)
        self.courier.start()

    def make(self, ended=(), room=0):
        trip = Trip(list(ended), [LANE] if room else [], room)
        self.woken.clear()
        self.courier.send(trip)
        assert self.woken.wait(PATIENCE)
        assert trip.back.is_set()
        assert trip.under_way.is_set()
        return trip


@pytest.fixture
def errands(store):
    errands = Errands(store)
    yield errands
    errands.courier.stop()


def ended(claimed):
    """It succeeded just now."""
    attempt = attempt_of(tasks.remind)
    attempt.claimed = claimed
    moment = time.monotonic()
    return Ended(attempt, Returned(), moment, moment)


def claimed(errands, count):
    tasks.remind.enqueue_many(((number,), {}) for number in range(count))
    return errands.make(room=count).tick.claimed


def test_a_trip_ends_what_ran_and_brings_what_is_due(errands):
    first = claimed(errands, 2)
    tasks.remind.enqueue(7)

    trip = errands.make(map(ended, first), room=9)

    assert [one.payload for one in trip.tick.claimed] == ['{"args":[7]}']
    assert trip.error is None
    assert trip.began <= trip.ended_at
    assert FinishedMessage.objects.succeeded().count() == 2


def test_an_end_that_can_not_be_stored_keeps_no_other_from_it(errands, store, monkeypatch):
    bad, good = claimed(errands, 2)
    tasks.remind.enqueue(7)
    monkeypatch.setattr(store, "tick", refusing(store.tick, bad.id))
    monkeypatch.setattr(store, "settle", refusing(store.settle, bad.id))

    trip = errands.make([ended(bad), ended(good)], room=9)

    assert (trip.unstorable, trip.error, trip.planned) == ({bad.id}, None, ())
    assert FinishedMessage.objects.get().id == good.id
    assert [one.payload for one in errands.make(room=9).tick.claimed] == ['{"args":[7]}'], "that was left for later"


def refusing(verb, id_):
    def refuse(transitions, *rest):
        if any(one.claimed.id == id_ for one in transitions):
            raise IntegrityError("it is taken")
        return verb(transitions, *rest)

    return refuse


def test_what_it_could_not_settle_singly_is_settled_later(errands, store, monkeypatch):
    """The database goes away in the middle of it."""
    bad, good, later = claimed(errands, 3)
    settle = refusing(store.settle, bad.id)

    def away(transitions, *rest):
        if transitions[0].claimed.id == later.id:
            raise OperationalError("the connection was lost")
        return settle(transitions, *rest)

    monkeypatch.setattr(store, "tick", refusing(store.tick, bad.id))
    monkeypatch.setattr(store, "settle", away)

    trip = errands.make(map(ended, (bad, good, later)))

    assert (trip.unstorable, trip.tick.settled.busy) == ({bad.id}, {later.id})
    assert isinstance(trip.error, OperationalError)
    assert FinishedMessage.objects.get().id == good.id


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_after_its_connection_was_killed_it_has_a_new_one(errands, connection):
    first = claimed(errands, 1)
    assert kill_others(connection) == 1

    assert isinstance(errands.make(map(ended, first)).error, Exception)
    assert errands.make(map(ended, first)).error is None
    assert FinishedMessage.objects.count() == 1


def test_nothing_that_goes_wrong_ends_it(errands, store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store, "tick", leave)
        assert isinstance(errands.make(room=1).error, SystemExit)
    assert errands.make(room=1).error is None


def leave(*_):
    raise SystemExit(3)


def test_not_even_a_connection_that_can_not_be_closed_ends_it(errands, store, monkeypatch):
    class Stuck:
        def __getitem__(self, alias):
            raise RuntimeError("it can't be closed")

    with monkeypatch.context() as patch:
        patch.setattr(store, "tick", lambda *_: 1 / 0)
        patch.setattr(courier_module, "connections", Stuck())
        assert isinstance(errands.make(room=1).error, ZeroDivisionError)
    assert errands.make(room=1).error is None


def test_it_closes_its_connection(store, alias, monkeypatch):
    opened = []
    wrapper = type(connections[alias])
    connect = wrapper.connect
    monkeypatch.setattr(wrapper, "connect", lambda self: opened.append(self) or connect(self))
    errands = Errands(store)
    errands.make(room=1)
    errands.courier.stop()
    assert [one.connection for one in opened] == [None]
