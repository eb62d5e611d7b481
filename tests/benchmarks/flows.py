"""A group with a final task, beside as many plain messages: `python -m tests.benchmarks.flows`. Compare within one run.

One worker process, in this one, stores and drains, in turns: plain messages by `enqueue_bulk`; and a group of as many
calls of the same task, with one task after it. It prints how long both took, by the clock and in processor time of this
process and the server, and that the final task ran once.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.benchmarks.database import measured

MESSAGES, ROUNDS = 100_000, 3
EMPTY = """
TRUNCATE delayedq_message, delayedq_finishedmessage, delayedq_flow, delayedq_flowstep, delayedq_flowmember
"""


class Taken(NamedTuple):
    """Seconds: of storing and of draining, and of the processor for both."""

    stored: float
    drained: float
    processor: float

    @property
    def all(self) -> float:
        return self.stored + self.drained


def processor() -> float:
    """Seconds of processor time that this process and the server have used."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (backend,) = cursor.fetchone()
    server = _stat(str(backend))[1]
    processes = [_stat(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    used = sum(own for _, parent, own, _ in processes if parent == server)
    (ended,) = (own + children for number, _, own, children in processes if number == server)
    return time.process_time() + (used + ended) / os.sysconf("SC_CLK_TCK")


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
    ratios = [with_flow.all / without.all for with_flow, without in zip(grouped, plain, strict=True)]
    used = [with_flow.processor / without.processor for with_flow, without in zip(grouped, plain, strict=True)]
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    sys.stdout.write(f"ratio {median(ratios):.2f} by the clock (rounds: {each}), {median(used):.2f} of processor\n")


def taken(fill) -> Taken:
    from django.db import connection

    from delayedq.store import default_store
    from delayedq.worker.loop import Loop
    from delayedq.worker.options import Options

    with connection.cursor() as cursor:
        cursor.execute(EMPTY)
        cursor.execute("VACUUM ANALYZE")
    began, used = time.monotonic(), processor()
    fill()
    stored = time.monotonic()
    options = Options(
        lease=timedelta(seconds=60),
        poll_interval=timedelta(seconds=1),
        shutdown_timeout=timedelta(seconds=5),
        threads=4,
        drain=True,
    )
    Loop(default_store(), options, "bench").run()
    return Taken(stored - began, time.monotonic() - stored, processor() - used)


if __name__ == "__main__":
    measured(measure, __doc__, MESSAGES, ROUNDS)
