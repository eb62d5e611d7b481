"""The task that the harness's load consists of."""

from __future__ import annotations

import os
import struct
import time
from functools import cache

from django.tasks import task

WORK = int(os.environ.get("JOB_WORK_MS", "1")) / 1000
#: What a worker tells the adapter when a message has ended: how long it waited, in seconds.
REPORT = struct.Struct("d")


@task
def job(offered_at: float, padding: str = "") -> None:
    waited = time.time() - offered_at
    time.sleep(WORK)
    os.write(_adapter(), REPORT.pack(waited))


@cache
def _adapter() -> int:
    return os.open(os.environ["NEUTRAL_REPORTS"], os.O_WRONLY)
