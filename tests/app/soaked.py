"""Tasks with limits of all kinds that write down when they run: for the soak of the limits.

`tests.worker.soak_checks` has their numbers, and reads what they write: the moment in ns since 1970, what happened, and
to whom.
"""

from __future__ import annotations

import os
import random
import time
from datetime import timedelta

from delayedq import DelayedQueue, Limit, Rate, Retry, current_message, task
from tests.worker.soak_checks import (
    API,
    API_NAME,
    BARE,
    BARE_QUEUE,
    BURST,
    CALLS,
    FETCHES,
    MEASURES,
    PACE,
    QUEUE,
    SIZE,
    write,
)

api = Limit(name=API_NAME, concurrency=API)
pace_of_each = Rate(PACE, per=timedelta(seconds=1), burst=BURST)
retried = {"queue_name": QUEUE, "max_attempts": 40, "backoff": timedelta(milliseconds=20)}


def work(claimed, queue, channel, seconds):
    """What takes place in an attempt, between two lines."""
    who = (os.getpid(), claimed.id, claimed.token, queue, claimed.kind, channel or "-")
    write("began", *who)
    time.sleep(seconds)
    write("ended", *who)


def run(seconds, fails=0.0):
    """Write down an attempt that takes so long, and fails with this probability."""
    attempt = current_message()
    work(attempt.claimed, attempt.queue, attempt.channel, seconds)
    if random.random() < fails:
        raise Retry


@task(channel="tenant", limit=[api, Limit(concurrency=CALLS)], **retried)
def call(tenant, seconds, fails=0.0):
    """Two limits: one of each tenant, one that it shares with `fetch`."""
    run(seconds, fails)


@task(limit=[api, Limit(concurrency=FETCHES)], **(retried | {"max_attempts": 3}))
def fetch(tenant, seconds, fails=0.0):
    """No channel of its own; it may become a dead letter, and be brought back."""
    run(seconds, fails)


@task(channel="tenant", limit=Limit(concurrency=MEASURES, size=SIZE), **retried)
def measure(tenant, seconds, fails=0.0):
    """At most so many of each tenant wait and run."""
    run(seconds, fails)


@task(channel="tenant", limit=Limit(rate=pace_of_each), **retried)
def pace(tenant, seconds, fails=0.0):
    """At most so many of each tenant start in a time, retries too."""
    run(seconds, fails)


@task(channel="tenant", limit=Limit(order="strict"), **retried)
def follow(tenant, seconds, fails=0.0):
    """One at a time of each tenant, and those that failed first."""
    run(seconds, fails)


def contacts():
    """A bare queue with channels."""
    return DelayedQueue(BARE_QUEUE, lease=timedelta(seconds=10), max_attempts=40, limit=Limit(concurrency=BARE))


def watch_claims():
    """Write down when a claim has counted what runs, which is when its messages hold their places."""
    from delayedq.limits.channels import Channels
    from delayedq.store import default_store

    kind = type(Channels.of(default_store()))
    start, deal = kind.start, kind.deal

    def started(self, chosen, request):
        counted = time.time_ns()
        claimed = start(self, chosen, request)
        tell(self, counted, claimed)
        return claimed

    def dealt(self, *arguments):  # one statement counts and claims
        found = deal(self, *arguments)
        if found is not None:
            tell(self, time.time_ns(), found.claimed)
        return found

    def tell(self, counted, claimed):
        for one in claimed:
            write("claimed", counted, one.id, one.token, int(self.now().timestamp() * 1e6), one.attempt)

    kind.start, kind.deal = started, dealt
