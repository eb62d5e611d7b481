"""Beside SQLite: places in channels whose messages an open transaction has locked for longer than their leases."""

from __future__ import annotations

import pytest
from django.db import transaction

from delayedq.limits.channels import Channels
from delayedq.limits.requests import Rules
from delayedq.limits.rules import Limit
from delayedq.models import Message
from delayedq.store import operator_store
from delayedq.store.operator import Seen
from tests.limits.channels import claims, finish, in_channel, offer, one_by_one, shared
from tests.store.given import KIND, LEASE, at, elsewhere

pytestmark = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
RULES = [one_by_one(), shared(Limit(concurrency=1))]


@pytest.fixture(params=RULES, ids=["channel", "shared"])
def rules(request):
    return request.param


@pytest.fixture
def first(store, rules):
    """It holds until 60, and another one waits for its place."""
    offer(store, "a", key="first")
    offer(store, "a")
    (first,) = claims(store, rules=rules, worker="dead:1:x")
    return first


def stop(store, one):
    seen = Seen._make(getattr(Message.objects.get(pk=one.id), name) for name in Seen._fields)
    assert operator_store(store.alias).at(at(1)).stop([seen]) == {one.id}


def unschedule(store, one):
    assert store.at(at(1)).unschedule(KIND, one.key)


@pytest.mark.parametrize("end", [stop, unschedule])
def test_what_a_transaction_took_away_for_longer_than_the_lease_keeps_its_place(store, alias, rules, first, end):
    """Its keeper has renewed it beside the row meanwhile, until 110, and learns of its end when it renews again."""
    with transaction.atomic(using=alias):
        end(store, first)
        assert not elsewhere(store.at(at(50)).renew, [(first.id, first.token)], LEASE).lost

    assert claims(store, rules=rules, now=at(100)) == []
    assert store.at(at(101)).renew([(first.id, first.token)], LEASE).lost
    assert claims(store, rules=rules, now=at(160)) == []
    finish(store, first, now=at(160))
    assert len(claims(store, rules=rules, now=at(160))) == 1


def test_a_lease_that_ran_out_and_is_being_renewed_has_its_place(store, alias, rules, first):
    with transaction.atomic(using=alias):
        assert not store.at(at(61)).renew([(first.id, first.token)], LEASE).lost
        assert elsewhere(claims, store, rules=rules, now=at(61)) == []
    assert claims(store, rules=rules, now=at(62)) == []


def test_a_held_place_that_ran_out_and_is_being_extended_is_taken(store, alias, rules, first):
    unschedule(store, first)
    with transaction.atomic(using=alias):
        store.at(at(61)).renew([(first.id, first.token)], LEASE)
        assert elsewhere(claims, store, rules=rules, now=at(61)) == []
    assert claims(store, rules=rules, now=at(62)) == []


def test_what_is_replaced_into_another_channel_while_a_claim_takes_place_does_not_start_there(store, monkeypatch):
    """The claim has looked at channel "a", and then the message waits in "b", where one runs.

    With weights by channel, no database looks and starts in one statement.
    """
    rules = Rules(channel=Limit(concurrency=1, weight={"nobody": 2}))
    offer(store, "b", key="running")
    (running,) = claims(store, rules=rules)
    offer(store, "a", key="first", now=at(1))
    start = type(Channels.of(store)).start

    def replaced_before(self, *arguments):
        elsewhere(store.at(at(1)).offer, in_channel("b", "first", payload="[2]", scheduled_at=at(1)))
        return start(self, *arguments)

    monkeypatch.setattr(type(Channels.of(store)), "start", replaced_before)
    assert claims(store, rules=rules, now=at(2)) == []
    monkeypatch.undo()
    assert claims(store, rules=rules, now=at(3)) == []
    assert Message.objects.get(key="first").attempt == 0
    finish(store, running, now=at(4))
    assert [one.key for one in claims(store, rules=rules, now=at(4))] == ["first"]


def test_what_ends_between_two_reads_of_a_claim_and_was_renewed_beside_its_row_is_counted(store, alias, monkeypatch):
    """The claim has read the places; the transaction that ended the message began before the renewal."""
    rules = shared(Limit(concurrency=1))
    offer(store, "a", key="first")
    (first,) = claims(store, rules=rules, worker="dead:1:x")
    offer(store, "b", now=at(1))
    held_among = type(Channels.of(store)).held_among

    def taken_meanwhile(self, ids, now):
        monkeypatch.setattr(type(Channels.of(store)), "held_among", held_among)
        elsewhere(end_while_it_is_renewed)
        return held_among(self, ids, now)

    def end_while_it_is_renewed():
        with transaction.atomic(using=alias):
            unschedule(store, first)
            assert not elsewhere(store.at(at(50)).renew, [(first.id, first.token)], LEASE).lost

    monkeypatch.setattr(type(Channels.of(store)), "held_among", taken_meanwhile)
    assert claims(store, rules=rules, now=at(100)) == []
    assert not Message.objects.filter(pk=first.id).exists()
    assert claims(store, rules=rules, now=at(101)) == []
    assert finish(store, first, now=at(102)).lost == {first.id}
    assert len(claims(store, rules=rules, now=at(102))) == 1
