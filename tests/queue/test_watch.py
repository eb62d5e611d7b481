"""Offers of this process wake its consumers at once, whatever the database can tell."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import defaultdict
from datetime import timedelta

import pytest
from django.db import transaction

from delayedq import BatchedMessage, Topic
from delayedq.exceptions import QueueClosed
from delayedq.queue import watch as watch_module
from delayedq.queue.watch import Watch
from tests.store.given import NOW
from tests.worker.attempts import PATIENCE


class Deaf:
    """A store whose listener hears nothing, and is asked so seldom that it would show."""

    interval = PATIENCE

    def __init__(self, alias):
        self.alias = alias

    def listener(self):
        return self

    def heard(self):
        return False

    def close(self):
        """It has no connection."""


def wait(watch):
    began = time.monotonic()
    watch.wait(PATIENCE)
    return time.monotonic() - began


WAYS = {
    "offer": lambda queue: queue.offer_or_update("a", 1, NOW),
    "batch": lambda queue: queue.offer_batch([BatchedMessage(None, "a", 1, NOW)]),
    "close": lambda queue: queue.close(),
}


@pytest.mark.parametrize("way", WAYS)
def test_waiting_consumers_are_woken(queue, alias, way):
    with Watch(Deaf(alias), "contacts|json") as watch:
        watch.listen()
        WAYS[way](queue)
        assert wait(watch) < PATIENCE / 2


def test_every_subscription_of_a_topic_is_woken(alias):
    with Watch(Deaf(alias), "prices/audit|json") as audit, Watch(Deaf(alias), "prices/mail|json") as mail:
        audit.listen()
        mail.listen()
        Topic("prices", ["audit", "mail"]).publish(1)
        assert wait(audit) + wait(mail) < PATIENCE / 2


def test_a_consumer_waiting_for_a_reply_is_woken(queue, alias):
    replies = queue.reply_queue(timedelta(minutes=1))
    queue.offer_or_update("a", "?", NOW, reply_to=replies)
    envelope = queue.try_poll()
    with Watch(Deaf(alias), replies.address.queue) as watch:
        watch.listen()
        envelope.reply("!")
        assert wait(watch) < PATIENCE / 2


def test_no_consumer_is_woken_before_the_commit_or_by_another_queue(queue, make, alias):
    with Watch(Deaf(alias), "contacts|json") as watch:
        watch.listen()
        make("others").offer_or_update("a", 1, NOW)
        with transaction.atomic(using=alias):
            queue.offer_or_update("a", 1, NOW)
            assert not watch._pipe.wait(0.0, watch._listener)
        assert watch._pipe.wait(0.0, watch._listener)


class Interrupted(defaultdict):
    """Where watches are kept; it is asked with the lock held, and then a signal comes."""

    def __getitem__(self, place):
        signal.raise_signal(signal.SIGUSR1)
        return super().__getitem__(place)


def test_a_signal_handler_may_close_the_queue_at_any_moment(queue, alias, monkeypatch):
    monkeypatch.setattr(watch_module, "_watching", Interrupted(set))
    before = signal.signal(signal.SIGUSR1, lambda *_: queue.close())
    try:
        with pytest.raises(QueueClosed):
            queue.poll(timedelta(seconds=PATIENCE))
    finally:
        signal.signal(signal.SIGUSR1, before)


FORK = """
import os, sys, threading, time
from delayedq.queue import watch

def hold():
    with watch._lock:
        held.set()
        time.sleep(0.2)

held = threading.Event()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    watch.ring("default", "contacts|json")
    os._exit(7)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_can_offer_whatever_other_threads_were_doing():
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], check=False, timeout=PATIENCE).returncode == 7
