from __future__ import annotations

import os
import threading

from celery import Celery
from celery.worker import state

from tests.benchmarks.contenders import stopwatch

SETTINGS = "Redis, thread pool of 4, prefetch 1000, results ignored, acknowledged before the task runs: at most once"

app = Celery("benchmark", broker=os.environ.get("BENCHMARK_REDIS", ""))
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=250, broker_connection_retry_on_startup=False)


@app.task(name="nothing")
def nothing(number: int) -> None:
    stopwatch.lap(number)


def prepare() -> None:
    app.control.purge()


def fill(count: int) -> None:
    enqueue(count)


def drain(_count: int) -> None:
    worker = app.Worker(pool="threads", concurrency=4, loglevel="ERROR", without_gossip=True, without_mingle=True)
    threading.Thread(target=_stop, daemon=True).start()
    worker.start()


def _stop() -> None:
    """Stop the worker as a signal does. (Redis may lose a broadcast.)"""
    stopwatch.stopped.wait()
    state.should_stop = 0


def enqueue(count: int) -> None:
    with app.producer_pool.acquire() as producer:
        for number in range(count):
            nothing.apply_async((number,), producer=producer)
