"""Offers of this process wake its consumers at once, whatever the database can tell."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.db import transaction

from delayedq import BatchedMessage, Topic
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
def test_whoever_waits_is_woken(queue, alias, way):
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


def test_whoever_waits_for_a_reply_is_woken(queue, alias):
    replies = queue.reply_queue(timedelta(minutes=1))
    queue.offer_or_update("a", "?", NOW, reply_to=replies)
    envelope = queue.try_poll()
    with Watch(Deaf(alias), replies.address.queue) as watch:
        watch.listen()
        envelope.reply("!")
        assert wait(watch) < PATIENCE / 2


def test_nobody_is_woken_before_the_commit_or_by_another_queue(queue, make, alias):
    with Watch(Deaf(alias), "contacts|json") as watch:
        watch.listen()
        make("others").offer_or_update("a", 1, NOW)
        with transaction.atomic(using=alias):
            queue.offer_or_update("a", 1, NOW)
            assert not watch._woken(watch._listener, 0.0)
        assert watch._woken(watch._listener, 0.0)
