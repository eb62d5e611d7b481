"""Fencing: who lost a lease, or holds a message that was replaced, can neither end nor move it."""

from __future__ import annotations

import pytest

from delayedq.core.lifecycle import FinalOutcome
from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import Finish, GiveBack, Settled
from tests.store.given import (
    KIND,
    LEASE,
    NOTHING_AMISS,
    NOW,
    at,
    claim,
    claim_one,
    fail,
    history,
    live,
    message,
    outcomes,
    put_back,
    retry,
    settle,
    succeed,
)


@pytest.fixture
def zombie(store):
    """The claim of a worker that froze past its lease; another has the message since, until 121."""
    store.at(NOW).offer(message("a", "1", max_attempts=5))
    frozen = claim_one(store, worker="frozen")
    claim_one(store, now=at(61), worker="second")
    return frozen


LATE = {
    "finish": succeed,
    "fail": fail,
    "retry": lambda claimed: retry(claimed, delay=0.0, errors='["zombie"]'),
    "snooze": lambda claimed: GiveBack(claimed, charged=False, started=1.0, until=at(900)),
    "put back": put_back,
}
EACH_LATE_END = pytest.mark.parametrize("end", LATE.values(), ids=LATE)


# A lease that another worker has taken over


@EACH_LATE_END
def test_a_frozen_worker_that_wakes_up_changes_nothing_and_is_told(store, zombie, end):
    before = Message.objects.values().get()

    assert settle(store, end(zombie), now=at(62), worker="frozen") == Settled(lost=frozenset({zombie.id}))
    assert Message.objects.values().get() == before
    assert outcomes() == []


def test_a_frozen_worker_can_neither_renew_nor_release(store, zombie):
    before = Message.objects.values().get()

    assert store.at(at(62)).renew([(zombie.id, zombie.token)], LEASE).lost == {(zombie.id, zombie.token)}
    store.release([(zombie.id, zombie.token)])
    assert Message.objects.values().get() == before


@EACH_LATE_END
def test_after_a_frozen_worker_the_new_holder_ends_the_message(store, end):
    store.at(NOW).offer(message("a", "1"))
    frozen = claim_one(store)
    second = claim_one(store, now=at(61), worker="second")
    settle(store, end(frozen), now=at(62))

    assert settle(store, succeed(second), now=at(63)) == NOTHING_AMISS
    assert (history().outcome, history().worker, history().attempts) == ("succeeded", "second", 2)


@EACH_LATE_END
def test_a_frozen_worker_is_told_also_when_the_message_has_ended_meanwhile(store, end):
    store.at(NOW).offer(message("a", "1"))
    frozen = claim_one(store)
    settle(store, succeed(claim_one(store, now=at(61), worker="second"), result='"second"'), now=at(62))

    assert settle(store, end(frozen), now=at(63)) == Settled(lost=frozenset({frozen.id}))
    assert history().result == '"second"'
    assert not Message.objects.exists()


def test_a_frozen_worker_is_told_also_when_the_message_waits_again(store, zombie):
    store.release([(zombie.id, live("a").lease_token)])

    assert settle(store, succeed(zombie), now=at(62)).lost == {zombie.id}
    assert (live("a").lease_token, outcomes()) == (None, [])


def test_ending_twice_is_safe_and_the_second_time_is_told(store):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store)
    settle(store, succeed(claimed))

    assert settle(store, succeed(claimed), now=at(5)) == Settled(lost=frozenset({claimed.id}))
    assert settle(store, retry(claimed), now=at(5)) == Settled(lost=frozenset({claimed.id}))
    assert history().finished_at == at(-1)


def test_ending_what_was_given_back_is_told(store):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store)
    settle(store, retry(claimed, delay=0.0))

    assert settle(store, succeed(claimed)).lost == {claimed.id}
    assert claim_one(store).attempt == 2


def test_only_the_lost_ones_of_a_batch_are_refused(store):
    store.at(NOW).offer_many([message(key) for key in "abcd"])
    a, b, c, d = claim(store, 4)
    settle(store, succeed(a))
    claimed_again = claim(store, 1, now=at(61), worker="second")[0]
    assert claimed_again.id == b.id

    settled = settle(store, succeed(a), succeed(b), succeed(c), retry(d, delay=0.0), now=at(62))
    assert settled == Settled(lost=frozenset({a.id, b.id}))
    assert set(FinishedMessage.objects.values_list("key", flat=True)) == {"a", "c"}
    assert {row.key: row.leased_by for row in Message.objects.all()} == {"b": "second", "d": None}


def test_an_id_that_never_was_is_lost(store):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store)
    stranger = claimed._replace(id=claimed.id + 1000)

    assert settle(store, succeed(stranger), succeed(claimed)) == Settled(lost=frozenset({stranger.id}))


# A message that was replaced while it ran


@pytest.fixture
def replaced(store):
    """The claim of a message that was offered with another payload while it ran."""
    store.at(at(-9)).offer(message("a", "1", metadata='"m1"', max_attempts=5, scheduled_at=at(-5)))
    settle(store, retry(claim_one(store), errors='["one"]'))
    claimed = claim_one(store)
    store.at(NOW).offer(message("a", "2", metadata='"m2"', max_attempts=7, scheduled_at=at(20)))
    return claimed


@pytest.mark.parametrize("name", sorted(LATE.keys() - {"put back"}))
def test_whatever_ends_a_replaced_attempt_the_replacement_runs_once_more(store, replaced, name):
    assert settle(store, LATE[name](replaced), now=at(3)) == Settled(superseded=frozenset({replaced.id}))
    row = live("a")
    assert (row.payload, row.metadata, row.attempt, row.max_attempts) == ("2", '"m2"', 0, 7)
    assert (row.scheduled_at, row.scheduled_at_initially, row.errors) == (at(20), at(20), None)
    assert (row.lease_token, row.leased_until, row.leased_by) == (None, None, None)

    again = claim_one(store, now=at(20), worker="second")
    assert (again.id, again.payload, again.attempt, again.errors) == (replaced.id, "2", 1, None)
    assert settle(store, succeed(again), now=at(30)) == NOTHING_AMISS
    assert outcomes() == ["superseded", "succeeded"]
    assert history(pk=replaced.id).payload == "2"


def test_a_replaced_attempt_has_a_history_row_of_its_own(store, replaced):
    settle(store, Finish(replaced, FinalOutcome.FAILED, 2.0, 0.5, errors='["one", "two"]'), now=at(3), worker="w-7")

    row = history()
    assert row.outcome == "superseded"
    assert row.pk != replaced.id
    assert (row.started_at, row.finished_at) == (at(1), at(2.5))
    assert (row.scheduled_at, row.scheduled_at_initially, row.created_at) == (at(-5), at(-5), at(-9))
    assert (row.queue, row.kind, row.key, row.priority, row.worker) == ("mail", KIND, "a", 0, "w-7")
    assert (row.payload, row.metadata, row.attempts, row.max_attempts) == ("1", '"m1"', 2, 5)
    assert row.errors == '["one", "two"]'


def test_ids_of_replaced_attempts_are_never_those_of_messages(store, replaced):
    others = [store.at(NOW).offer(message("b")).id]
    settle(store, succeed(replaced), now=at(3))
    others += [offered.id for offered in store.at(NOW).offer_many([message(), message("c")])]

    assert len({history().pk, replaced.id, *others}) == 5
    settle(store, *map(succeed, claim(store, 9, now=at(50))))
    assert FinishedMessage.objects.count() == 5


def test_a_replaced_attempt_that_never_started_leaves_no_history(store, replaced):
    assert settle(store, put_back(replaced)) == Settled(superseded=frozenset({replaced.id}))
    assert outcomes() == []
    assert (live("a").attempt, live("a").payload, live("a").lease_token) == (0, "2", None)


def test_ending_a_replaced_attempt_twice_is_lost_the_second_time(store, replaced):
    settle(store, succeed(replaced))

    assert settle(store, succeed(replaced)) == Settled(lost=frozenset({replaced.id}))
    assert outcomes() == ["superseded"]
    assert live("a").payload == "2"


def test_the_replacement_waits_for_the_lease_if_its_worker_died(store, replaced):
    assert claim(store, now=at(59)) == []
    again = claim_one(store, now=at(60), worker="second")
    assert (again.payload, again.attempt) == ("2", 1)
    assert settle(store, succeed(replaced), now=at(61)).lost == {replaced.id}
    assert settle(store, succeed(again), now=at(62)) == NOTHING_AMISS
    assert outcomes() == ["succeeded"]


def test_a_batch_may_hold_ended_replaced_and_lost_ones(store):
    store.at(NOW).offer_many([message(key, "1") for key in "abcde"])
    a, b, c, d, e = claim(store, 5)
    store.at(NOW).offer_many([message("b", "2"), message("d", "2")])
    store.at(NOW).unschedule(KIND, "c")

    settled = settle(store, succeed(a), succeed(b), succeed(c), retry(d), retry(e, delay=9), now=at(1))
    assert settled == Settled(lost=frozenset({c.id}), superseded=frozenset({b.id, d.id}))
    rows = Message.objects.values_list("key", "payload", "attempt", "lease_token")
    assert set(rows) == {("b", "2", 0, None), ("d", "2", 0, None), ("e", "1", 1, None)}
    assert sorted(outcomes()) == ["cancelled", "succeeded", "superseded", "superseded"]


def test_a_message_replaced_before_its_claim_ends_normally(store):
    for payload in "123":
        store.at(NOW).offer(message("a", payload))

    claimed = claim_one(store)
    assert (claimed.payload, claimed.generation) == ("3", 2)
    assert settle(store, succeed(claimed)) == NOTHING_AMISS
    assert outcomes() == ["succeeded"]
