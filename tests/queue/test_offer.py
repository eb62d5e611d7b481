"""Ways into the queue: offers one by one, by key, in transactions and at once from many threads (A1 to A15)."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from django.db import transaction

from delayedq import OfferOutcome
from delayedq.exceptions import InvalidKey, InvalidTime, NotStorable, PayloadTooLarge
from tests.store.given import NOW, at, together, undone

CREATED, UPDATED, IGNORED, _ = OfferOutcome


def test_a_new_key_is_created_and_then_there(queue):
    assert queue.offer_if_not_exists("a", 1) == CREATED
    assert queue.contains_message("a")
    assert not queue.contains_message("b")


def test_a_key_that_exists_is_left_alone_if_so_asked(queue):
    queue.offer_if_not_exists("a", 1, at(0))

    assert queue.offer_if_not_exists("a", 2, at(5)) == IGNORED
    assert queue.try_poll().payload == 1


@pytest.mark.parametrize(
    ("payload", "seconds", "outcome"), [(1, 0, IGNORED), (2, 0, UPDATED), (1, 5, UPDATED), (1, 0.001, UPDATED)]
)
def test_an_offer_of_a_live_key_updates_it_unless_it_is_the_same(queue, payload, seconds, outcome):
    assert queue.offer_or_update("a", 1, at(0)) == CREATED
    assert queue.offer_or_update("a", payload, at(seconds)) == outcome
    assert queue.read("a").payload == payload
    assert queue.read("a").scheduled_at == at(seconds)


def test_without_a_key_every_offer_is_a_message(queue):
    assert [queue.offer_or_update(None, 1, at(0)), queue.offer_if_not_exists(None, 1, at(0))] == [CREATED, CREATED]
    assert queue.count() == 2


def test_without_a_time_a_message_is_due_now(queue, clock):
    queue.offer_or_update("a", 1)
    clock.move(-0.001)
    assert queue.try_poll() is None
    clock.move(0.001)
    assert queue.try_poll().scheduled_at == clock()


@pytest.mark.parametrize("way", ["offer_or_update", "offer_if_not_exists"])
def test_of_ten_threads_that_offer_one_key_one_creates_it(queue, way):
    outcomes = Counter(together(*[partial(getattr(queue, way), "a", number, at(0)) for number in range(10)]))

    assert outcomes[CREATED] == 1
    assert outcomes.total() == 10
    assert way == "offer_or_update" or outcomes[IGNORED] == 9
    assert queue.count() == 1


def test_a_hundred_updates_by_ten_threads_leave_one_message(queue):
    queue.offer_or_update("a", -1, at(0))

    def update(thread):
        return {queue.offer_or_update("a", thread * 10 + number, at(0)) for number in range(10)}

    assert set().union(*together(*[partial(update, thread) for thread in range(10)])) <= {UPDATED, IGNORED}
    assert queue.count() == 1


def test_an_offer_that_races_with_acknowledgements_always_ends(queue):
    def offer():
        return {queue.offer_or_update("a", number, at(0)) for number in range(300)}

    def acknowledge():
        for _ in range(300):
            if envelope := queue.try_poll():
                envelope.acknowledge()

    outcomes, _ = together(offer, acknowledge)
    assert outcomes <= {CREATED, UPDATED}


def test_the_same_offer_while_it_is_held_is_not_delivered_again(queue, clock):
    queue.offer_or_update("a", 1, at(0))
    envelope = queue.try_poll()

    assert queue.offer_or_update("a", 1, at(0)) == IGNORED
    assert envelope.acknowledge() == "acknowledged"
    clock.move(3600)
    assert queue.try_poll() is None


def test_another_offer_while_it_is_held_is_delivered_after_it(queue):
    queue.offer_or_update("a", 1, at(0))
    envelope = queue.try_poll()

    assert queue.offer_or_update("a", 2, at(0)) == UPDATED
    assert envelope.acknowledge() == "superseded"
    again = queue.try_poll()
    assert (again.payload, again.attempt) == (2, 1)
    assert again.acknowledge() == "acknowledged"


def test_keys_that_differ_a_little_are_different(queue):
    keys = ["a", "A", "ä", "a ", " a", "a\u0301", "x" * 200]
    for key in keys:
        assert queue.offer_or_update(key, key, at(0)) == CREATED
    assert {queue.read(key).payload for key in keys} == set(keys)


@pytest.mark.parametrize("key", ["x" * 201, "", "a\0b", "\ud800", 7])
def test_what_is_no_key_is_refused_and_nothing_stored(queue, key):
    with pytest.raises(InvalidKey):
        queue.offer_or_update(key, 1)
    assert queue.count() == 0


@pytest.mark.parametrize("when", [NOW.replace(tzinfo=None), "tomorrow"])
def test_what_is_no_aware_time_is_refused_and_nothing_stored(queue, when):
    with pytest.raises(InvalidTime):
        queue.offer_or_update("a", 1, when)
    assert queue.count() == 0


@pytest.mark.parametrize(("payload", "error"), [(object(), NotStorable), ("x" * 1_000_001, PayloadTooLarge)])
def test_what_is_no_payload_is_refused_and_nothing_stored(queue, payload, error):
    with pytest.raises(error):
        queue.offer_or_update("a", payload)
    assert queue.count() == 0


def test_an_offer_in_a_transaction_that_rolls_back_never_was(queue, alias):
    with undone(alias):
        queue.offer_or_update("a", 1, at(0))
    assert not queue.contains_message("a")


def test_an_offer_is_seen_when_its_transaction_commits_and_not_before(queue, alias):
    with transaction.atomic(using=alias):
        queue.offer_or_update("a", 1, at(0))
        assert together(queue.count) == [0]
    assert together(queue.count) == [1]


def test_a_key_that_exists_does_not_break_the_transaction_of_the_caller(queue, alias):
    queue.offer_or_update("a", 1, at(0))
    with transaction.atomic(using=alias):
        assert queue.offer_if_not_exists("a", 2, at(0)) == IGNORED
        assert queue.offer_or_update("a", 3, at(0)) == UPDATED
        assert queue.offer_or_update("b", 4, at(0)) == CREATED
    assert [queue.read(key).payload for key in "ab"] == [3, 4]
