"""A queue whose numbers are known: M/M/c with retries, simulated from a seed, in plain Python.

Messages arrive as a Poisson stream, `threads` serve them in the order of their times, run times are exponential, and an
attempt fails with probability `failing`, whereupon its message joins the end of the queue at once. By Burke and Jackson
such a queue is in balance as an M/M/c queue with the rate of all attempts, so Erlang's C formula gives its waits, and
the number of attempts is geometric.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush

EPOCH = datetime(2013, 1, 7, tzinfo=UTC)


@dataclass
class Life:
    """One message: seconds since EPOCH."""

    arrival: float
    started: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Queue:
    """`rate` of new messages per second, `run_seconds` of each attempt on average."""

    rate: float
    run_seconds: float
    threads: int
    failing: float = 0.0
    seed: int = 1

    @property
    def attempt_rate(self):
        return self.rate / (1 - self.failing)

    def lives(self, messages):
        """Simulate until all have ended."""
        rng = random.Random(self.seed)
        coming, clock = [], 0.0
        lives = []
        for number in range(messages):
            clock += rng.expovariate(self.rate)
            lives.append(Life(clock))
            heappush(coming, (clock, number))
        free = [0.0] * self.threads
        while coming:
            due, number = heappop(coming)
            begin = max(due, heappop(free))
            end = begin + rng.expovariate(1 / self.run_seconds)
            heappush(free, end)
            lives[number].started.append(begin)
            lives[number].ended.append(end)
            if rng.random() < self.failing:
                heappush(coming, (end, number))
        return lives


def history(lives, *, queue="mail", kind="app.send"):
    """The rows of the lake, as dictionaries."""
    return [_row(number, life, queue, kind) for number, life in enumerate(lives, start=1)]


def _row(number, life, queue, kind):
    failures = [_failure(n, *times) for n, times in enumerate(zip(life.started, life.ended, strict=True), start=1)][:-1]
    due = life.ended[-2] if failures else life.arrival
    return {
        "id": number,
        "state": "succeeded",
        "queue": queue,
        "kind": kind,
        "key": None,
        "priority": 0,
        "attempts": len(life.started),
        "max_attempts": 100,
        "created_at": at(life.arrival),
        "scheduled_at_initially": at(life.arrival),
        "scheduled_at": at(due),
        "started_at": at(life.started[-1]),
        "finished_at": at(life.ended[-1]),
        "worker": "w1",
        "payload": "{}",
        "errors": json.dumps(failures) if failures else None,
    }


def _failure(attempt, started, ended):
    return {
        "attempt": attempt,
        "failed_at": at(ended).isoformat(),
        "seconds": round(ended - started, 6),
        "worker": "w1",
        "exception": "app.Flaky",
        "message": "not today",
        "traceback": "Traceback (most recent call last): ...",
    }


def at(seconds):
    return EPOCH + timedelta(seconds=seconds)
