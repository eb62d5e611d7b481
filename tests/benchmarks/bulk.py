"""`enqueue_bulk` whose calls have times and keys, beside calls without: `python -m tests.benchmarks.bulk`.

On PostgreSQL, in turns, each into an empty table. It prints the messages per second of the clock and of the processor
(this process and the server), and their ratios to calls without: compare within one run.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from statistics import median

from tests.benchmarks.database import measured
from tests.benchmarks.flows import EMPTY, processor

MESSAGES, ROUNDS = 100_000, 5
FIRST = datetime(2126, 3, 8, tzinfo=UTC)


def measure(messages: int, rounds: int) -> None:
    from delayedq import Call
    from delayedq.models import Message

    def at(n: int) -> datetime:
        return FIRST + timedelta(seconds=n)

    ways = {
        "plain": lambda: (((n,), {}) for n in range(messages)),
        "with a time": lambda: (Call((n,), at=at(n)) for n in range(messages)),
        "with a time and a key": lambda: (Call((n,), at=at(n), key=f"appointment-{n}") for n in range(messages)),
    }
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, calls in ways.items():
            taken[way].append(stored(calls()))
            assert Message.objects.count() == messages
    for way, seconds in taken.items():
        rates = [median(messages / one[part] for one in seconds) for part in (0, 1)]
        pairs = list(zip(taken["plain"], seconds, strict=True))
        ratios = [median(plain[part] / one[part] for plain, one in pairs) for part in (0, 1)]
        clock, used = (f"{rate:8,.0f} ({ratio:.2f})" for rate, ratio in zip(rates, ratios, strict=True))
        sys.stdout.write(f"{way:<24}{clock} messages/s by the clock, {used} of processor\n")


def stored(calls) -> tuple[float, float]:
    from django.db import connection

    from tests.app import tasks

    with connection.cursor() as cursor:
        cursor.execute(EMPTY)
        cursor.execute("VACUUM ANALYZE")
    began, used = time.monotonic(), processor()
    tasks.nothing.enqueue_bulk(calls)
    return time.monotonic() - began, processor() - used


if __name__ == "__main__":
    measured(measure, __doc__, MESSAGES, ROUNDS)
