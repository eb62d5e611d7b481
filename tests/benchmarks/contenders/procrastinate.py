from __future__ import annotations

import procrastinate
import uvloop

from tests.benchmarks.contenders import stopwatch

CONCURRENCY = 30
SETTINGS = f"PsycopgConnector, uvloop, concurrency {CONCURRENCY}, wait=False"

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo="", max_size=10))


@app.task(name="nothing")
async def nothing(number: int) -> None:
    stopwatch.lap(number)


def _run(body) -> None:
    async def opened() -> None:
        async with app.open_async():
            await body()

    uvloop.run(opened())


def prepare() -> None:
    _run(app.schema_manager.apply_schema_async)


def fill(count: int) -> None:
    async def enqueue_many() -> None:
        for first in range(0, count, 10_000):
            numbers = range(first, min(first + 10_000, count))
            await nothing.batch_defer_async(*({"number": number} for number in numbers))

    _run(enqueue_many)


def drain(_count: int) -> None:
    _run(lambda: app.run_worker_async(wait=False, concurrency=CONCURRENCY, install_signal_handlers=False))


def enqueue(count: int) -> None:
    async def one_by_one() -> None:
        for number in range(count):
            await nothing.defer_async(number=number)

    _run(one_by_one)
