"""Wake-ups: a listener hears of what others have committed, and of nothing else."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from functools import partial
from select import select

import pytest
from django.db import transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq.store.offers import CLOCK_SKEW
from tests.store.given import NOW, message, together, undone


@pytest.fixture
def fresh(store):
    """A store that has not sent a wake-up yet: after one, it skips those that follow at once."""
    return type(store)(store.database)


@pytest.fixture
def listener(fresh):
    with closing(fresh.listener()) as listening:
        yield listening


def hears(listener):
    """Whether there is something to hear, given a moment where it is delivered."""
    if listener.interval is None:
        select([listener], [], [], 5)
    return listener.heard()


def test_nothing_is_heard_when_nothing_happens(fresh, listener):
    fresh.scan()
    assert not listener.heard()


def test_an_offer_that_is_due_is_heard_by_others_once(fresh, listener):
    fresh.offer(message(scheduled_at=None))

    assert hears(listener)
    assert not listener.heard()


def test_a_batch_and_an_offer_of_another_thread_are_heard(fresh, listener):
    fresh.offer_many([message(scheduled_at=None)] * 3)
    assert hears(listener)

    together(partial(type(fresh)(fresh.database).offer, message(scheduled_at=None)))
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
def test_no_notification_is_sent_within_the_callers_transaction_or_for_the_far_future(fresh, connection, alias):
    with CaptureQueriesContext(connection) as captured:
        with transaction.atomic(using=alias):
            fresh.offer(message(scheduled_at=None))
        fresh.offer(message(scheduled_at=NOW.replace(year=2126)))
    notes = [number for number, query in enumerate(captured) if "pg_notify" in query["sql"]]
    commits = [number for number, query in enumerate(captured) if query["sql"] == "COMMIT"]
    assert len(notes) == 1
    assert notes[0] > commits[0]


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_host_whose_clock_is_slow_notifies_of_what_is_due_soon(fresh, listener, monkeypatch):
    real = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: real - CLOCK_SKEW)
    fresh.offer(message(scheduled_at=real + timedelta(seconds=1)))
    assert hears(listener)


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_wake_ups_in_quick_succession_are_one_notification(fresh, connection, monkeypatch):
    monkeypatch.setattr("delayedq.store.postgresql.store.NOTIFY_GAP", 60)
    with CaptureQueriesContext(connection) as captured:
        for _ in range(100):
            fresh.notify()
    assert len(captured) == 1
