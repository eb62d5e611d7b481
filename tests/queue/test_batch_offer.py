"""Batches of offers: outcomes in the order of the input, all or none (A5 to A10)."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from delayedq import BatchedMessage, OfferOutcome
from delayedq.exceptions import InvalidKey
from tests.store.given import NOW, at, together

CREATED, UPDATED, IGNORED, _ = OfferOutcome


def batched(*keys, payload=1, schedule_at=NOW, can_update=True):
    return [BatchedMessage(f"input {key}", key, payload, schedule_at, can_update) for key in keys]


def outcomes(replies):
    return [reply.outcome for reply in replies]


def test_replies_carry_the_inputs_in_their_order(queue):
    replies = queue.offer_batch(batched("b", "a"))
    assert [(reply.input, reply.outcome) for reply in replies] == [("input b", CREATED), ("input a", CREATED)]


@pytest.mark.parametrize(("can_update", "outcome", "payload"), [(True, UPDATED, 2), (False, IGNORED, 1)])
def test_a_message_of_a_batch_updates_what_exists_if_it_may(queue, can_update, outcome, payload):
    queue.offer_or_update("a", 1, NOW)

    assert outcomes(queue.offer_batch(batched("a", "b", payload=2, can_update=can_update))) == [outcome, CREATED]
    assert queue.read("a").payload == payload


def test_each_message_says_for_itself_whether_it_updates(queue):
    queue.offer_batch(batched("a", "b"))
    mixed = [
        *batched("a", payload=2, can_update=False),
        *batched("c", payload=2),
        *batched("b", payload=2),
        *batched("d", payload=2, can_update=False),
    ]
    assert outcomes(queue.offer_batch(mixed)) == [IGNORED, CREATED, UPDATED, CREATED]
    assert [queue.read(key).payload for key in "abcd"] == [1, 2, 2, 2]


def test_those_that_exist_are_told_from_250_of_a_batch(queue):
    queue.offer_batch(batched(*map(str, range(10)), payload="old"))

    found = outcomes(queue.offer_batch(batched(*map(str, range(250)), payload="new", can_update=False)))
    assert found == [IGNORED] * 10 + [CREATED] * 240
    assert queue.read("9").payload == "old"


def test_a_batch_that_races_with_single_offers_loses_no_key(queue):
    keys = [f"{number}" for number in range(20)]
    replies, *_ = together(
        partial(queue.offer_batch, batched(*keys, payload="batch", can_update=False)),
        *[partial(queue.offer_or_update, key, "single", NOW) for key in keys[:10]],
    )
    assert set(outcomes(replies)) <= {CREATED, IGNORED}
    assert [key for key in keys if not queue.contains_message(key)] == []


@pytest.mark.parametrize(("can_update", "found", "payload"), [(True, UPDATED, 2), (False, IGNORED, 1)])
def test_a_key_may_occur_twice_in_a_batch(queue, can_update, found, payload):
    twice = batched("a", "b") + batched("a", payload=2, can_update=can_update)

    assert outcomes(queue.offer_batch(twice)) == [CREATED, CREATED, found]
    assert (queue.read("a").payload, queue.count()) == (payload, 2)


def test_a_repeated_key_follows_the_order_of_the_batch_with_mixed_can_update(queue):
    thrice = [*batched("a", can_update=False), *batched("a", payload=2), *batched("a", payload=3, can_update=False)]

    assert outcomes(queue.offer_batch(thrice)) == [CREATED, UPDATED, IGNORED]
    assert queue.read("a").payload == 2


def test_an_empty_batch_is_answered_with_nothing(queue):
    assert queue.offer_batch([]) == []


def test_a_bad_key_in_a_batch_stores_nothing_of_it(queue):
    with pytest.raises(InvalidKey):
        queue.offer_batch(batched("a", "x" * 201))
    assert queue.count() == 0


@pytest.mark.slow
def test_seventy_thousand_keys_are_one_batch(queue):
    batch = batched(*[f"{number}" for number in range(70_000)], schedule_at=at(5))
    queue.offer_batch(batch[::70])

    given = outcomes(queue.offer_batch(batch))
    assert set(given[::70]) == {IGNORED}
    assert given.count(CREATED) == queue.count() - 1_000 == 69_000


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_batch_of_one_kind_is_one_statement_on_postgresql(queue, alias):
    with CaptureQueriesContext(connections[alias]) as captured:
        queue.offer_batch(batched(*map(str, range(500)), schedule_at=NOW.replace(year=2126)))
    assert sum(query["sql"].strip().startswith("WITH") for query in captured) == 1
