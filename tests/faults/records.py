"""What clients did: each call with the moments between which it took place, and what it answered."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from django.db import Error

from tests.faults.clients import Died


@dataclass(eq=False)
class Record:
    """One call about one key. `began` and `ended` count events; `moments` are all that the clock showed meanwhile."""

    verb: str
    key: str
    given: dict
    client: int
    began: int
    ended: int = 0
    moments: list = field(default_factory=list)
    answer: object = None
    #: Whether it may have been carried out or not: its connection was lost.
    is_unknown: bool = False
    #: It was undone with the transaction of its caller.
    is_undone: bool = False

    def overlaps(self, other):
        return self.began < other.ended and other.began < self.ended

    def __str__(self):
        outcome = "unknown" if self.is_unknown else "undone" if self.is_undone else self.answer
        given = ", ".join(f"{name}={_short(value)}" for name, value in self.given.items())
        return (
            f"{self.began:3}-{self.ended:<3} client {self.client} {self.verb}({self.key}, {given}) -> {_short(outcome)}"
        )


def _short(value):
    return f"{value.id}#{value.generation}/{value.attempt}" if hasattr(value, "generation") else f"{value}"


class Records:
    def __init__(self, clock):
        self._clock, self._events, self.all = clock, count(1), []

    @contextmanager
    def call(self, client, *parts):
        """The records of one call, each of a verb about a key and what is given; it takes place within the block.

        An error of a client that had a fault leaves open whether it did.
        """
        first, began = len(self._clock.moments) - 1, next(self._events)
        records = [Record(verb, key, given, client.number, began) for verb, key, given in parts]
        faults = client.faults
        try:
            yield records
        except (Error, Died):
            if client.faults == faults and not any(record.given.get("may_fail") for record in records):
                raise
            for record in records:
                record.is_unknown = True
            client.reconnect()
        finally:
            ended = next(self._events)
            for record in records:
                record.ended, record.moments = ended, self._clock.moments[first:]
            self.all += records

    def of(self, key):
        return [record for record in self.all if record.key == key]


class Clock:
    """The moment at which all clients judge; also that of `time.monotonic`."""

    def __init__(self, start):
        self.moments = [start]

    def __call__(self):
        return self.moments[-1]

    def pass_time(self, delay):
        self.moments.append(self() + delay)

    # As the module `time`

    def monotonic(self):
        return 1000.0 + (self() - self.moments[0]).total_seconds()

    def sleep(self, seconds):
        """Nobody waits."""
