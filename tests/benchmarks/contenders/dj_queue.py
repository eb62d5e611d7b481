from __future__ import annotations

import os
import signal
import threading

from django.core.management import call_command
from django.tasks import task

from tests.benchmarks.contenders import project, stopwatch

WORKER = {"queues": "*", "threads": 4, "processes": 1, "polling_interval": 0.1, "prefetch_multiplier": 50}
SETTINGS = "mode async (in this process), 4 threads, prefetch_multiplier 50"

project.configure(
    "dj_queue",
    backend="dj_queue.backend.DjQueueBackend",
    options={"mode": "async", "workers": [WORKER]},
    DATABASE_ROUTERS=["dj_queue.routers.DjQueueRouter"],
)
prepare = project.migrate


@task
def nothing(number: int) -> None:
    stopwatch.lap(number)


def fill(count: int) -> None:
    from django.tasks import default_task_backend

    for first in range(0, count, 10_000):
        default_task_backend.enqueue_all([(nothing, (n,), {}) for n in range(first, min(first + 10_000, count))])


def _stop() -> None:
    stopwatch.stopped.wait()
    os.kill(os.getpid(), signal.SIGTERM)


def drain(_count: int) -> None:
    threading.Thread(target=_stop, daemon=True).start()
    call_command("dj_queue", "--only-work", "--skip-recurring")


def enqueue(count: int) -> None:
    for number in range(count):
        nothing.enqueue(number)
