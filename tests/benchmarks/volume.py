"""The memory of delayedq with millions of messages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import track

from tests.benchmarks import arena
from tests.benchmarks.figures import Figure

if TYPE_CHECKING:
    from subprocess import Popen

NAME = "delayedq"
#: Seconds between two samples of a process's memory.
PAUSE = 0.5


def million(messages: int, _rounds: int) -> list[Figure]:
    """Enqueue 10 * `messages` in one transaction, from a generator."""
    count = 10 * messages
    rate = Figure(f"enqueue_bulk of {count:,}", NAME, "messages/s")
    grown = Figure(f"enqueue_bulk of {count:,}", "the process grows by", "MB")
    with arena.postgresql() as place:
        place.prepare(NAME)
        megabytes, seconds = map(float, place.run(NAME, "fill_flat", count).split())
    rate.rounds.append(count / seconds)
    grown.rounds.append(megabytes)
    return [rate, grown]


def memory(messages: int, _rounds: int) -> list[Figure]:
    """The largest process of a worker that drains 20 * `messages`: after a fifth of the time, and at the end."""
    count = 20 * messages
    scenario = f"memory of a worker, {count:,} messages"
    with arena.postgresql() as place:
        place.prepare(NAME)
        place.run(NAME, "fill_flat", count)
        with place.running(NAME, "drain", count) as process:
            sizes = _sizes(process)
    early, late = sizes[len(sizes) // 5], sizes[-1]
    return [Figure(scenario, "after a fifth", "MB", [early]), Figure(scenario, "at the end", "MB", [late])]


def _sizes(process: Popen[bytes]) -> list[float]:
    """Megabytes of the largest child, until the process ends."""
    sizes = []
    for _ in track(iter(lambda: process.poll() is None, False), "memory", total=None):
        time.sleep(PAUSE)
        if running := children(process.pid):
            sizes.append(max(map(_resident, running)))
    return sizes


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


def _resident(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0.0)


SCENARIOS = {"million": million, "memory": memory}
