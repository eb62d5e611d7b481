"""`enqueue_bulk` whose calls have times and keys, beside calls without: `python -m tests.benchmarks.bulk`.

On PostgreSQL, in turns, each into an empty table. It prints the messages per second of the clock and of the processor
(this process and the server), their ratios to calls without, and the microseconds of the processor for a message, in
this process and in the server: compare within one run.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from statistics import median

from tests.benchmarks.database import measured
from tests.benchmarks.flows import EMPTY, Used, processor

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
    taken: dict[str, list[tuple[float, Used]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, calls in ways.items():
            taken[way].append(stored(calls()))
            assert Message.objects.count() == messages
    for way, rounds_taken in taken.items():
        pairs = list(zip(taken["plain"], rounds_taken, strict=True))
        clock = compared([(plain, one) for (plain, _), (one, _) in pairs], messages)
        used = compared([(sum(plain), sum(one)) for (_, plain), (_, one) in pairs], messages)
        own, server = (median(part) / messages * 1e6 for part in zip(*(one for _, one in rounds_taken), strict=True))
        sys.stdout.write(
            f"{way:<24}{clock} messages/s by the clock, {used} of processor; {own:.1f} us here, {server:.1f} us there\n"
        )


def compared(pairs, messages) -> str:
    """From seconds of plain calls and of these: the messages per second of these, and the ratio to plain ones."""
    rate = median(messages / one for _, one in pairs)
    return f"{rate:8,.0f} ({median(plain / one for plain, one in pairs):.2f})"


def stored(calls) -> tuple[float, Used]:
    from django.db import connection

    from tests.app import tasks

    with connection.cursor() as cursor:
        cursor.execute(EMPTY)
        cursor.execute("VACUUM ANALYZE")
    began, used = time.monotonic(), processor()
    tasks.nothing.enqueue_bulk(calls)
    return time.monotonic() - began, processor().since(used)


if __name__ == "__main__":
    measured(measure, __doc__, MESSAGES, ROUNDS)
