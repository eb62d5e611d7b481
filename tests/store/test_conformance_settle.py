"""The end of an attempt: finished with a history row, or given back; also in one call with a claim."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from delayedq.core.lifecycle import FinalOutcome
from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import ClaimRequest, Finish, GiveBack, Settled
from tests.store.given import (
    KIND,
    LANE,
    LEASE,
    NOTHING_AMISS,
    NOW,
    at,
    claim,
    claim_one,
    history,
    keys,
    live,
    message,
    outcomes,
    put_back,
    retry,
    settle,
    succeed,
)

# Finish


@pytest.mark.parametrize("outcome", FinalOutcome)
def test_a_finished_message_is_history_and_nothing_else(store, outcome):
    offer = message("a", '{"x": 1}', queue="mail", max_attempts=4, metadata='{"m": 1}', scheduled_at=at(-5))
    id_ = store.at(at(-9)).offer(offer).id
    claimed = claim_one(store, worker="w-7")

    ended = Finish(claimed, outcome, started=2.5, finished=0.25, result='{"r": 1}', errors='["e"]')
    assert settle(store, ended, now=at(3)) == NOTHING_AMISS
    assert not Message.objects.exists()
    row = history()
    assert (row.pk, row.outcome, row.attempts, row.max_attempts) == (id_, outcome, 1, 4)
    assert (row.started_at, row.finished_at) == (at(0.5), at(2.75))
    assert (row.scheduled_at, row.scheduled_at_initially, row.created_at) == (at(-5), at(-5), at(-9))
    assert (row.queue, row.kind, row.key, row.priority, row.worker) == ("mail", KIND, "a", 0, "w-7")
    assert (row.payload, row.metadata, row.result, row.errors) == ('{"x": 1}', '{"m": 1}', '{"r": 1}', '["e"]')


def test_what_never_started_has_no_start_and_no_attempt_in_history(store):
    store.at(NOW).offer(message())
    settle(store, Finish(claim_one(store), FinalOutcome.CANCELLED, started=None, finished=0.0))

    row = history()
    assert (row.started_at, row.finished_at, row.key, row.attempts) == (None, NOW, None, 0)
    assert (row.result, row.errors, row.metadata) == (None, None, None)


def test_an_end_before_the_start_counts_only_the_attempts_before(store):
    store.at(NOW).offer(message(max_attempts=5))
    for _ in range(2):
        settle(store, retry(claim_one(store)))
    settle(store, Finish(claim_one(store), FinalOutcome.FAILED, started=None, finished=0.0))

    assert history().attempts == 2


def test_without_now_history_is_on_the_databases_clock(store):
    store.offer(message(scheduled_at=None))
    settle(store, succeed(claim_one(store, now=None), started=10.0, finished=0.0), now=None)

    row = history()
    assert abs(timezone.now() - row.finished_at) < timedelta(seconds=5)
    assert row.finished_at - row.started_at == timedelta(seconds=10)


def test_history_keeps_the_asked_time_beside_that_of_the_last_attempt(store):
    store.at(NOW).offer(message("a"))
    settle(store, retry(claim_one(store), delay=10))
    settle(store, succeed(claim_one(store, now=at(10))), now=at(11))

    row = history(key="a")
    assert (row.scheduled_at_initially, row.scheduled_at, row.attempts) == (NOW, at(10), 2)


def test_errors_of_earlier_attempts_go_to_history_or_are_replaced(store):
    for key in "ab":
        store.at(NOW).offer(message(key))
    settle(store, *(retry(claimed, errors='["first"]') for claimed in claim(store, 2)))
    kept, replaced = claim(store, 2)
    settle(store, succeed(kept), succeed(replaced, errors='["first", "second"]'))

    assert [history(key=key).errors for key in "ab"] == ['["first"]', '["first", "second"]']


def test_a_batch_of_different_endings_is_settled_at_once(store):
    store.at(NOW).offer_many([message(key) for key in "abcd"])
    a, b, c, d = claim(store, 4)
    done = (
        Finish(a, FinalOutcome.SUCCEEDED, 1.0, 0.0, result="1"),
        Finish(b, FinalOutcome.FAILED, None, 0.5, errors="[]"),
    )

    assert settle(store, *done, GiveBack(c, charged=True, delay=5.0), put_back(d), now=at(1)) == NOTHING_AMISS
    assert set(FinishedMessage.objects.values_list("key", "outcome")) == {("a", "succeeded"), ("b", "failed")}
    assert set(Message.objects.values_list("key", "scheduled_at", "attempt")) == {("c", at(6), 1), ("d", NOW, 0)}


def test_hundreds_of_messages_are_settled_at_once(store):
    store.at(NOW).offer_many([message(f"{number}") for number in range(500)])

    assert settle(store, *map(succeed, claim(store, 500))) == NOTHING_AMISS
    assert FinishedMessage.objects.succeeded().count() == 500
    assert not Message.objects.exists()


def test_nothing_to_settle_is_nothing_amiss(store):
    assert settle(store) == NOTHING_AMISS


def test_a_late_end_is_accepted_as_long_as_it_was_not_claimed_again(store):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store)

    assert settle(store, succeed(claimed), now=at(600)) == NOTHING_AMISS
    assert outcomes() == ["succeeded"]
    assert claim(store, now=at(601)) == []


# Give back


@pytest.mark.parametrize(
    ("fields", "due"),
    [({"delay": 5.5}, at(15.5)), ({"delay": 0.0}, at(10)), ({"until": at(77)}, at(77)), ({}, NOW)],
    ids=["after a delay", "at once", "at a time", "at its old time"],
)
@pytest.mark.parametrize(("charged", "attempt"), [(True, 2), (False, 1)])
def test_a_message_given_back_is_due_again(store, fields, due, charged, attempt):
    id_ = store.at(NOW).offer(message("a", "1")).id
    back = GiveBack(claim_one(store), charged=charged, started=1.0, **fields)

    assert settle(store, back, now=at(10)) == NOTHING_AMISS
    row = live("a")
    assert (row.lease_token, row.leased_until, row.leased_by) == (None, None, None)
    assert (row.scheduled_at, row.scheduled_at_initially) == (due, NOW)
    assert claim(store, now=due - timedelta(microseconds=1)) == []
    again = claim_one(store, now=due)
    assert (again.id, again.attempt, again.payload, again.generation) == (id_, attempt, "1", 0)


def test_errors_travel_with_the_message(store):
    store.at(NOW).offer(message("a"))
    settle(store, retry(claim_one(store), errors='["one"]'))

    again = claim_one(store)
    assert again.errors == '["one"]'
    settle(store, retry(again, errors='["one", "two"]'))
    third = claim_one(store)
    assert third.errors == '["one", "two"]'
    settle(store, put_back(third))
    assert claim_one(store).errors == '["one", "two"]'


def test_giving_back_writes_no_history(store):
    store.at(NOW).offer_many([message("a"), message("b")])
    a, b = claim(store, 2)
    settle(store, retry(a, delay=1), put_back(b))

    assert outcomes() == []


def test_different_messages_of_a_batch_are_given_back_differently(store):
    store.at(NOW).offer_many([message(key) for key in "abcd"])
    a, b, c, d = claim(store, 4)
    settle(store, retry(a, delay=3), retry(b, until=at(2)), put_back(c, delay=1), retry(d, errors='["d"]'))

    again = claim(store, 4, now=at(3))
    assert keys(again) == ["d", "c", "b", "a"]
    assert [claimed.attempt for claimed in again] == [2, 1, 2, 2]
    assert [claimed.errors for claimed in again] == ['["d"]', None, None, None]


# Ticks


def settle_and_claim(store, *transitions, limit=10, now=NOW, lanes=(LANE,)):
    return store.at(now).settle_and_claim(transitions, ClaimRequest(lanes, limit, LEASE, "first"))


def test_a_tick_settles_and_claims(store):
    store.at(NOW).offer_many([message(key) for key in "abcd"])
    first = settle_and_claim(store, limit=2)
    assert (keys(first.claimed), first.settled) == (["a", "b"], NOTHING_AMISS)

    second = settle_and_claim(store, *map(succeed, first.claimed), limit=2)
    assert (keys(second.claimed), second.settled) == (["c", "d"], NOTHING_AMISS)
    assert sorted(FinishedMessage.objects.values_list("key", flat=True)) == ["a", "b"]
    third = settle_and_claim(store, *map(succeed, second.claimed))
    assert (third.claimed, third.settled) == ([], NOTHING_AMISS)
    assert not Message.objects.exists()


@pytest.mark.parametrize("options", [{"limit": 0}, {"lanes": ()}], ids=["no room", "no lane"])
def test_a_tick_that_may_not_claim_still_settles(store, options):
    store.at(NOW).offer_many([message("a"), message("b")])
    claimed = claim_one(store)

    assert settle_and_claim(store, succeed(claimed), **options).claimed == []
    assert outcomes() == ["succeeded"]


def test_a_tick_may_give_back_and_finish(store):
    store.at(NOW).offer_many([message(key) for key in "abc"])
    a, b = claim(store, 2)

    assert keys(settle_and_claim(store, succeed(a), retry(b, delay=5)).claimed) == ["c"]
    assert live("b").scheduled_at == at(5)


def test_a_tick_can_claim_what_it_gave_back_at_once(store):
    store.at(NOW).offer(message("a"))

    assert [claimed.attempt for claimed in settle_and_claim(store, retry(claim_one(store), delay=0.0)).claimed] == [2]


def test_a_tick_that_ends_a_message_late_does_not_claim_it_again(store):
    store.at(NOW).offer_many([message(key) for key in "ab"])
    late = claim(store, 2)

    result = settle_and_claim(store, *map(succeed, late), now=at(100))
    assert (result.claimed, result.settled) == ([], NOTHING_AMISS)
    assert outcomes() == ["succeeded", "succeeded"]
    assert not Message.objects.exists()


def test_a_tick_reports_what_was_lost_and_claims_all_the_same(store):
    store.at(NOW).offer(message("a"))
    frozen = claim_one(store)
    claim_one(store, now=at(61), worker="second")
    store.at(NOW).offer(message("b"))

    result = settle_and_claim(store, succeed(frozen), now=at(62))
    assert result.settled == Settled(lost=frozenset({frozen.id}))
    assert keys(result.claimed) == ["b"]
    assert live("a").leased_by == "second"


def test_a_tick_gives_a_replaced_message_back(store):
    store.at(NOW).offer_many([message("a", "1"), message("b")])
    a, b = claim(store, 2)
    store.at(NOW).offer(message("a", "2"))

    result = settle_and_claim(store, succeed(a), succeed(b))
    assert result.settled == Settled(superseded=frozenset({a.id}))
    again = result.claimed or claim(store)
    assert [(claimed.id, claimed.payload, claimed.attempt) for claimed in again] == [(a.id, "2", 1)]
    assert sorted(outcomes()) == ["succeeded", "superseded"]
