"""The systems that have an adapter here, each at the best setting that it documents.

The adapter's process installs the system and enqueues; another one runs the workers.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.benchmarks.contenders import floor
from tests.benchmarks.neutral.work import SLEEP, tell

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

WORKERS = int(os.environ.get("WORKER_COUNT", "32"))
PADDING = "x" * int(os.environ.get("JOB_PAYLOAD_BYTES", "256"))
URL = os.environ.get("DATABASE_URL", "")
LONG_AGO = datetime.fromtimestamp(0, UTC)


class System(ABC):
    #: The distribution whose version is told.
    package: str
    #: Counts the jobs that wait for a worker.
    depth_sql = ""
    _connection: psycopg.Connection | None = None

    @abstractmethod
    def prepare(self) -> None:
        """Install its tables the way that it documents."""

    @abstractmethod
    def enqueue(self, count: int) -> None:
        """Enqueue so many jobs in one call, each of which tells when it was offered."""

    @abstractmethod
    def command(self) -> list[str]:
        """The workers' process."""

    def depth(self) -> float | None:
        """None if the database does not answer."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(URL, autocommit=True)
            row = self._connection.execute(self.depth_sql).fetchone()
        except psycopg.Error:
            return None
        return float(row[0]) if row else None


class DelayedQ(System):
    package = "delayedq"
    depth_sql = "SELECT count(*) FROM delayedq_message WHERE leased_until IS NULL AND scheduled_at <= now()"

    def prepare(self) -> None:
        import django
        from django.core.management import call_command

        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.benchmarks.neutral.settings"
        django.setup()
        call_command("migrate", verbosity=0)

    def enqueue(self, count: int) -> None:
        from django.db import DatabaseError, connection

        from tests.benchmarks.neutral.tasks import job

        offered_at = time.time()
        try:
            job.enqueue_bulk(((offered_at, PADDING), {}) for _ in range(count))
        except DatabaseError:
            connection.close()
            raise

    def command(self) -> list[str]:
        return [sys.executable, "-m", "django", "run_workers", "--threads", str(WORKERS)]


class AsyncSystem(System):
    """One whose workers are coroutines, as many at once as the harness asks for."""

    name: str
    _loop: asyncio.AbstractEventLoop | None = None

    @abstractmethod
    async def work(self) -> None:
        """Run the workers until the process is told to end."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.benchmarks.neutral.workers", self.name]

    def run[T](self, coroutine: Coroutine[Any, Any, T]) -> T:
        """In the event loop of a thread that goes on, so that what keeps connections alive does."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


async def _do(offered_at: float) -> None:
    waited = time.time() - offered_at
    await asyncio.sleep(SLEEP)
    tell(waited)


class PgQueuer(AsyncSystem):
    """A pool of asyncpg, batches as large as the workers are many, and restarts on failure."""

    name = package = "pgqueuer"
    depth_sql = "SELECT count(*) FROM pgqueuer WHERE status = 'queued' AND execute_after <= now()"

    def prepare(self) -> None:
        from pgqueuer.db import AsyncpgPoolDriver
        from pgqueuer.queries import Queries

        async def install() -> Queries:
            queries = Queries(AsyncpgPoolDriver(await self._pool()))
            if not await queries.has_table("pgqueuer"):
                await queries.install()
            return queries

        self._queries = self.run(install())

    def enqueue(self, count: int) -> None:
        payload = json.dumps([time.time(), PADDING]).encode()
        self.run(self._queries.enqueue(["job"] * count, [payload] * count, [0] * count))

    async def work(self) -> None:
        import pgqueuer

        await pgqueuer.run(
            self._worker,
            batch_size=WORKERS,
            dequeue_timeout=timedelta(seconds=1),
            restart_on_failure=True,
            restart_delay=timedelta(seconds=1),
            shutdown_on_listener_failure=True,
        )

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[Any]:
        import pgqueuer

        async with self._pool() as pool:
            queue = pgqueuer.PgQueuer.from_asyncpg_pool(pool)

            @queue.entrypoint("job")
            async def job(one: Any) -> None:
                await _do(json.loads(one.payload)[0])

            yield queue

    def _pool(self) -> Any:
        import asyncpg

        server = conninfo_to_dict(URL)  # asyncpg reads no `host` in the query of a URL
        return asyncpg.create_pool(database=server.pop("dbname"), **server)


@dataclass
class AwaJob:
    offered_at: float
    padding: str


class Awa(AsyncSystem):
    """Its queue storage, COPY to enqueue, and the polling, but not the 176 connections, of its author's adapter."""

    name, package = "awa-py", "awa-pg"
    depth_sql = """
        SELECT coalesce(sum(offered.last_value - coalesce(claimed.last_value, 0)), 0)
        FROM (
            SELECT queue, pg_sequence_last_value(('awa.' || seq_name)::regclass) FROM awa.queue_enqueue_heads
        ) AS offered (queue, last_value)
        JOIN (
            SELECT queue, pg_sequence_last_value(('awa.' || seq_name)::regclass) FROM awa.queue_claim_heads
        ) AS claimed (queue, last_value) USING (queue)
    """  # its own `queue_stats` reads all that has ended, for a minute and more

    def prepare(self) -> None:
        import awa

        self._client = awa.Client(URL)
        self._client.migrate()
        self._client.install_queue_storage()

    def enqueue(self, count: int) -> None:
        one = AwaJob(time.time(), PADDING)
        self._client.enqueue_many_copy([one] * count, queue="default")

    async def work(self) -> None:
        from awa import AsyncClient

        client = AsyncClient(URL)

        @client.task(AwaJob, queue="default")
        async def job(one: Any) -> None:
            await _do(one.args.offered_at)

        await client.start([("default", WORKERS)], poll_interval_ms=50)
        await _told_to_end()
        await client.shutdown()


class Oban(AsyncSystem):
    """A pool of psycopg, and a queue with as many places as there are workers."""

    name, package = "oban-py", "oban"
    depth_sql = "SELECT count(*) FROM oban_jobs WHERE state = 'available'"

    def prepare(self) -> None:
        from oban import Oban as Client
        from oban.schema import install

        async def installed() -> Client:
            pool = await Client.create_pool(URL, min_size=2)
            await install(pool)
            return Client(pool=pool)

        self._job, self._client = self._task(), self.run(installed())

    def enqueue(self, count: int) -> None:
        offered_at = time.time()
        self.run(self._client.enqueue_many([self._job.new(offered_at, PADDING) for _ in range(count)]))

    async def work(self) -> None:
        from oban import Oban as Client

        self._task()
        pool = await Client.create_pool(URL, min_size=2)
        async with Client(pool=pool, queues={"default": WORKERS}):
            await _told_to_end()

    def _task(self) -> Any:
        from oban import job

        @job(queue="default")
        async def work(offered_at: float, padding: str) -> None:
            await _do(offered_at)

        return work


class Floor(AsyncSystem):
    """What the database's work takes alone: `contenders.floor`, woken by NOTIFY. It survives no fault."""

    name, package = "floor", "psycopg"
    depth_sql = "SELECT count(*) FROM message WHERE lease_token IS NULL"

    def prepare(self) -> None:
        self._offering = psycopg.connect(URL, autocommit=True)
        self._offering.execute(floor.TABLES)

    def enqueue(self, count: int) -> None:
        payload = json.dumps([time.time(), PADDING])
        with self._offering.transaction():
            self._offering.execute(floor.OFFER_MANY, ["job", [payload] * count], prepare=True)
            self._offering.execute("NOTIFY offered")

    async def work(self) -> None:
        # Other plans read all that is dead: the planner takes it for an end that is near, or for an empty table.
        options = "-c plan_cache_mode=force_custom_plan -c enable_seqscan=off -c enable_mergejoin=off"
        connection = await psycopg.AsyncConnection.connect(URL, autocommit=True, options=options)
        await connection.execute("LISTEN offered")
        tick: dict[str, Any] = {"ids": [], "token": 0, "floor": LONG_AGO, "limit": floor.BATCH}
        while True:
            tick["old"], tick["token"] = tick["token"], secrets.randbits(62)
            cursor = await connection.execute(floor.TICK, tick, prepare=True, binary=True)
            rows, now = await cursor.fetchall(), time.time()
            for _, payload, _ in rows:
                tell(now - json.loads(payload)[0])
            tick["ids"] = [row[0] for row in rows]
            if rows:
                tick["floor"] = min(row[2] for row in rows)
            else:
                _ = [notify async for notify in connection.notifies(timeout=1, stop_after=1)]


async def _told_to_end() -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


SYSTEMS: dict[str, type[System]] = {
    "delayedq": DelayedQ,
    "pgqueuer": PgQueuer,
    "awa-py": Awa,
    "oban-py": Oban,
    "floor": Floor,
}
