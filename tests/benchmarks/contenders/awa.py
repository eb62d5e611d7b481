from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from urllib.parse import quote

import uvloop
from awa import AsyncClient

from tests.benchmarks.contenders import stopwatch

WORKERS = 500
SETTINGS = f"AsyncClient, uvloop, queue storage, {WORKERS} workers, filled with enqueue_many_copy"


@dataclass
class Nothing:
    number: int


def _client() -> AsyncClient:
    host = quote(os.environ["PGHOST"], safe="")
    return AsyncClient(f"postgres://{os.environ['PGUSER']}@localhost/{os.environ['PGDATABASE']}?host={host}")


def prepare() -> None:
    async def install() -> None:
        client = _client()
        await client.migrate()
        await client.install_queue_storage()

    uvloop.run(install())


def fill(count: int) -> None:
    async def enqueue_many() -> None:
        client = _client()
        for first in range(0, count, 10_000):
            numbers = range(first, min(first + 10_000, count))
            await client.enqueue_many_copy([Nothing(number) for number in numbers], queue="default")

    uvloop.run(enqueue_many())


def drain(_count: int) -> None:
    async def work() -> None:
        client = _client()

        @client.task(Nothing, queue="default")
        async def nothing(message: object) -> None:
            stopwatch.lap(message.args.number)

        await client.start([("default", WORKERS)])
        await asyncio.to_thread(stopwatch.stopped.wait)
        await client.shutdown()

    uvloop.run(work())


def enqueue(count: int) -> None:
    async def one_by_one() -> None:
        client = _client()
        for number in range(count):
            await client.insert(Nothing(number), queue="default")

    uvloop.run(one_by_one())
