"""The options of a worker process, and the exit codes that say why it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `run_workers`. Durations are timedeltas; `queues` None means all but the `excluded` ones."""

    lease: timedelta
    poll_interval: timedelta
    shutdown_timeout: timedelta
    queues: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()
    name: str = ""  #: A part of the names of the worker processes; "" for none.
    threads: int = 4
    drain: bool = False
    max_tasks: int | None = None
    cron: bool = True
    acknowledge_each: bool = False
    lines: bool = False  #: Write a line for each attempt that ended.
    tallies: Path | None = None  #: Where processes write what they count, for metrics; None: they count nothing.

    def serves(self, queue: str) -> bool:
        """Whether workers with these options claim from this queue."""
        return queue not in self.excluded and (self.queues is None or queue in self.queues)


class ExitCode(IntEnum):
    """Of a worker process."""

    DONE = 0  #: drained or stopped
    RECYCLE = 3  #: it has run `max_tasks` messages
    GAVE_UP = 4  #: tasks were still running at the end of the shutdown timeout
    LOST_THREADS = 5  #: half of its threads were lost to tasks that can't be interrupted
    BROKEN = 6  #: one of its own threads has ended
