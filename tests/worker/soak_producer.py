"""A process of the soak of limits: `python -m tests.worker.soak_producer ROLE SEED OPERATIONS`.

ROLE "operate" does random operations, and "change" does so too and changes limits, as nobody else does; "slow" does
them in transactions that stay open; "consume" polls the bare queue until it is ended. What the database said goes into
the file that SOAKED names. When the database is away, an operation may have been done or not, which is written down.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from datetime import timedelta

import django
from django.db import Error, connections, transaction

from delayedq.limits.rules import channel_of
from tests.worker.soak_checks import API_NAME, QUEUE, TASKS, write

TENANTS = ["a", "b", "c", "d"]
#: Live messages of one kind: above that, no more are offered.
MOST = 80
#: What is set live; 0 is a pause.
LIVE = {(API_NAME, ""): [2, 4, 6, 0], (f"{TASKS}call", "b"): [1, 3, 2, 0], (QUEUE, ""): [3, 5, 8, 0]}
#: The longest that a transaction stays open, in seconds: SQLite has one writer.
OPEN = float(os.environ.get("SOAKED_OPEN", "4"))
#: Of so many attempts, one takes up to so many seconds, and so runs on through whatever happens.
LONG_OF, LONG = 150, float(os.environ.get("SOAKED_LONG", "1"))


class Producer:
    def __init__(self, seed, operations):
        from delayedq.store import default_store
        from tests.app import soaked

        self.random, self.left = random.Random(seed), operations
        self.soaked, self.store, self.queue = soaked, default_store(), soaked.contacts()
        self.tasks = [soaked.call, soaked.call, soaked.fetch, soaked.measure, soaked.pace, soaked.follow]

    def produce(self, kinds):
        names, weights = zip(*kinds.items(), strict=True)
        while self.left > 0:
            self.left -= 1
            if self.left % 10 == 0:
                self.wait_for_room()
            self.one(getattr(self, self.random.choices(names, weights)[0]))

    def one(self, operation):
        try:
            operation()
        except Error as error:
            write("failed", operation.__name__, type(error).__name__)
            connections["default"].close()
            time.sleep(0.2)

    def wait_for_room(self):
        from delayedq.models import Message

        with contextlib.suppress(Error):
            while Message.objects.count() > MOST * len(TENANTS):
                time.sleep(0.05)

    # Offers

    def seconds(self):
        return self.random.uniform(0.001, 0.04 if self.random.randrange(LONG_OF) else LONG)

    def offer(self, key=None, task=None):
        task, tenant = task or self.random.choice(self.tasks), self.random.choice(TENANTS)
        delay = timedelta(seconds=self.random.choice([0, 0, 0, 0.1, 1]))
        fails = self.random.choice([0, 0, 0.3])
        key = key or f"{self.random.randrange(60)}"
        self.stored(task.schedule_in(delay, tenant, self.seconds(), fails, key=key))

    def replace(self):
        """Also of what runs; in the same channel or in another."""
        if one := self.live(key__isnull=False, kind__startswith="tests."):
            self.offer(one.key, next(task for task in self.tasks if task.module_path == one.kind))

    def offer_bare(self):
        key = f"{self.random.randrange(40)}"
        seconds = self.random.uniform(0.001, 0.04)
        self.queue.offer_or_update(key, {"seconds": seconds}, channel=self.random.choice(TENANTS))

    def stored(self, scheduled):
        if scheduled.id and scheduled.outcome == "created" and not connections["default"].in_atomic_block:
            write("stored", scheduled.id)

    # What takes messages away

    def live(self, **which):
        from delayedq.models import Message

        found = Message.objects.filter(**which)
        ids = list(found.order_by("id").values_list("id", flat=True)[:500])
        return Message.objects.filter(pk=self.random.choice(ids)).first() if ids else None

    def cancel(self, **which):
        from delayedq.results.cancelling import cancel

        if one := self.live(**which):
            cancel(self.store, [one.pk])

    def stop(self):
        self.cancel(lease_token__isnull=False)

    def unschedule(self):
        if one := self.live(key__isnull=False, kind__startswith="tests."):
            self.store.unschedule(one.kind, one.key)

    def drop(self):
        from delayedq.queue import CONFIRMATION

        if self.random.random() < 0.2:
            self.queue.drop_all_messages(CONFIRMATION)
        else:
            self.queue.drop_message(f"{self.random.randrange(40)}")

    def redrive(self):
        from delayedq.core.edits import Spread
        from delayedq.models import FinishedMessage
        from delayedq.operations import dead_letters, edits

        dead = FinishedMessage.objects.filter(outcome="failed", kind=self.soaked.fetch.module_path)
        if ids := list(dead.values_list("pk", flat=True)[:5]):
            now = self.store.now()
            edit = edits.begin(self.store, edits.RETRY, "soak")
            dead_letters.redrive(self.store, edit, ids, Spread(now, timedelta()), now)

    # In a transaction that stays open

    def in_transaction(self):
        operation = self.random.choice([self.offer, self.replace, self.stop, self.stop, self.cancel, self.unschedule])
        with contextlib.suppress(Undone), transaction.atomic():
            if operation == self.offer:
                self.offer(task=self.soaked.call)
            else:
                operation()
            time.sleep(self.random.uniform(0, OPEN))
            if self.random.random() < 0.2:
                raise Undone
        time.sleep(self.random.uniform(0, 3 * OPEN))  # on SQLite, nobody else writes meanwhile

    # Limits

    def change(self):
        from delayedq import limits

        scope, channel = self.random.choice(list(LIVE))
        number = self.random.choice([*LIVE[scope, channel], None])
        named = f"{scope}/{channel or '-'}"
        write("changing", named, number)
        if number is None:
            limits.clear(scope, channel=channel)
        elif number:
            limits.set(scope, channel=channel, concurrency=number)
        else:
            limits.pause(scope, channel=channel)
        write("changed", named, number)
        if number == 0:
            time.sleep(self.random.uniform(0, 0.3))
            self.one(self.clear)

    def clear(self):
        """All that was set."""
        from delayedq import limits

        for scope, channel in LIVE:
            named = f"{scope}/{channel or '-'}"
            write("changing", named, None)
            limits.clear(scope, channel=channel)
            write("changed", named, None)

    # The bare queue

    def consume(self, source):
        queue = self.soaked.contacts()
        while True:
            try:
                self.poll(queue, source)
            except Error as error:
                write("failed", "poll", type(error).__name__)
                connections["default"].close()
                time.sleep(0.2)

    def poll(self, queue, source):
        envelope = queue.try_poll()
        if envelope is None:
            time.sleep(0.03)
            return
        claimed = envelope.claimed
        if source.random() < 0.1:
            envelope.release()
            return
        channel = channel_of(claimed.metadata)
        self.soaked.work(claimed, claimed.queue, channel, envelope.payload["seconds"])
        source.choice([envelope.acknowledge, envelope.acknowledge, lambda: envelope.reject(timedelta())])()


class Undone(Exception):  # noqa: N818
    """Rolls a transaction back."""


COMMON = {
    "offer": 40,
    "replace": 12,
    "offer_bare": 10,
    "cancel": 4,
    "stop": 4,
    "unschedule": 4,
    "drop": 2,
    "redrive": 1,
}
ROLES = {"operate": COMMON, "change": COMMON | {"change": 3}, "slow": {"in_transaction": 1}}


def main(role, seed, operations):
    django.setup()
    producer = Producer(int(seed), int(operations))
    if role == "consume":
        threads = [threading.Thread(target=producer.consume, args=[random.Random(f"{seed}/{n}")]) for n in range(3)]
        for one in threads:
            one.start()
        return
    producer.produce(ROLES[role])
    while role == "change":
        with contextlib.suppress(Error):
            producer.clear()
            return
        connections["default"].close()
        time.sleep(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
