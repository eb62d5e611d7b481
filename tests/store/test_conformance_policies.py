"""The five policies for a key that is live already: while it waits, and while a worker runs it."""

from __future__ import annotations

import pytest

from delayedq.store.protocol import OfferOutcome, OnConflict, Settled
from tests.store.given import (
    KIND,
    NOTHING_AMISS,
    NOW,
    at,
    claim,
    claim_one,
    live,
    message,
    outcomes,
    retry,
    settle,
    succeed,
)

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED
REPLACE, KEEP, PRESERVE_TIME, EARLIEST, LATEST = OnConflict

ALL = pytest.mark.parametrize("policy", OnConflict)
UPDATING = pytest.mark.parametrize("policy", [policy for policy in OnConflict if policy is not KEEP])


@ALL
def test_every_policy_creates_a_key_that_is_not_live(store, policy):
    assert store.at(NOW).offer(message("a", scheduled_at=at(5)), policy).outcome == CREATED
    assert live("a").scheduled_at == at(5)


# A message that waits, due at 100


@pytest.mark.parametrize(
    ("policy", "offered_at", "outcome", "payload", "due"),
    [
        (REPLACE, 50, UPDATED, "2", 50),
        (REPLACE, 150, UPDATED, "2", 150),
        (KEEP, 50, IGNORED, "1", 100),
        (KEEP, 150, IGNORED, "1", 100),
        (PRESERVE_TIME, 50, UPDATED, "2", 100),
        (PRESERVE_TIME, 150, UPDATED, "2", 100),
        (EARLIEST, 50, UPDATED, "2", 50),
        (EARLIEST, 150, UPDATED, "2", 100),
        (LATEST, 50, UPDATED, "2", 100),
        (LATEST, 150, UPDATED, "2", 150),
    ],
)
def test_another_payload_for_a_waiting_message(store, policy, offered_at, outcome, payload, due):
    created = store.at(NOW).offer(message("a", "1", scheduled_at=at(100)))

    assert store.at(NOW).offer(message("a", "2", scheduled_at=at(offered_at)), policy)[:2] == (outcome, created.id)
    row = live("a")
    assert (row.payload, row.scheduled_at, row.scheduled_at_initially) == (payload, at(due), at(due))


@pytest.mark.parametrize(
    ("policy", "offered_at", "outcome", "due"),
    [
        (REPLACE, 50, UPDATED, 50),
        (REPLACE, 150, UPDATED, 150),
        (KEEP, 50, IGNORED, 100),
        (PRESERVE_TIME, 50, IGNORED, 100),
        (PRESERVE_TIME, 150, IGNORED, 100),
        (EARLIEST, 50, UPDATED, 50),
        (EARLIEST, 150, IGNORED, 100),
        (LATEST, 50, IGNORED, 100),
        (LATEST, 150, UPDATED, 150),
    ],
)
def test_the_same_payload_at_another_time_for_a_waiting_message(store, policy, offered_at, outcome, due):
    store.at(NOW).offer(message("a", scheduled_at=at(100)))

    assert store.at(NOW).offer(message("a", scheduled_at=at(offered_at)), policy).outcome == outcome
    assert live("a").scheduled_at == at(due)


@ALL
def test_the_same_again_is_ignored_and_writes_nothing(store, policy):
    store.at(NOW).offer(message("a", scheduled_at=at(100)))
    before = vars(live("a")) | {"_state": None}

    assert store.at(NOW).offer(message("a", scheduled_at=at(100)), policy).outcome == IGNORED
    assert vars(live("a")) | {"_state": None} == before


@UPDATING
def test_an_update_starts_the_attempts_of_a_retried_message_over(store, policy):
    store.at(NOW).offer(message("a", "1"))
    settle(store, retry(claim_one(store), delay=10, errors='["boom"]'))

    store.at(NOW).offer(message("a", "2", scheduled_at=at(20)), policy)
    assert (live("a").attempt, live("a").errors) == (0, None)
    assert claim_one(store, now=at(30)).attempt == 1


def test_a_retry_that_moved_the_time_does_not_make_the_same_offer_a_new_one(store):
    store.at(NOW).offer(message("a"))
    settle(store, retry(claim_one(store), delay=10))

    assert store.at(NOW).offer(message("a")).outcome == IGNORED
    assert (live("a").scheduled_at, live("a").attempt) == (at(10), 1)


def test_a_batch_follows_its_policy_too(store):
    store.at(NOW).offer_many([message("a", "1", scheduled_at=at(100)), message("b", "1", scheduled_at=at(100))])
    batch = [message("a", "2", scheduled_at=at(50)), message("b", "2", scheduled_at=at(150))]

    assert [offered.outcome for offered in store.at(NOW).offer_many(batch, EARLIEST)] == [UPDATED, UPDATED]
    assert [live(key).scheduled_at for key in "ab"] == [at(50), at(100)]


# A message that a worker runs


@ALL
def test_the_same_again_while_it_runs_is_ignored_and_not_delivered_twice(store, policy):
    store.at(NOW).offer(message("a"))
    running = claim_one(store)

    assert store.at(NOW).offer(message("a"), policy)[:2] == (IGNORED, running.id)
    assert settle(store, succeed(running)) == NOTHING_AMISS
    assert claim(store, now=at(1000)) == []
    assert outcomes() == ["succeeded"]


def test_keep_leaves_a_running_message_alone(store):
    store.at(NOW).offer(message("a", "1"))
    running = claim_one(store)

    assert store.at(NOW).offer(message("a", "2", scheduled_at=at(5)), KEEP)[:2] == (IGNORED, running.id)
    assert settle(store, succeed(running)) == NOTHING_AMISS
    assert claim(store, now=at(1000)) == []


@UPDATING
@pytest.mark.parametrize("offered_at", [-50, 50])
def test_an_update_while_it_runs_is_one_more_run_at_the_offered_time(store, policy, offered_at):
    store.at(NOW).offer(message("a", "1"))
    running = claim_one(store)

    assert store.at(NOW).offer(message("a", "2", scheduled_at=at(offered_at)), policy)[:2] == (UPDATED, running.id)
    assert claim(store, now=at(51)) == [], "the replacement runs beside the run it replaces"

    assert settle(store, succeed(running)) == Settled(superseded=frozenset({running.id}))
    assert claim(store, now=at(offered_at - 0.001)) == []
    again = claim_one(store, now=at(51))
    assert (again.id, again.payload, again.attempt) == (running.id, "2", 1)
    assert again.scheduled_at == again.scheduled_at_initially == at(offered_at)
    assert settle(store, succeed(again), now=at(52)) == NOTHING_AMISS
    assert claim(store, now=at(1000)) == []
    assert outcomes() == ["superseded", "succeeded"]


def test_several_updates_while_it_runs_are_one_more_run_of_the_last(store):
    store.at(NOW).offer(message("a", "1"))
    running = claim_one(store)
    for payload in "234":
        store.at(NOW).offer(message("a", payload))
    settle(store, succeed(running))

    assert claim_one(store).payload == "4"
    assert claim(store) == []


@pytest.mark.parametrize(
    ("policy", "due"), [(REPLACE, 200), (PRESERVE_TIME, 100), (EARLIEST, 100), (LATEST, 200)], ids=str
)
@pytest.mark.parametrize("now", [0, 61], ids=["while it runs", "when its lease has run out"])
def test_a_second_update_of_what_a_worker_claimed_follows_its_policy(store, policy, due, now):
    """The first has given the next run its time. A throttle that moved it with each offer would never be due."""
    store.at(NOW).offer(message("a", "1"))
    claim_one(store)
    store.at(at(now)).offer(message("a", "2", scheduled_at=at(100)), policy)

    assert store.at(at(now)).offer(message("a", "3", scheduled_at=at(200)), policy).outcome == UPDATED
    row = live("a")
    assert (row.payload, row.scheduled_at, row.scheduled_at_initially) == ("3", at(due), at(due))


def test_an_update_after_the_lease_expired_is_what_the_next_worker_gets(store):
    store.at(NOW).offer(message("a", "1"))
    claim_one(store)
    store.at(at(61)).offer(message("a", "2"))

    again = claim_one(store, now=at(61), worker="second")
    assert (again.payload, again.attempt) == ("2", 1)
    assert settle(store, succeed(again), now=at(62)) == NOTHING_AMISS


def test_unscheduled_after_an_update_while_it_runs_nothing_runs_again(store):
    store.at(NOW).offer(message("a", "1"))
    running = claim_one(store)
    store.at(NOW).offer(message("a", "2"))

    assert store.at(NOW).unschedule(KIND, "a")
    assert settle(store, succeed(running)).lost == {running.id}
    assert claim(store, now=at(1000)) == []
