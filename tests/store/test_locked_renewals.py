"""Beside SQLite: a lease whose row somebody's open transaction has locked is renewed all the same, or called busy."""

from __future__ import annotations

import time
from datetime import timedelta
from threading import Event

import pytest
from django.db import transaction

from delayedq.models import LockedRenewal, Message
from delayedq.store import operator_store
from delayedq.store.operator import Seen
from delayedq.store.protocol import ClaimRequest, Renewed, Settled
from tests.store.given import (
    LANE,
    LEASE,
    NOW,
    at,
    claim,
    elsewhere,
    keys,
    live,
    message,
    retry,
    settle,
    succeed,
    together,
    undone,
)

pytestmark = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture
def running(store):
    """The claims of "a" and "b", which hold until at(60)."""
    store.at(NOW).offer_many([message("a", "1"), message("b", "1")])
    return claim(store, 2)


@pytest.fixture
def renewed(store, alias, running):
    """The claim of "a", renewed until at(90) while a transaction replaced it."""
    with transaction.atomic(using=alias):
        store.at(NOW).offer(message("a", "2"))
        assert elsewhere(store.at(at(30)).renew, pairs(*running), LEASE) == Renewed()
    return running[0]


def pairs(*claims):
    return [(claimed.id, claimed.token) for claimed in claims]


def beside():
    return dict(LockedRenewal.objects.values_list("message_id", "leased_until"))


def test_a_lease_is_renewed_beside_its_locked_row(store, alias, running):
    a, b = running
    with transaction.atomic(using=alias):
        store.at(NOW).offer(message("a", "2"))
        assert elsewhere(store.at(at(30)).renew, pairs(a, b), LEASE) == Renewed()
        assert (live("a").leased_until, live("b").leased_until) == (at(60), at(90))
        assert beside() == {a.id: at(90)}
        assert elsewhere(store.at(at(80)).renew, pairs(a, b), LEASE) == Renewed()
        assert beside() == {a.id: at(140)}

    assert store.at(at(100)).renew(pairs(a), timedelta(seconds=1)) == Renewed()
    assert live("a").leased_until == at(101)
    assert claim(store, 9, now=at(139)) == []


def test_renewing_beside_a_locked_row_never_shortens_a_lease(store, alias, renewed):
    with undone(alias):
        store.at(NOW).offer(message("a", "3"))
        assert elsewhere(store.at(at(40)).renew, pairs(renewed), timedelta(seconds=5)) == Renewed()
    assert beside() == {renewed.id: at(90)}


def test_what_was_renewed_beside_its_row_is_nobody_elses_until_that_has_run_out(store, renewed):
    expired = store.at(at(89.9))
    assert expired.claim(ClaimRequest([LANE], 9, LEASE, "second")) == []
    assert expired.claim_matching(LANE, [], 9, LEASE, "second") == []
    assert expired.claim_unchanged(renewed.id, 1, LEASE, "second") is None
    assert (expired.scan(), expired.peek([LANE])) == ([], [])

    assert keys(store.at(at(90)).claim(ClaimRequest([LANE], 1, LEASE, "second"))) == ["a"]


def test_what_was_renewed_beside_its_row_is_no_operators_until_that_has_run_out(store, renewed):
    seen = Seen._make(Message.objects.values_list(*Seen._fields).get(id=renewed.id))
    operator = operator_store(store.alias)
    assert operator.at(at(89.9)).cancel([seen]) == set()
    assert operator.at(at(90)).cancel([seen]) == {renewed.id}


def test_its_end_is_settled_and_its_replacement_can_be_claimed_at_once(store, renewed):
    assert settle(store, succeed(renewed), now=at(70)) == Settled(superseded=frozenset({renewed.id}))
    assert keys(claim(store, 1, now=at(70))) == ["a"]


def test_the_lease_of_another_claim_is_no_renewal_of_this_one(store, renewed):
    settle(store, retry(renewed), now=at(70))
    (second,) = claim(store, 1, now=at(70), lease=timedelta(seconds=5))
    assert second.id == renewed.id
    assert keys(claim(store, 1, now=at(75))) == ["a"]


def test_a_lease_that_had_run_out_before_is_busy_and_renewed_when_the_row_is_free(store, alias, running):
    a, b = running
    with transaction.atomic(using=alias):
        store.at(NOW).offer(message("a", "2"))
        assert elsewhere(store.at(at(61)).renew, pairs(a, b), LEASE) == Renewed(busy=frozenset(pairs(a)))
    assert beside() == {}

    assert store.at(at(61)).renew(pairs(a, b), LEASE) == Renewed()
    assert live("a").leased_until == at(121)


def test_a_renewal_that_was_committed_too_late_is_taken_back_and_busy(store, alias, running, monkeypatch):
    a, _ = running
    keep_locked = type(store)._keep_locked

    def keep_slowly(*args):
        keep_locked(*args)
        time.sleep(0.05)

    monkeypatch.setattr(type(store), "_keep_locked", keep_slowly)
    with undone(alias):
        store.at(NOW).offer(message("a", "2"))
        assert elsewhere(store.at(at(59.99)).renew, pairs(a), LEASE) == Renewed(busy=frozenset(pairs(a)))
    assert beside() == {}
    assert keys(claim(store, 1, now=at(60))) == ["a"]


def test_a_renewal_that_comes_after_the_next_claim_takes_nothing_from_its_holder(store, alias, running, monkeypatch):
    """Its process slept between the two statements of a renewal, for longer than its lease."""
    first, _ = running
    locked, asleep, awake = Event(), Event(), Event()
    keep_locked = type(store)._keep_locked

    def sleep_and_keep(store, held, lease):
        if (first.id, first.token) in held:
            asleep.set()
            assert awake.wait(30)
        keep_locked(store, held, lease)

    def renew():
        assert locked.wait(30)
        store.at(at(30)).renew(pairs(first), LEASE)

    def overtake():
        with transaction.atomic(using=alias):
            store.at(NOW).offer(message("a", "2"))
            locked.set()
            assert asleep.wait(30)
        (second,) = claim(store, 1, now=at(61))
        with transaction.atomic(using=alias):
            store.at(NOW).offer(message("a", "3"))
            assert elsewhere(store.at(at(62)).renew, pairs(second), LEASE * 10) == Renewed()
        awake.set()

    monkeypatch.setattr(type(store), "_keep_locked", sleep_and_keep)
    together(renew, overtake)
    assert beside() == {first.id: at(662)}
    assert keys(claim(store, 9, now=at(661))) == ["b"]


def test_within_a_transaction_what_is_locked_is_busy(store, alias, running):
    def renew():
        with transaction.atomic(using=alias):
            return store.at(at(30)).renew(pairs(*running), LEASE)

    with undone(alias):
        store.at(NOW).offer(message("a", "2"))
        assert elsewhere(renew) == Renewed(busy=frozenset(pairs(running[0])))
    assert beside() == {}


def test_what_a_transaction_took_away_is_lost(store, alias, running):
    a, b = running
    with transaction.atomic(using=alias):
        store.at(NOW).unschedule(a.kind, "a")
        assert elsewhere(store.at(at(30)).renew, pairs(a, b), LEASE) == Renewed()
    assert store.at(at(40)).renew(pairs(a, b), LEASE) == Renewed(lost=frozenset(pairs(a)))


def test_what_has_run_out_beside_its_row_is_deleted_by_a_later_renewal(store, alias):
    store.offer_many([message("a"), message("b")])
    a, b = store.claim(ClaimRequest([LANE], 2, LEASE, "first"))
    short = timedelta(seconds=0.3)

    def renew_beside(claimed, lease):
        with undone(alias):
            store.offer(message(claimed.key, "2"))
            assert elsewhere(store.renew, pairs(claimed), lease) == Renewed()

    renew_beside(a, LEASE)
    store.renew(pairs(a), LEASE)
    assert set(beside()) == {a.id}
    renew_beside(b, short)
    assert set(beside()) == {a.id, b.id}
    time.sleep(short.total_seconds())
    store.renew(pairs(b), LEASE)
    assert set(beside()) == {a.id}


@pytest.fixture
def left_behind(store):
    """By a process that was killed: this one knows nothing of it."""
    LockedRenewal.objects.create(message_id=10**9, lease_token=1, leased_until=at(30))
    LockedRenewal.objects.create(message_id=10**9 + 1, lease_token=1, leased_until=at(90))


def test_what_a_killed_process_left_beside_rows_is_deleted_when_it_has_run_out(store, left_behind):
    store.at(at(30)).sweep()
    assert beside() == {10**9 + 1: at(90)}


def test_the_next_renewal_beside_a_locked_row_deletes_it_too(store, alias, running, left_behind):
    a, _ = running
    with undone(alias):
        store.at(NOW).offer(message("a", "2"))
        assert elsewhere(store.at(at(40)).renew, pairs(a), LEASE) == Renewed()
    assert beside() == {a.id: at(100), 10**9 + 1: at(90)}
