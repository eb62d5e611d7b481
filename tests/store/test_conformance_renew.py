"""Holding a lease, letting it go, and taking a message away from its holder."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from delayedq.models import Message
from delayedq.store.protocol import Renewed
from tests.store.given import (
    KIND,
    LEASE,
    NOW,
    at,
    claim,
    claim_one,
    history,
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
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store)

    assert store.at(at(30)).renew(held(claimed), LEASE) == Renewed()
    assert live("a").leased_until == at(90)
    assert claim(store, now=at(89.999)) == []
    assert claim_one(store, now=at(90)).attempt == 2


def test_renewing_never_shortens_a_lease(store):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store)

    assert store.at(at(10)).renew(held(claimed), timedelta(seconds=5)) == Renewed()
    assert live("a").leased_until == at(60)


def test_renewing_changes_nothing_but_the_lease(store):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store)
    before = Message.objects.values().get()
    store.at(at(30)).renew(held(claimed), LEASE)

    assert Message.objects.values().get() == before | {"leased_until": at(90)}
    assert settle(store, succeed(claimed)).lost == frozenset()


def test_a_lease_that_expired_unnoticed_can_still_be_renewed(store):
    store.at(NOW).offer(message("a"))

    assert store.at(at(100)).renew(held(claim_one(store)), LEASE) == Renewed()
    assert claim(store, now=at(159)) == []


def test_renewing_tells_which_leases_are_lost_and_extends_the_others(store):
    store.at(NOW).offer_many([message(key) for key in "abcd"])
    a, b, c, d = claim(store, 4)
    settle(store, succeed(a), retry(b, delay=500))
    store.at(NOW).unschedule(KIND, "c")

    assert store.at(at(30)).renew(held(a, b, c, d), LEASE).lost == set(held(a, b, c))
    assert live("d").leased_until == at(90)
    assert live("b").leased_until is None


def test_a_replaced_message_can_be_renewed_by_who_still_runs_it(store):
    store.at(NOW).offer(message("a", "1"))
    claimed = claim_one(store)
    store.at(NOW).offer(message("a", "2"))

    assert store.at(at(30)).renew(held(claimed), LEASE) == Renewed()
    assert claim(store, now=at(89)) == []


def test_without_now_a_lease_is_renewed_on_the_databases_clock(store):
    store.offer(message("a", scheduled_at=None))
    store.renew(held(claim_one(store, now=None)), timedelta(hours=1))

    assert abs(live("a").leased_until - timezone.now() - timedelta(hours=1)) < timedelta(seconds=5)


def test_nothing_to_renew_loses_nothing(store):
    assert store.at(NOW).renew([], LEASE) == Renewed()


# Unschedule


def test_an_unscheduled_message_is_cancelled_history(store):
    offer = message("a", '{"x": 1}', priority=3, metadata='"m"', max_attempts=4, scheduled_at=at(50))
    id_ = store.at(at(-1)).offer(offer).id

    assert store.at(at(2)).unschedule(KIND, "a") is True
    assert not Message.objects.exists()
    row = history()
    assert (row.pk, row.outcome, row.finished_at, row.started_at) == (id_, "cancelled", at(2), None)
    assert (row.scheduled_at, row.scheduled_at_initially, row.created_at) == (at(50), at(50), at(-1))
    assert (row.queue, row.kind, row.key, row.priority, row.worker) == ("mail", KIND, "a", 3, None)
    assert (row.payload, row.metadata, row.attempts, row.max_attempts) == ('{"x": 1}', '"m"', 0, 4)
    assert (row.result, row.errors) == (None, None)


def test_unscheduling_a_key_that_is_not_live_is_false_and_writes_nothing(store):
    store.at(NOW).offer_many([message("a", kind="other"), message("A"), message()])

    assert store.at(NOW).unschedule(KIND, "a") is False
    assert outcomes() == []
    assert Message.objects.count() == 3


def test_unscheduling_twice_is_false_the_second_time(store):
    store.at(NOW).offer(message("a"))

    assert [store.at(NOW).unschedule(KIND, "a") for _ in range(2)] == [True, False]
    assert outcomes() == ["cancelled"]


def test_unscheduling_what_a_worker_runs_takes_its_lease_away(store):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store, worker="w-7")

    assert store.at(at(1)).unschedule(KIND, "a") is True
    assert store.at(at(2)).renew(held(claimed), LEASE).lost == set(held(claimed))
    assert settle(store, succeed(claimed), now=at(3)).lost == {claimed.id}
    assert (history().outcome, history().attempts, history().worker) == ("cancelled", 1, "w-7")


def test_unscheduling_uses_the_databases_clock(store):
    store.offer(message("a"))
    store.unschedule(KIND, "a")

    assert abs(history().finished_at - timezone.now()) < timedelta(seconds=5)
