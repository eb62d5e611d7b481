"""Held places after an outage are as leases are: those that ran out can be extended until a claim frees them."""

from __future__ import annotations

import pytest

from delayedq.core.limiting import Limit
from tests.store.channels import channels_of, claims, finish, in_channel, offer, one_by_one, shared
from tests.store.given import LEASE, at
from tests.store.test_conformance_places_held import VERBS, running, stop


@pytest.fixture(params=VERBS, ids=lambda verb: verb.__name__)
def end(request):
    return request.param


def test_a_place_that_ran_out_is_extended_until_a_claim_has_given_it_away(store, end):
    first = running(store)
    end(store, first, at(1))
    assert claims(store, rules=one_by_one(), now=at(61), expired=False) == []
    store.at(at(62)).renew([(first.id, first.token)], LEASE)

    assert claims(store, rules=one_by_one(), now=at(121)) == []
    assert finish(store, first, now=at(121)).lost == {first.id}
    assert len(claims(store, rules=one_by_one(), now=at(121))) == 1


def test_what_is_ended_after_its_lease_ran_out_has_its_place_until_a_claim_may_give_it_away(store, end):
    if end is stop:
        return  # it stops only what is held
    first = running(store)
    end(store, first, at(61))
    assert claims(store, rules=one_by_one(), now=at(62), expired=False) == []
    store.at(at(63)).renew([(first.id, first.token)], LEASE)

    assert claims(store, rules=one_by_one(), now=at(122)) == []
    assert len(claims(store, rules=one_by_one(), now=at(123.1))) == 1


def test_a_place_that_ran_out_counts_in_shared_limits_too(store, end):
    rules = shared(Limit(concurrency=1))
    offer(store, "a", key="first")
    (first,) = claims(store, rules=rules)
    end(store, first, at(1))
    offer(store, "b", now=at(1))

    assert claims(store, rules=rules, now=at(61), expired=False) == []
    assert len(claims(store, rules=rules, now=at(61))) == 1


def test_what_is_replaced_into_another_channel_after_its_lease_ran_out_has_its_place_where_it_started(store):
    first = running(store)
    new = in_channel("b", "first", payload="[2]", scheduled_at=at(61))
    assert store.at(at(61)).offer(new).outcome == "updated"
    assert claims(store, rules=one_by_one(), now=at(62), expired=False) == []
    assert not store.at(at(63)).renew([(first.id, first.token)], LEASE).lost

    assert claims(store, rules=one_by_one(), now=at(122)) == []
    assert finish(store, first, now=at(122)).superseded == {first.id}
    assert sorted(channels_of(claims(store, rules=one_by_one(), now=at(122)))) == ["a", "b"]


def test_what_is_replaced_after_its_lease_ran_out_leaves_its_place_to_the_next_claim(store):
    first = running(store)
    assert store.at(at(61)).offer(in_channel("b", "first", payload="[2]", scheduled_at=at(61))).outcome == "updated"
    taken = claims(store, rules=one_by_one(), now=at(61))

    assert sorted(channels_of(taken)) == ["a", "b"]
    assert store.at(at(62)).renew([(first.id, first.token)], LEASE).lost
