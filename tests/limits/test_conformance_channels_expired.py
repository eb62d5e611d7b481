"""Leases in channels that ran out: whose places are given away, and whose keepers may renew them yet."""

from __future__ import annotations

import pytest

from delayedq.limits.rules import Limit
from delayedq.models import Message
from tests.limits.channels import asked, claims, finish, in_channel, offer, one_by_one, shared
from tests.store.given import LEASE, at

RULES = [one_by_one(), shared(Limit(concurrency=1)), shared(Limit(concurrency=1), channel=Limit(concurrency=1))]


def renew(store, now, *held):
    """Those that are lost."""
    return {id_ for id_, _ in store.at(now).renew([(one.id, one.token) for one in held], LEASE).lost}


@pytest.fixture(params=RULES, ids=["channel", "shared", "both"])
def rules(request):
    return request.param


@pytest.fixture
def first(store, rules):
    """It ran out at 60, and others wait for its place."""
    offer(store, "a", "a")
    (first,) = claims(store, 1, rules=rules, worker="dead:1:x")
    offer(store, "b", now=at(1))
    return first


def test_a_claim_can_leave_places_of_expired_leases_alone(store, rules, first):
    others = claims(store, rules=rules, now=at(61), expired=False)

    assert first.id not in {one.id for one in others}
    assert len(others) == (0 if rules.scopes else 1), "the other channel has a place of its own, if nothing is shared"
    assert renew(store, at(62), first) == set()
    assert claims(store, rules=rules, now=at(63), expired=False) == []
    assert not finish(store, first, now=at(64)).lost


def test_a_claim_that_may_give_them_away_takes_their_leases(store, rules, first):
    assert len(claims(store, 1, rules=rules, now=at(63))) == 1
    assert renew(store, at(64), first) == {first.id}


def test_a_full_channel_whose_leases_are_left_alone_is_looked_at_again_soon(store):
    offer(store, "a", "a")
    (first,) = claims(store, rules=one_by_one(), worker="dead:1:x")
    assert asked(store, rules=one_by_one(), now=at(61), expired=False).due_in == pytest.approx(1, abs=0.1)
    assert renew(store, at(61), first) == set()


def test_a_leased_message_in_another_channel_is_left_alone_too(store):
    """Its place there waits, although its first attempt may run."""
    offer(store, "a", key="first")
    (first,) = claims(store, rules=one_by_one(), worker="dead:1:x")
    store.at(at(1)).offer(in_channel("b", "first", payload="[2]", scheduled_at=at(1)))

    assert claims(store, rules=one_by_one(), now=at(61), expired=False) == []
    assert renew(store, at(62), first) == set()


def test_of_leases_that_ran_out_only_those_in_the_way_are_taken(store):
    rules = shared(Limit(concurrency=3))
    offer(store, "a", "a", "a")
    held = claims(store, rules=rules, worker="dead:1:x")
    assert len(held) == 3
    offer(store, "b", now=at(59))
    assert len(claims(store, 1, rules=rules, now=at(59.5))) == 0

    Message.objects.filter(id=held[0].id).update(leased_until=at(59.6))
    Message.objects.filter(id=held[1].id).update(leased_until=at(59.6))
    (other,) = claims(store, 1, rules=rules, now=at(59.7))
    assert other.id not in {one.id for one in held}
    assert len(renew(store, at(59.8), *held)) == 1
