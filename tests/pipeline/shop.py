"""Two days of a shop, for the page of questions: always the same messages, as two threads a queue would run them.

Mail shares its queue with two reports that take long; the gateway of the payments fails in one hour.
"""

from __future__ import annotations

import heapq
import json
from datetime import UTC, datetime, timedelta

from tests.pipeline.lake.files import publish, row

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
DAY = 24 * 60 * 60
THREADS = 2
#: By task: its queue, the seconds between two messages, the seconds that one takes, and by how many of these it varies.
TASKS = {
    "shop.tasks.send_mail": ("default", 20, 0.4, 5),
    "shop.tasks.build_report": ("default", DAY // 2, 900, 2),
    "shop.tasks.build_index": ("default", DAY // 2, 600, 2),
    "shop.tasks.sync_stock": ("stock", 300, 8.0, 7),
    "shop.tasks.charge": ("payments", 45, 1.2, 3),
}
#: One in so many messages of a task fails for good, and with what.
FAIL = {"shop.tasks.sync_stock": (48, "ValueError"), "shop.tasks.charge": (160, "shop.errors.CardDeclined")}
#: Seconds between two attempts.
BACKOFF = 5


def arrivals():
    """(when it is due, in seconds; its task; its number), sorted."""
    return sorted(
        (at + (3 * 60 * 60 if "build" in kind else 0), kind, at // every)
        for kind, (_, every, _, _) in TASKS.items()
        for at in range(0, 2 * DAY, every)
    )


def messages():
    """Rows of the lake, in the order in which they were due."""
    free = {queue: [0.0] * THREADS for queue, *_ in TASKS.values()}
    for id_, (due, kind, number) in enumerate(arrivals(), 1):
        queue, _, seconds, varies = TASKS[kind]
        seconds *= 1 + number % varies / 4
        failures = failed(kind, due, number)
        start = max(due + 0.01, heapq.heappop(free[queue]))
        heapq.heappush(free[queue], start + seconds)
        lasts = start + sum(BACKOFF + took for _, took in failures)
        yield ended(id_, queue, kind, due, lasts, seconds, failures, number)


def failed(kind, due, number):
    """The attempts that failed, by what and after how many seconds. Three end the message."""
    every, error = FAIL.get(kind, (0, ""))
    if every and number % every == every - 1:
        return [(error, 0.2)] * 3
    outage = kind.endswith("charge") and due // 3600 % 24 == 17
    return [("shop.errors.GatewayTimeout", 10.0)] * (1 + number % 2) if outage else []


def ended(id_, queue, kind, due, start, seconds, failures, number):
    is_dead = len(failures) == 3
    end = at(start if is_dead else start + seconds)
    errors = [
        {"attempt": attempt, "exception": error, "message": "", "seconds": took}
        for attempt, (error, took) in enumerate(failures, 1)
    ]
    return row(
        id_,
        queue=queue,
        kind=kind,
        state="failed" if is_dead else "succeeded",
        attempts=len(failures) + (not is_dead),
        created_at=at(due),
        scheduled_at=at(due),
        scheduled_at_initially=at(due),
        started_at=at(start),
        finished_at=end,
        payload=json.dumps({"args": [number], "kwargs": {"country": ("DE", "FR", "IL", "US")[number % 4]}}),
        errors=json.dumps(errors) if errors else None,
    )


def at(seconds):
    return MONDAY + timedelta(seconds=seconds)


def fill(table):
    """Publish them, as an archive of both days does."""
    table.create()
    assert publish(table, 1, list(messages()), "shop")
