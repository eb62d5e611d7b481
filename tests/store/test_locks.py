"""Beside SQLite, a worker passes over what another open transaction has locked: it neither waits nor deadlocks."""

from __future__ import annotations

from datetime import timedelta
from threading import Event

import pytest
from django.db import transaction

from delayedq.models import FinishedMessage
from delayedq.store.protocol import ClaimRequest, Settled
from tests.store.given import (
    LANE,
    LEASE,
    NOTHING_AMISS,
    NOW,
    at,
    claim,
    claim_one,
    elsewhere,
    history,
    keys,
    live,
    live_keys,
    message,
    outcomes,
    put_back,
    retry,
    settle,
    settle_at_last,
    succeed,
    together,
    undone,
)

pytestmark = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture
def running(store):
    """The claims of "a" and "b"."""
    store.at(NOW).offer_many([message("a", "1"), message("b", "1")])
    return claim(store, 2)


# Claims


def test_a_claim_steps_over_what_an_open_transaction_changes(store, alias):
    store.at(NOW).offer_many([message(key, "1") for key in "ab"])
    with transaction.atomic(using=alias):
        store.at(NOW).offer(message("a", "2"))
        store.at(NOW).offer(message("c"))
        assert keys(elsewhere(claim, store, 9)) == ["b"]
    assert keys(claim(store, 9)) == ["a", "c"]


def test_a_claim_does_not_wait_for_a_transaction_that_has_claimed(store, alias):
    store.at(NOW).offer_many([message(key) for key in "abcd"])
    with transaction.atomic(using=alias):
        first = claim(store, 2)
        second = elsewhere(claim, store, 2, worker="second")
        settle(store, *map(retry, first))
    assert keys(first) + keys(second) == ["a", "b", "c", "d"]


# Ends


@pytest.mark.parametrize("end", [succeed, retry, put_back])
def test_the_end_of_what_an_open_transaction_replaces_is_to_be_settled_later(store, alias, running, end):
    a, b = running
    with transaction.atomic(using=alias):
        store.at(NOW).offer(message("a", "2"))
        assert elsewhere(settle, store, end(a), succeed(b)) == Settled(busy=frozenset({a.id}))
        assert outcomes() == ["succeeded"]
    assert live("a").lease_token == a.token

    assert settle(store, end(a)) == Settled(superseded=frozenset({a.id}))
    assert (live("a").payload, live("a").lease_token) == ("2", None)


def test_a_tick_goes_on_beside_what_an_open_transaction_replaces(store, alias, running):
    a, b = running
    store.at(NOW).offer(message("c"))
    with transaction.atomic(using=alias):
        store.at(NOW).offer(message("a", "2"))
        settle_and_claim = elsewhere(
            store.at(NOW).settle_and_claim, [succeed(a), succeed(b)], ClaimRequest([LANE], 9, LEASE, "first")
        )
    assert settle_and_claim.settled == Settled(busy=frozenset({a.id}))
    assert keys(settle_and_claim.claimed) == ["c"]


def test_what_was_busy_ends_normally_when_the_transaction_rolls_back(store, alias, running):
    a, _ = running
    with undone(alias):
        store.at(NOW).offer(message("a", "2"))
        assert elsewhere(settle, store, succeed(a)).busy == {a.id}

    assert settle(store, succeed(a)) == NOTHING_AMISS
    assert (history().payload, live_keys()) == ("1", {"b"})


def test_what_becomes_free_while_it_is_settled_is_not_taken_for_replaced(store, alias, running, monkeypatch):
    a, _ = running
    locked, refused, free = Event(), Event(), Event()
    settle_rest = store._settle_rest

    def wait_until_free(*args):
        refused.set()
        assert free.wait(30)
        return settle_rest(*args)

    def lock():
        with undone(alias):
            store.at(NOW).offer(message("a", "2"))
            locked.set()
            assert refused.wait(30)
        free.set()

    def end():
        assert locked.wait(30)
        return settle_at_last(store, succeed(a))

    monkeypatch.setattr(store, "_settle_rest", wait_until_free)
    assert together(lock, end)[1] == (set(), set())
    assert (outcomes(), live_keys()) == (["succeeded"], {"b"})


def test_what_was_busy_is_lost_when_the_transaction_took_it_away(store, alias, running):
    a, _ = running
    with transaction.atomic(using=alias):
        store.at(NOW).unschedule(a.kind, "a")
        assert elsewhere(settle, store, succeed(a)).busy == {a.id}

    assert settle(store, succeed(a)) == Settled(lost=frozenset({a.id}))
    assert outcomes() == ["cancelled"]


# Leases


def test_a_release_does_not_wait_for_an_open_transaction(store, alias, running):
    a, b = running
    with transaction.atomic(using=alias):
        store.at(NOW).offer(message("a", "2"))
        elsewhere(store.release, [(a.id, a.token), (b.id, b.token)])
    assert claim_one(store).key == "b"


# History


def test_pruning_passes_over_rows_that_are_locked(store, alias, running):
    settle(store, *map(succeed, running))
    with transaction.atomic(using=alias):
        FinishedMessage.objects.select_for_update().get(key="a")
        assert elsewhere(store.at(at(7_200)).prune, timedelta(hours=1), 10) == 1
    assert history().key == "a"
