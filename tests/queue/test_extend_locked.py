"""Beside SQLite: extending a delivery whose message another open transaction has locked."""

from __future__ import annotations

import time
from datetime import timedelta
from threading import Event

import pytest
from django.db import transaction
from django.utils import timezone

from delayedq.models import Message
from tests.store.given import NOW, together

pytestmark = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
PATIENCE = 30


@pytest.fixture
def queue(make):
    return make(clock=None)


class Locked:
    """Another thread's transaction that offers the key "a" again, and stays open until the end of `act`."""

    def __init__(self, queue, alias):
        self.queue, self.alias, self.locked, self.done = queue, alias, Event(), Event()

    def lock(self):
        with transaction.atomic(using=self.alias):
            self.queue.offer_or_update("a", 2, NOW)
            self.locked.set()
            assert self.done.wait(PATIENCE)

    def during(self, act):
        def wait_and_act():
            assert self.locked.wait(PATIENCE)
            try:
                return act()
            finally:
                self.done.set()

        return together(self.lock, wait_and_act)[1]


@pytest.fixture
def locked(queue, alias):
    return Locked(queue, alias)


def test_what_is_extended_while_it_is_locked_is_nobody_elses(queue, locked):
    queue.offer_or_update("a", 1, NOW)
    envelope = queue.try_poll()
    assert locked.during(lambda: envelope.extend(timedelta(seconds=120)))
    Message.objects.update(leased_until=timezone.now() - timedelta(seconds=1))  # as if that lease had run out by now
    assert Message.objects.leased().exists()
    assert queue.try_poll() is None
    assert envelope.acknowledge() == "superseded"
    assert queue.try_poll().payload == 2


def test_what_stays_locked_within_a_transaction_is_not_extended(make, alias):
    queue = make(clock=None, lease=timedelta(seconds=1.5))
    queue.offer_or_update("a", 1, NOW)
    envelope = queue.try_poll()

    def extend():
        with transaction.atomic(using=alias):
            return envelope.extend(timedelta(seconds=60))

    assert Locked(queue, alias).during(extend) is False
    assert time.monotonic() >= envelope.held_until()


def test_what_becomes_free_within_its_lease_is_extended(queue, locked, alias):
    queue.offer_or_update("a", 1, NOW)
    envelope = queue.try_poll()
    (extended,) = together(lambda: envelope.extend(timedelta(seconds=60)))
    assert extended
    assert Message.objects.leased().exists()


def test_a_batch_of_which_one_is_locked_waits_as_long_as_that_is_leased(make, alias):
    queue = make(clock=None, lease=timedelta(seconds=0.2))
    for key in "ab":
        queue.offer_or_update(key, 1, NOW)
    batch = queue.try_poll_many(2)
    extended, _ = batch
    assert extended.extend(timedelta(seconds=0.6))

    assert Locked(queue, alias).during(batch.acknowledge) == ["busy", "acknowledged"]
    assert time.monotonic() >= extended.held_until()
