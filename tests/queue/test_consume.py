"""`consume()`: threads that hand messages to a function, more at a peak and fewer while the queue is empty."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import OperationalError

from delayedq.exceptions import InvalidQueue
from delayedq.models import FinishedMessage, Message
from delayedq.queue import consuming as consuming_threads
from tests.queue.given import Boom, boom
from tests.store.given import at
from tests.worker.attempts import PATIENCE
from tests.worker.conftest import ROOT, eventually

SOON = timedelta(seconds=0.05)


@pytest.fixture
def queue(make):
    return make(clock=None)


@contextmanager
def consuming(queue, handle, **options):
    """In a thread, until the queue is closed."""
    thread = threading.Thread(target=queue.consume, args=[handle], kwargs=options)
    thread.start()
    try:
        yield thread
    finally:
        queue.close()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def consumers():
    return sum(thread.name == "delayedq-consumer" for thread in threading.enumerate())


def offer(queue, number):
    for n in range(number):
        queue.offer_or_update(f"{n}", n, at(n))


def test_a_peak_takes_more_threads_and_an_empty_queue_fewer(queue):
    together, seen = threading.Barrier(4), []

    def handle(envelope):
        together.wait(PATIENCE)  # which only four at once pass
        seen.append(envelope.payload)

    with consuming(queue, handle, threads=(1, 4), patience=SOON):
        eventually(lambda: consumers() == 1)
        offer(queue, 8)
        eventually(lambda: len(seen) == 8)
        eventually(lambda: consumers() == 1)
        offer(queue, 4)
        eventually(lambda: len(seen) == 12)

    assert sorted(seen[:8]) == list(range(8))
    assert consumers() == 0
    assert FinishedMessage.objects.succeeded().count() == 12


def test_it_returns_once_a_thread_that_left_has_closed_its_connections(queue, monkeypatch):
    closing, may_close, close_all = threading.Event(), threading.Event(), consuming_threads.connections.close_all

    def close_late():
        closing.set()
        assert may_close.wait(PATIENCE)
        close_all()

    together = threading.Barrier(2)
    with consuming(queue, lambda _: together.wait(PATIENCE), threads=(1, 2), patience=SOON) as thread:
        monkeypatch.setattr(consuming_threads.connections, "close_all", close_late)
        offer(queue, 2)
        assert closing.wait(PATIENCE)
        queue.close()
        thread.join(SOON.total_seconds())
        assert thread.is_alive()
        may_close.set()

    assert consumers() == 0


def test_there_are_never_more_than_asked_for_nor_fewer(queue):
    running, most, lock = set(), [0], threading.Lock()

    def handle(envelope):
        with lock:
            running.add(envelope.message_id)
            most[0] = max(most[0], len(running))
        with lock:
            running.discard(envelope.message_id)

    with consuming(queue, handle, threads=(2, 3), patience=SOON):
        offer(queue, 60)
        eventually(lambda: not Message.objects.exists())
        eventually(lambda: consumers() == 2)

    assert most[0] <= 3
    assert FinishedMessage.objects.count() == 60


def test_a_handler_that_raises_is_logged_and_the_message_comes_again(queue, caplog):
    seen = []

    def handle(envelope):
        seen.append(envelope.attempt)
        if envelope.attempt == 1:
            boom()

    with caplog.at_level(logging.ERROR, "delayedq"), consuming(queue, handle, backoff=timedelta(0)):
        queue.offer_or_update("a", 1, at(0))
        eventually(FinishedMessage.objects.exists)

    assert seen == [1, 2]
    assert [record.exc_info[0] for record in caplog.records] == [Boom]


def test_what_the_handler_has_settled_stays_so(queue):
    def handle(envelope):
        envelope.fail("no such customer")

    with consuming(queue, handle):
        queue.offer_or_update("a", 1, at(0))
        eventually(FinishedMessage.objects.exists)

    assert FinishedMessage.objects.get().outcome == "failed"


#: Prints what has ended, and how many consumers there are, once the interrupt is raised.
INTERRUPTED = """
import signal, threading
import django

django.setup()
from delayedq import DelayedQueue
from delayedq.queue import consuming

stopping, ended, ring = threading.Event(), [], consuming.ring
consuming.ring = lambda *given: [ring(*given), stopping.set()]


def handle(envelope):
    signal.raise_signal(signal.SIGINT)
    assert stopping.wait(60)
    ended.append(envelope.payload)


queue = DelayedQueue("contacts")
queue.offer_or_update("a", 1)
try:
    queue.consume(handle)
except KeyboardInterrupt:
    print(ended, sum(one.name == "delayedq-consumer" for one in threading.enumerate()))
"""


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_an_interrupt_is_raised_when_what_runs_has_ended(environment):
    """In a process of its own, as one that comes too late would end the tests."""
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[1] 0\n"
    assert FinishedMessage.objects.succeeded().count() == 1


def test_what_runs_when_the_queue_is_closed_is_acknowledged(queue):
    began, closed = threading.Event(), threading.Event()

    def handle(envelope):
        began.set()
        assert closed.wait(PATIENCE)

    with consuming(queue, handle):
        queue.offer_or_update("a", 1, at(0))
        assert began.wait(PATIENCE)
        queue.close()
        closed.set()

    assert FinishedMessage.objects.succeeded().count() == 1


def test_what_raises_when_the_queue_is_closed_is_put_back(queue):
    def handle(envelope):
        queue.close()
        boom()

    queue.offer_or_update("a", 1, at(0))
    queue.consume(handle, backoff=timedelta(0))
    assert Message.objects.get().lease_token is None


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_what_ends_a_thread_is_raised_and_its_message_given_back(queue):
    def handle(envelope):
        raise SystemExit(3)

    queue.offer_or_update("a", 1, at(0))
    with pytest.raises(SystemExit):
        queue.consume(handle, threads=(1, 4))
    assert (Message.objects.get().lease_token, consumers()) == (None, 0)


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_wrong_filter_is_raised_where_it_is_consumed(make):
    queue = make(clock=None, channels=True).filter(payload__a=1)
    with pytest.raises(InvalidQueue, match="has channels"):
        queue.consume(boom)


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_backoff_that_fails_is_logged_and_the_message_put_back(queue, caplog):
    def handle(envelope):
        queue.close()
        boom()

    queue.offer_or_update("a", 1, at(0))
    queue.consume(handle, backoff=lambda attempt: 1 / 0)
    assert "The backoff of" in caplog.text
    assert Message.objects.get().lease_token is None


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_refused_end_is_logged(queue, caplog):
    def handle(envelope):
        Message.objects.all().delete()
        queue.close()

    queue.offer_or_update("a", 1, at(0))
    with caplog.at_level(logging.WARNING, "delayedq"):
        queue.consume(handle)
    assert "was refused: lease_lost" in caplog.text


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_while_the_database_is_away_it_is_polled_again(queue, monkeypatch, settings):
    settings.DELAYEDQ = {"POLL_INTERVAL": SOON}
    real, failures = queue.leases.claim, iter([OperationalError("gone"), OperationalError("gone")])

    def claim(*arguments):
        if error := next(failures, None):
            raise error
        return real(*arguments)

    monkeypatch.setattr(type(queue.leases), "claim", lambda _self, *arguments: claim(*arguments))
    seen = []
    with consuming(queue, lambda envelope: seen.append(envelope.payload)):
        queue.offer_or_update("a", 1, at(0))
        eventually(lambda: seen == [1])


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "wrong",
    [{"threads": 0}, {"threads": (2, 1)}, {"threads": (1, 2, 3)}, {"threads": "4"}, {"patience": 3}, {"lease": 3}],
)
def test_wrong_terms_are_refused(queue, wrong):
    with pytest.raises(InvalidQueue):
        queue.consume(boom, **wrong)
