"""Giving back what was claimed and never started."""

from __future__ import annotations

import time
from threading import Event

import pytest
from django.db import transaction

from delayedq.models import Message
from delayedq.store.protocol import Released
from tests.store.given import (
    KIND,
    NOW,
    at,
    claim,
    claim_one,
    elsewhere,
    keys,
    live,
    message,
    outcomes,
    retry,
    settle,
    succeed,
    together,
    undone,
)

BESIDE_SQLITE = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)


def held(*claims):
    return [(claimed.id, claimed.token) for claimed in claims]


def test_released_messages_wait_again_uncharged_and_in_their_place(store):
    store.at(NOW).offer_many([message(key) for key in "abc"])
    a, b, _ = claim(store, 3)
    assert store.release(held(a, b)) == Released()

    again = claim(store, 3)
    assert keys(again) == ["a", "b"]
    assert [claimed.attempt for claimed in again] == [1, 1]
    assert outcomes() == []


def test_releasing_keeps_the_attempts_that_were_made(store):
    store.at(NOW).offer(message("a"))
    settle(store, retry(claim_one(store), errors='["one"]'))
    store.release(held(claim_one(store)))

    row = live("a")
    assert (row.attempt, row.errors, row.leased_by, row.leased_until) == (1, '["one"]', None, None)


def test_releasing_a_replaced_message_keeps_the_replacement_whole(store):
    store.at(NOW).offer(message("a", "1"))
    claimed = claim_one(store)
    store.at(NOW).offer(message("a", "2"))
    store.release(held(claimed))

    again = claim_one(store)
    assert (again.payload, again.attempt) == ("2", 1)


def test_releasing_what_is_gone_or_nothing_does_nothing(store):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store)
    settle(store, succeed(claimed))
    assert store.release(held(claimed)) == Released(lost=frozenset(held(claimed)))
    assert store.release([]) == Released()

    assert outcomes() == ["succeeded"]
    assert not Message.objects.exists()


def test_what_another_claim_holds_meanwhile_is_lost_and_stays_its_own(store):
    store.at(NOW).offer_many([message("a"), message("b")])
    (first,) = claim(store)
    second, b = claim(store, 2, now=at(61), worker="second")
    assert second.id == first.id

    assert store.release(held(first, b)) == Released(lost=frozenset(held(first)))
    assert (live("a").lease_token, live("a").attempt) == (second.token, 2)
    assert (live("b").lease_token, live("b").attempt) == (None, 0)


@BESIDE_SQLITE
def test_what_a_transaction_has_locked_is_busy_and_released_when_it_is_free(store, alias):
    store.at(NOW).offer_many([message(key) for key in "abc"])
    a, b, c = claim(store, 3)
    settle(store, succeed(c))
    with undone(alias):
        store.at(NOW).offer(message("a", "2"))
        assert elsewhere(store.release, held(a, b, c)) == Released(frozenset(held(c)), frozenset(held(a)))
    assert live("b").attempt == 0
    assert (live("a").attempt, live("a").lease_token) == (1, a.token)

    assert store.release(held(a)) == Released()
    assert (live("a").attempt, live("a").lease_token) == (0, None)


@BESIDE_SQLITE
def test_what_a_transaction_ended_while_it_was_busy_is_lost_afterwards(store, alias):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store)
    with transaction.atomic(using=alias):
        store.at(NOW).unschedule(KIND, "a")
        assert elsewhere(store.release, held(claimed)).busy == set(held(claimed))
    assert store.release(held(claimed)).lost == set(held(claimed))


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_on_sqlite_it_waits_for_the_write_lock(store, alias):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store)
    locked = Event()

    def lock():
        with transaction.atomic(using=alias):
            store.at(NOW).offer(message("b"))
            locked.set()
            time.sleep(0.2)

    def release():
        assert locked.wait(30)
        return store.release(held(claimed))

    assert together(lock, release)[1] == Released()
    assert live("a").attempt == 0
