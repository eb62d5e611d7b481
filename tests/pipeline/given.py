"""History to begin with, and how to look at what became of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from delayedq.models import FinishedMessage

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def finished(id_, when=NOW - DAY, **changes):
    """A message that ended; `changes` are columns."""
    columns = {
        "finished_at": when,
        "started_at": when - timedelta(seconds=2),
        "scheduled_at": when - timedelta(seconds=3),
        "scheduled_at_initially": when - timedelta(seconds=3),
        "created_at": when - timedelta(seconds=9, microseconds=1),
        "priority": id_ % 3,
        "attempts": 1 + id_ % 2,
        "max_attempts": 8,
        "outcome": "succeeded",
        "queue": "default",
        "kind": "tests.app.tasks.remind",
        "key": None if id_ % 5 else f"key-{id_} é",
        "worker": "w",
        "payload": f'{{"args":[{id_}]}}',
        "result": '"ok"',
    }
    return FinishedMessage(id=id_, **columns | changes)


def history(count, *, days=3, first=1):
    """So many ended messages, spread over the days before NOW."""
    step = days * DAY / max(count, 1)
    ended = [finished(first + number, NOW - days * DAY + number * step) for number in range(count)]
    FinishedMessage.objects.bulk_create(ended, batch_size=500)


def ids():
    return set(FinishedMessage.objects.values_list("id", flat=True))
