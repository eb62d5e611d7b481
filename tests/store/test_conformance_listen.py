"""Wake-ups: who listens hears of what others have committed, and of nothing else."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from select import select

import pytest
from django.db import transaction
from django.test.utils import CaptureQueriesContext

from tests.store.given import NOW, message, together, undone


@pytest.fixture
def fresh(store):
    """A store that has not just woken somebody, which would make it keep still for a moment."""
    return type(store)(store.alias)


@pytest.fixture
def listener(fresh):
    with closing(fresh.listener()) as listening:
        yield listening


def hears(listener):
    """Whether there is something to hear, given a moment where it is delivered."""
    if listener.interval is None:
        select([listener], [], [], 5)
    return listener.heard()


def test_nobody_hears_anything_when_nothing_happens(fresh, listener):
    fresh.look()
    assert not listener.heard()


def test_an_offer_that_is_due_is_heard_by_others_once(fresh, listener):
    fresh.offer(message(scheduled_at=None))

    assert hears(listener)
    assert not listener.heard()


def test_a_batch_and_an_offer_of_another_thread_are_heard(fresh, listener):
    fresh.offer_many([message(scheduled_at=None)] * 3)
    assert hears(listener)

    together(partial(type(fresh)(fresh.alias).offer, message(scheduled_at=None)))
    assert hears(listener)


def test_an_offer_within_a_transaction_is_heard_after_its_commit(fresh, listener, alias):
    with transaction.atomic(using=alias):
        fresh.offer(message(scheduled_at=None))
        assert not listener.heard()
    assert hears(listener)


def test_an_offer_that_rolls_back_is_not_heard(fresh, listener, alias):
    with undone(alias):
        fresh.offer(message(scheduled_at=None))
    assert not listener.heard()


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_nobody_is_notified_within_the_callers_transaction_or_of_what_is_far_off(fresh, connection, alias):
    with CaptureQueriesContext(connection) as captured:
        with transaction.atomic(using=alias):
            fresh.offer(message(scheduled_at=None))
        fresh.offer(message(scheduled_at=NOW.replace(year=2126)))
    notes = [number for number, query in enumerate(captured) if "pg_notify" in query["sql"]]
    commits = [number for number, query in enumerate(captured) if query["sql"] == "COMMIT"]
    assert len(notes) == 1
    assert notes[0] > commits[0]


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_wake_ups_in_quick_succession_are_one_notification(fresh, connection, monkeypatch):
    monkeypatch.setattr("delayedq.store.postgresql.NOTIFY_GAP", 60)
    with CaptureQueriesContext(connection) as captured:
        for _ in range(100):
            fresh.notify()
    assert len(captured) == 1
