"""Holding a lease, letting it go, and taking a message away from whoever holds it."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from delayedq.models import Message
from tests.store.given import (
    KIND,
    LEASE,
    NOW,
    at,
    claim,
    claim_one,
    history,
    keys,
    live,
    message,
    outcomes,
    retry,
    settle,
    succeed,
)


def held(*claims):
    return [(claimed.id, claimed.token) for claimed in claims]


# Renew


def test_a_renewed_lease_holds_that_much_longer(store):
    store.offer(message("a"), now=NOW)
    claimed = claim_one(store)

    assert store.renew(held(claimed), LEASE, at(30)) == set()
    assert live("a").leased_until == at(90)
    assert claim(store, now=at(89.999)) == []
    assert claim_one(store, now=at(90)).attempt == 2


def test_renewing_never_shortens_a_lease(store):
    store.offer(message("a"), now=NOW)
    claimed = claim_one(store)

    assert store.renew(held(claimed), timedelta(seconds=5), at(10)) == set()
    assert live("a").leased_until == at(60)


def test_renewing_changes_nothing_but_the_lease(store):
    store.offer(message("a"), now=NOW)
    claimed = claim_one(store)
    before = Message.objects.values().get()
    store.renew(held(claimed), LEASE, at(30))

    assert Message.objects.values().get() == before | {"leased_until": at(90)}
    assert settle(store, succeed(claimed)).lost == frozenset()


def test_a_lease_that_expired_unnoticed_can_still_be_renewed(store):
    store.offer(message("a"), now=NOW)

    assert store.renew(held(claim_one(store)), LEASE, at(100)) == set()
    assert claim(store, now=at(159)) == []


def test_renewing_tells_which_leases_are_lost_and_extends_the_others(store):
    store.offer_many([message(key) for key in "abcd"], now=NOW)
    a, b, c, d = claim(store, 4)
    settle(store, succeed(a), retry(b, delay=500))
    store.unschedule(KIND, "c", NOW)

    assert store.renew(held(a, b, c, d), LEASE, at(30)) == set(held(a, b, c))
    assert live("d").leased_until == at(90)
    assert live("b").leased_until is None


def test_a_replaced_message_can_be_renewed_by_who_still_runs_it(store):
    store.offer(message("a", "1"), now=NOW)
    claimed = claim_one(store)
    store.offer(message("a", "2"), now=NOW)

    assert store.renew(held(claimed), LEASE, at(30)) == set()
    assert claim(store, now=at(89)) == []


def test_without_now_a_lease_is_renewed_on_the_databases_clock(store):
    store.offer(message("a", scheduled_at=None))
    store.renew(held(claim_one(store, now=None)), timedelta(hours=1))

    assert abs(live("a").leased_until - timezone.now() - timedelta(hours=1)) < timedelta(seconds=5)


def test_nothing_to_renew_loses_nothing(store):
    assert store.renew([], LEASE, NOW) == set()


# Release


def test_released_messages_wait_again_uncharged_and_in_their_place(store):
    store.offer_many([message(key) for key in "abc"], now=NOW)
    a, b, _ = claim(store, 3)
    store.release(held(a, b))

    again = claim(store, 3)
    assert keys(again) == ["a", "b"]
    assert [claimed.attempt for claimed in again] == [1, 1]
    assert outcomes() == []


def test_releasing_keeps_the_attempts_that_were_made(store):
    store.offer(message("a"), now=NOW)
    settle(store, retry(claim_one(store), errors='["one"]'))
    store.release(held(claim_one(store)))

    row = live("a")
    assert (row.attempt, row.errors, row.leased_by, row.leased_until) == (1, '["one"]', None, None)


def test_releasing_a_replaced_message_keeps_the_replacement_whole(store):
    store.offer(message("a", "1"), now=NOW)
    claimed = claim_one(store)
    store.offer(message("a", "2"), now=NOW)
    store.release(held(claimed))

    again = claim_one(store)
    assert (again.payload, again.attempt) == ("2", 1)


def test_releasing_what_is_gone_or_nothing_does_nothing(store):
    store.offer(message("a"), now=NOW)
    claimed = claim_one(store)
    settle(store, succeed(claimed))
    store.release(held(claimed))
    store.release([])

    assert outcomes() == ["succeeded"]
    assert not Message.objects.exists()


# Unschedule


def test_an_unscheduled_message_is_cancelled_history(store):
    offer = message("a", '{"x": 1}', priority=3, metadata='"m"', max_attempts=4, scheduled_at=at(50))
    id_ = store.offer(offer, now=at(-1)).id

    assert store.unschedule(KIND, "a", at(2)) is True
    assert not Message.objects.exists()
    row = history()
    assert (row.pk, row.outcome, row.finished_at, row.started_at) == (id_, "cancelled", at(2), None)
    assert (row.scheduled_at, row.scheduled_at_initially, row.created_at) == (at(50), at(50), at(-1))
    assert (row.queue, row.kind, row.key, row.priority, row.worker) == ("mail", KIND, "a", 3, None)
    assert (row.payload, row.metadata, row.attempts, row.max_attempts) == ('{"x": 1}', '"m"', 0, 4)
    assert (row.result, row.errors) == (None, None)


def test_unscheduling_a_key_that_is_not_live_is_false_and_writes_nothing(store):
    store.offer_many([message("a", kind="other"), message("A"), message()], now=NOW)

    assert store.unschedule(KIND, "a", NOW) is False
    assert outcomes() == []
    assert Message.objects.count() == 3


def test_unscheduling_twice_is_false_the_second_time(store):
    store.offer(message("a"), now=NOW)

    assert [store.unschedule(KIND, "a", NOW) for _ in range(2)] == [True, False]
    assert outcomes() == ["cancelled"]


def test_unscheduling_what_a_worker_runs_takes_its_lease_away(store):
    store.offer(message("a"), now=NOW)
    claimed = claim_one(store, worker="w-7")

    assert store.unschedule(KIND, "a", at(1)) is True
    assert store.renew(held(claimed), LEASE, at(2)) == set(held(claimed))
    assert settle(store, succeed(claimed), now=at(3)).lost == {claimed.id}
    assert (history().outcome, history().attempts, history().worker) == ("cancelled", 1, "w-7")


def test_unscheduling_uses_the_databases_clock(store):
    store.offer(message("a"))
    store.unschedule(KIND, "a")

    assert abs(history().finished_at - timezone.now()) < timedelta(seconds=5)
