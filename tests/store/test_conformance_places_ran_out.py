"""Held places after an outage are as leases are: those that ran out can be extended until a claim frees them."""

from __future__ import annotations

import pytest

from delayedq.core.limiting import Limit
from tests.store.channels import claims, finish, offer, one_by_one, shared
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
