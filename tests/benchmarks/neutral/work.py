"""What every system's workers do for a job, and how they tell the adapter of it."""

from __future__ import annotations

import os
import struct
from functools import cache

#: Seconds that a job sleeps.
SLEEP = int(os.environ.get("JOB_WORK_MS", "1")) / 1000
#: What a worker tells the adapter when a job has ended: how long it waited, in seconds.
REPORT = struct.Struct("d")


def tell(waited: float) -> None:
    os.write(_adapter(), REPORT.pack(waited))


@cache
def _adapter() -> int:
    return os.open(os.environ["NEUTRAL_REPORTS"], os.O_WRONLY)
