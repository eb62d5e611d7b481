from __future__ import annotations

from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.queries import Queries

from tests.benchmarks.contenders import stopwatch

BATCH = 500
SETTINGS = f"asyncpg, uvloop, batch_size={BATCH}, drain mode"


async def _queries() -> Queries:
    return Queries(AsyncpgDriver(await asyncpg.connect()))


def prepare() -> None:
    async def install() -> None:
        await (await _queries()).install()

    uvloop.run(install())


def fill(count: int) -> None:
    async def enqueue_many() -> None:
        queries = await _queries()
        for first in range(0, count, 10_000):
            numbers = range(first, min(first + 10_000, count))
            payloads = [str(number).encode() for number in numbers]
            await queries.enqueue(["nothing"] * len(payloads), payloads, [0] * len(payloads))

    uvloop.run(enqueue_many())


def drain(_count: int) -> None:
    async def work() -> None:
        queue = PgQueuer(AsyncpgDriver(await asyncpg.connect()))

        @queue.entrypoint("nothing")
        async def nothing(message: object) -> None:
            stopwatch.lap(int(message.payload))

        await queue.run(dequeue_timeout=timedelta(seconds=1), batch_size=BATCH, mode=QueueExecutionMode.drain)

    uvloop.run(work())


def enqueue(count: int) -> None:
    async def one_by_one() -> None:
        queries = await _queries()
        for number in range(count):
            await queries.enqueue("nothing", str(number).encode())

    uvloop.run(one_by_one())
