"""Times a run from the first call of a task to the last.

With BENCHMARK_TALLY it counts in a file of that folder instead, for a runner that adds several processes up.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import signal
import struct
import threading
import time
from pathlib import Path

LAPS = int(os.environ.get("BENCHMARK_LAPS", "0"))
TALLY = os.environ.get("BENCHMARK_TALLY")
#: In a file of the tally: the number of calls, and the times of the first and the last, in nanoseconds.
RECORD = struct.Struct("<3q")

#: Set at the last call, or with BENCHMARK_TALLY at SIGTERM.
stopped = threading.Event()

_marks: dict[int, float] = {}
_numbers = itertools.count(1)


class _Tally:
    """The record of one process, which begins at its first call: a worker forks before that."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._record: mmap.mmap | None = None
        self._count = self._first = 0

    def lap(self) -> None:
        with self._lock:
            now = time.time_ns()
            if self._record is None:
                self._record, self._first = self._created(), now
            self._count += 1
            RECORD.pack_into(self._record, 0, self._count, self._first, now)

    def _created(self) -> mmap.mmap:
        with (self._folder / str(os.getpid())).open("w+b") as file:
            file.truncate(RECORD.size)
            return mmap.mmap(file.fileno(), RECORD.size)


_tally = _Tally(Path(TALLY)) if TALLY else None
if _tally:
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())


def lap(_number: object = None) -> None:
    """The body of every contender's task."""
    if _tally:
        _tally.lap()
        return
    number = next(_numbers)
    if number == 1 or number == LAPS:  # noqa: PLR1714
        _marks[number] = time.perf_counter()
        if number == LAPS:
            Path(os.environ["BENCHMARK_RESULT"]).write_text(json.dumps(_marks[LAPS] - _marks[1]))
            stopped.set()
