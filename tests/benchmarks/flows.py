"""A group with a final task, beside as many plain messages: `python -m tests.benchmarks.flows`. Compare within one run.

One worker process, in this one, stores and drains, in turns: plain messages by `enqueue_bulk`; and a group of as many
calls of the same task, with one task after it. It prints how long both took, by the clock and in processor time; for a
message, the microseconds of the processor in this process and in the server, to store and to drain it, and its bytes of
write-ahead log. It fails unless the final task ran once.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks.database import measured

MESSAGES, ROUNDS = 100_000, 3
LOG = "SELECT pg_current_wal_insert_lsn() - '0/0'"
EMPTY = """
TRUNCATE delayedq_message, delayedq_finishedmessage, delayedq_flow, delayedq_flowstep, delayedq_flowmember
"""


class Used(NamedTuple):
    """Seconds of processor time: of this process, and of the server."""

    client: float
    server: float

    def since(self, before: Used) -> Used:
        return Used(self.client - before.client, self.server - before.server)


class Taken(NamedTuple):
    """Seconds of storing and of draining, by the clock and of the processor; bytes of write-ahead log."""

    stored: float
    drained: float
    to_store: Used
    to_drain: Used
    log: int

    @property
    def all(self) -> float:
        return self.stored + self.drained

    @property
    def processor(self) -> float:
        return sum(self.to_store) + sum(self.to_drain)


def processor() -> Used:
    """What this process and the server have used until now."""
    server = _stat(str(_value("SELECT pg_backend_pid()")))[1]
    processes = [_stat(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    used = sum(own for _, parent, own, _ in processes if parent == server)
    (ended,) = (own + children for number, _, own, children in processes if number == server)
    return Used(time.process_time(), (used + ended) / os.sysconf("SC_CLK_TCK"))


def _value(statement: str) -> Any:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]


def _stat(number: str) -> tuple[int, int, int, int]:
    """The number of a process, of its parent, and the ticks of it and of its children that have ended."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2].split()
    except OSError:  # it has just ended
        return 0, 0, 0, 0
    ticks = [int(field) for field in fields[11:15]]
    return int(number), int(fields[1]), sum(ticks[:2]), sum(ticks[2:])


def measure(messages: int, rounds: int) -> None:
    from delayedq import group
    from delayedq.models import FinishedMessage
    from tests.app import chores, tasks

    plain, grouped = [], []
    for _ in range(rounds):
        plain.append(taken(lambda: chores.nothing.enqueue_bulk(((), {}) for _ in range(messages))))
        calls = (chores.nothing.s() for _ in range(messages))
        grouped.append(taken(lambda calls=calls: group(calls).then(tasks.nothing.si()).enqueue()))
        assert FinishedMessage.objects.count() == messages + 1
        assert FinishedMessage.objects.filter(kind=tasks.nothing.module_path).count() == 1
    for what, times in (("plain", plain), ("a group and its final task", grouped)):
        sys.stdout.write(
            f"{what:<28}stored in {median(t.stored for t in times):5.1f} s, drained in"
            f" {median(t.drained for t in times):5.1f} s, processor {median(t.processor for t in times):5.1f} s\n"
        )
        sys.stdout.write(f"{'':<28}{_each(times, messages)}\n")
    ratios = [with_flow.all / without.all for with_flow, without in zip(grouped, plain, strict=True)]
    used = [with_flow.processor / without.processor for with_flow, without in zip(grouped, plain, strict=True)]
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    sys.stdout.write(f"ratio {median(ratios):.2f} by the clock (rounds: {each}), {median(used):.2f} of processor\n")


def _each(times: list[Taken], messages: int) -> str:
    parts = [(part, who) for part in ("to_store", "to_drain") for who in ("client", "server")]
    spent = [median(getattr(getattr(one, part), who) for one in times) / messages * 1e6 for part, who in parts]
    named = ", ".join(f"{part} {who} {each:.1f}" for (part, who), each in zip(parts, spent, strict=True))
    return f"microseconds a message: {named}; log {median(one.log for one in times) / messages:.0f} bytes"


def taken(fill) -> Taken:
    from django.db import connection

    from delayedq.store import default_store
    from delayedq.worker.loop import Loop
    from delayedq.worker.options import Options

    with connection.cursor() as cursor:
        cursor.execute(EMPTY)
        cursor.execute("VACUUM ANALYZE")
    log, before, began = _value(LOG), processor(), time.monotonic()
    fill()
    stored, between = time.monotonic(), processor()
    options = Options(
        lease=timedelta(seconds=60),
        poll_interval=timedelta(seconds=1),
        shutdown_timeout=timedelta(seconds=5),
        threads=4,
        drain=True,
    )
    Loop(default_store(), options, "bench").run()
    drained, after = time.monotonic() - stored, processor()
    return Taken(stored - began, drained, between.since(before), after.since(between), int(_value(LOG) - log))


if __name__ == "__main__":
    measured(measure, __doc__, MESSAGES, ROUNDS)
