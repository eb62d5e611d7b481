"""Waiting for messages: woken by offers near and far, by due times and by the end of the queue (B10, B11)."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from django.db import connections, transaction
from django.utils import timezone

from delayedq.exceptions import QueueClosed
from delayedq.queue import watch
from tests.store.given import NOW, at, together
from tests.worker.attempts import PATIENCE

#: Longer than any test: what ends a wait is not the next poll.
LONG = timedelta(seconds=2 * PATIENCE)


@pytest.fixture
def queue(make):
    """On the real clock, and with a poll interval that would fail the test."""
    return make(clock=None)


@pytest.fixture(autouse=True)
def _patience(settings):
    settings.DELAYEDQ = {"POLL_INTERVAL": timedelta(hours=1)}


def until_consumers_wait(queue, count=1):
    """Until this number of threads have polled, found nothing, and started to listen."""
    give_up = time.monotonic() + PATIENCE
    while listening(queue) < count:
        assert time.monotonic() < give_up
        time.sleep(0.001)


def listening(queue):
    watches = watch._watching.get((queue.leases.alias, queue.address.queue), ())
    return sum(one._listener is not None for one in tuple(watches))


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def timed(call):
    began = time.monotonic()
    return call(), time.monotonic() - began


def woken(queue):
    """What a poll finds before its timeout, at which it would scan once more anyway."""
    envelope, seconds = timed(lambda: queue.poll(LONG))
    assert seconds < PATIENCE
    return envelope


def test_a_message_that_is_due_is_had_without_waiting(queue):
    queue.offer_or_update("a", 1)
    assert queue.poll(timedelta(0)).payload == 1


def test_nothing_comes_of_waiting_longer_than_the_timeout(queue):
    envelope, seconds = timed(lambda: queue.poll(timedelta(seconds=0.05)))
    assert envelope is None
    assert 0.05 <= seconds < PATIENCE


def test_an_offer_of_another_thread_wakes_at_once(queue, make):
    def offer():
        until_consumers_wait(queue)
        make(clock=None).offer_or_update("a", 1)

    envelope, _ = together(lambda: woken(queue), offer)
    assert envelope.payload == 1


def test_an_offer_in_a_transaction_wakes_when_it_commits(queue, alias):
    def offer():
        until_consumers_wait(queue)
        with transaction.atomic(using=alias):
            queue.offer_or_update("a", 1)

    assert together(lambda: woken(queue), offer)[0].payload == 1


OFFER = """
import django; django.setup()
from delayedq import DelayedQueue
DelayedQueue("contacts").offer_or_update("a", 1)
"""


def test_an_offer_of_another_process_wakes(queue, environment):
    def offer():
        until_consumers_wait(queue)
        subprocess.run([sys.executable, "-c", OFFER], env=environment, check=True, timeout=PATIENCE)

    assert together(lambda: woken(queue), offer)[0].payload == 1


def test_the_time_of_the_first_message_wakes(queue):
    due = timezone.now() + timedelta(seconds=0.3)
    queue.offer_or_update("later", 1, timezone.now() + timedelta(hours=1))
    queue.offer_or_update("a", 1, due)

    assert woken(queue).key == "a"
    assert timezone.now() >= due - timedelta(milliseconds=1)


@pytest.mark.parametrize("step", range(1, 9))
def test_a_message_that_becomes_due_between_two_looks_at_the_clock_is_not_overlooked(make, step):
    ticks = count()
    queue = make(clock=lambda: at(next(ticks) / 1000))
    queue.offer_or_update("a", 1, at((step + 0.5) / 1000))
    assert woken(queue).key == "a"


def test_a_rejected_message_wakes_no_consumer_too_early_and_is_found_by_its_time(queue):
    queue.offer_or_update("a", 1)
    queue.try_poll().reject(timedelta(seconds=0.2))

    assert woken(queue).attempt == 2


def test_every_waiting_consumer_gets_one_of_as_many_messages(queue):
    def offer():
        until_consumers_wait(queue, 3)
        for number in range(3):
            queue.offer_or_update(f"{number}", number)

    *envelopes, _ = together(*[lambda: woken(queue)] * 3, offer)
    assert sorted(envelope.payload for envelope in envelopes) == [0, 1, 2]


def test_close_ends_a_poll_with_an_error_and_an_iteration_without(queue):
    def poll():
        with pytest.raises(QueueClosed):
            queue.poll(LONG)

    def iterate():
        return [envelope.payload for envelope in queue]

    def close():
        until_consumers_wait(queue, 2)
        queue.close()

    assert together(poll, iterate, close)[1] == []


def test_an_iteration_consumes_until_the_queue_is_closed(queue):
    taken = []

    def iterate():
        for envelope in queue:
            with envelope:
                taken.append(envelope.payload)

    def produce():
        for number in range(5):
            until_consumers_wait(queue)
            queue.offer_or_update(f"{number}", number)
        give_up = time.monotonic() + PATIENCE
        while len(taken) < 5 or queue.contains_message("4"):
            assert time.monotonic() < give_up
            time.sleep(0.001)
        queue.close()

    together(iterate, produce)
    assert taken == [0, 1, 2, 3, 4]


def test_a_poll_leaves_no_connection_and_no_descriptor_behind(queue, alias, monkeypatch):
    queue.poll(timedelta(seconds=0.01))
    opened = []
    wrapper = type(connections[alias])
    connect = wrapper.connect
    monkeypatch.setattr(wrapper, "connect", lambda self: opened.append(self) or connect(self))
    before = descriptors()
    queue.poll(timedelta(seconds=0.01))

    assert [one for one in opened if one.connection is not None] == []
    assert descriptors() == before
    assert listening(queue) == 0
    assert watch._watching == {}


def test_what_is_due_and_can_not_be_had_makes_no_consumer_spin(make, alias, monkeypatch):
    """Here because it does not match."""
    queue = make(clock=None)
    queue.offer_or_update("a", {"region": "us"})
    polls = []
    monkeypatch.setattr(type(queue), "try_poll", lambda self, **options: polls.append(1))

    assert queue.filter(payload__region="eu").poll(timedelta(seconds=0.1)) is None
    assert len(polls) <= 4


def test_not_even_a_clock_that_stands_still_makes_a_consumer_spin(make):
    queue = make()
    queue.offer_or_update("a", {"region": "us"}, NOW)
    assert queue.filter(payload__region="eu")._due_in(NOW) > 0


def test_a_queue_that_ends_while_no_consumer_waits_ends_the_next_poll(queue):
    queue.close()
    for use in (queue.poll, queue.try_poll, lambda: list(queue), lambda: queue.offer_or_update("a", 1)):
        with pytest.raises(QueueClosed, match="contacts"):
            use()


def test_a_queue_closes_at_the_end_of_its_block(make):
    with make() as queue:
        queue.offer_or_update("a", 1, NOW)
        envelope = queue.try_poll()
    with pytest.raises(QueueClosed):
        queue.count()
    with pytest.raises(QueueClosed):
        envelope.acknowledge()
    assert make().read("a").payload == 1


def test_what_comes_unheard_while_it_waits_is_found_at_the_deadline(make, monkeypatch):
    """As on MariaDB, or behind a pooler: no offer of another process wakes anybody."""
    queue = make(clock=None)
    offers = [queue.address.offer("a", 1, None)]

    def deaf(_watch, seconds):
        time.sleep(seconds)
        if offers:
            queue.leases.store.offer(offers.pop())

    monkeypatch.setattr(watch.Watch, "wait", deaf)
    assert queue.poll(timeout=timedelta(seconds=0.05)).payload == 1
