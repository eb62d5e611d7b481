"""Times a run from the first call of a task to the last."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from pathlib import Path

LAPS = int(os.environ.get("BENCHMARK_LAPS", "0"))

#: Set at the last call.
stopped = threading.Event()

_marks: dict[int, float] = {}
_numbers = itertools.count(1)


def lap(_number: object = None) -> None:
    """The body of every contender's task."""
    number = next(_numbers)
    if number == 1 or number == LAPS:  # noqa: PLR1714
        _marks[number] = time.perf_counter()
        if number == LAPS:
            Path(os.environ["BENCHMARK_RESULT"]).write_text(json.dumps(_marks[LAPS] - _marks[1]))
            stopped.set()
