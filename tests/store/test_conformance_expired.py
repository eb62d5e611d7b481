"""Who may claim what another claim holds, when its lease has run out."""

from __future__ import annotations

import time
from datetime import timedelta
from threading import Event

import pytest
from django.db import transaction

from delayedq.store.protocol import ClaimRequest
from tests.store.given import LANE, LEASE, NOW, at, claim, claim_one, keys, live, message, succeed, together

SHORT = timedelta(seconds=1)


def test_a_claim_can_leave_expired_leases_alone(store):
    store.at(NOW).offer_many([message("a"), message("b")])
    claim_one(store)
    assert keys(store.at(at(61)).claim(ClaimRequest([LANE], 9, LEASE, "second", expired=False))) == ["b"]
    assert keys(store.at(at(61)).claim(ClaimRequest([LANE], 9, LEASE, "second"))) == ["a"]


def test_a_round_trip_can_leave_expired_leases_alone(store):
    store.at(NOW).offer_many([message("a"), message("b"), message("c")])
    claim_one(store)
    (b,) = claim(store, 1, now=at(30))
    settled = store.at(at(61)).settle_and_claim([succeed(b)], ClaimRequest([LANE], 9, LEASE, "second", expired=False))
    assert keys(settled.claimed) == ["c"]
    assert (
        keys(store.at(at(61)).settle_and_claim([], ClaimRequest([LANE], 9, LEASE, "second", expired=False)).claimed)
        == []
    )
    assert keys(store.at(at(61)).settle_and_claim([], ClaimRequest([LANE], 9, LEASE, "second")).claimed) == ["a"]


CLAIMS = {
    "claim": lambda store: store.claim(ClaimRequest([LANE], 9, LEASE, "second")),
    "settle_and_claim": lambda store: store.settle_and_claim([], ClaimRequest([LANE], 9, LEASE, "second")).claimed,
    "claim_matching": lambda store: store.claim_matching(LANE, [], 9, LEASE, "second"),
}


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
@pytest.mark.parametrize("verb", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_that_waited_for_the_write_lock_takes_no_lease_that_ran_out_meanwhile(store, alias, verb):
    """Who holds it could not renew it; and the lease of what the claim takes begins when the wait is over."""
    store.offer_many([message("held"), message("free")])
    locked = Event()

    def lock():
        with transaction.atomic(using=alias):
            assert keys(store.claim(ClaimRequest([LANE], 1, SHORT, "first"))) == ["held"]
            locked.set()
            time.sleep(1.1 * SHORT.total_seconds())
            return store.now()

    def wait_and_claim():
        assert locked.wait(30)
        return verb(store)

    unlocked_at, claimed = together(lock, wait_and_claim)
    assert keys(claimed) == ["free"]
    assert live("free").leased_until >= unlocked_at + LEASE
