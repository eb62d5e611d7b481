from __future__ import annotations

import logging
import os

from huey import SqliteHuey
from huey.consumer import Consumer

from tests.benchmarks.contenders import stopwatch

SETTINGS = "SqliteHuey in WAL mode, results off, consumer with 4 threads; at most once"

huey = SqliteHuey(filename=os.environ["BENCHMARK_SQLITE"], results=False, journal_mode="wal")


@huey.task()
def nothing(number: int) -> None:
    stopwatch.lap(number)


def prepare() -> None:
    huey.storage.initialize_schema()


def fill(count: int) -> None:
    enqueue(count)


def drain(_count: int) -> None:
    logging.disable()
    consumer = Consumer(huey, workers=4, periodic=False)
    consumer.start()
    stopwatch.stopped.wait()
    consumer.stop(graceful=True)


def enqueue(count: int) -> None:
    for number in range(count):
        nothing(number)
