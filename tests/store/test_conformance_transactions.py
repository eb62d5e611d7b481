"""Offers belong to the caller's transaction: the outbox."""

from __future__ import annotations

import pytest
from django.db import transaction

from delayedq.models import Message
from delayedq.store.protocol import OfferOutcome, OnConflict
from tests.app.models import Mark
from tests.store.given import KIND, NOW, claim, keys, live, live_keys, message, together, undone

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED


def seen_elsewhere(store):
    """What another connection would be given now; it claims nothing, so that no writer waits for another."""
    (heads,) = together(lambda: store.at(NOW).scan())
    return heads


def test_offers_of_a_transaction_that_rolls_back_leave_nothing(store, alias):
    with undone(alias):
        store.at(NOW).offer(message("a"))
        store.at(NOW).offer_many([message("b"), message()])
    assert not Message.objects.exists()
    assert claim(store, 9) == []


def test_an_update_that_rolls_back_leaves_the_message_as_it_was(store, alias):
    store.at(NOW).offer(message("a", "1"))
    with undone(alias):
        assert store.at(NOW).offer(message("a", "2")).outcome == UPDATED
    assert (live("a").payload, live("a").generation) == ("1", 0)


def test_an_offer_is_seen_by_others_only_after_commit(store, alias):
    with transaction.atomic(using=alias):
        store.at(NOW).offer(message("a"))
        assert seen_elsewhere(store) == []
    assert len(seen_elsewhere(store)) == 1


def test_an_unschedule_that_rolls_back_leaves_the_message(store, alias):
    store.at(NOW).offer(message("a"))
    with undone(alias):
        assert store.at(NOW).unschedule(KIND, "a")
    assert keys(claim(store)) == ["a"]


@pytest.mark.parametrize("policy", OnConflict)
def test_a_duplicate_key_does_not_abort_the_callers_transaction(store, alias, policy):
    store.at(NOW).offer(message("a", "1"))
    with transaction.atomic(using=alias):
        Mark.objects.create(name="before")
        store.at(NOW).offer(message("a", "1"), policy)
        store.at(NOW).offer_many([message("a", "1"), message("b"), message("b")], policy)
        Mark.objects.create(name="after")
    assert Mark.objects.count() == 2
    assert live_keys() == {"a", "b"}


def test_a_batch_within_a_transaction_can_be_caught_and_the_transaction_goes_on(store, alias):
    with transaction.atomic(using=alias):
        store.at(NOW).offer(message("a"))
        with pytest.raises(ValueError, match="key"):
            store.at(NOW).offer_many([message("b"), message("")])
        store.at(NOW).offer(message("c"))
    assert live_keys() == {"a", "c"}


def test_the_same_offer_twice_in_one_transaction_is_one_message(store, alias):
    with transaction.atomic(using=alias):
        results = [store.at(NOW).offer(message("a", payload)).outcome for payload in ("1", "2", "2")]
    assert results == [CREATED, UPDATED, IGNORED]
    assert live("a").payload == "2"
