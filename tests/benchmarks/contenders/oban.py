from __future__ import annotations

import asyncio

import uvloop
from oban import Oban, job
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from tests.benchmarks.contenders import stopwatch

LIMIT = 500
SETTINGS = f"psycopg pool, uvloop, queue limit {LIMIT}"


@job(queue="default")
async def nothing(number: int) -> None:
    stopwatch.lap(number)


def _run(body) -> None:
    async def with_pool() -> None:
        async with AsyncConnectionPool("", min_size=2, max_size=10, open=False) as pool:
            await body(pool)

    uvloop.run(with_pool())


def prepare() -> None:
    _run(install)


def fill(count: int) -> None:
    async def enqueue_many(pool: AsyncConnectionPool) -> None:
        oban = Oban(pool=pool)
        for first in range(0, count, 10_000):
            await oban.enqueue_many([nothing.new(number) for number in range(first, min(first + 10_000, count))])

    _run(enqueue_many)


def drain(_count: int) -> None:
    async def work(pool: AsyncConnectionPool) -> None:
        async with Oban(pool=pool, queues={"default": LIMIT}):
            await asyncio.to_thread(stopwatch.stopped.wait)

    _run(work)


def enqueue(count: int) -> None:
    async def one_by_one(pool: AsyncConnectionPool) -> None:
        oban = Oban(pool=pool)
        for number in range(count):
            await oban.enqueue(nothing.new(number))

    _run(one_by_one)
