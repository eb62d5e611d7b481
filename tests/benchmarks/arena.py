"""Runs contenders: servers with their default configuration, a database each, a process for each measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.benchmarks.contenders import stopwatch
from tests.server import USER, mariadb_socket, postgresql_socket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

#: Seconds.
TOO_LONG = 600
#: Seconds that workers get to end by themselves.
GRACE = 2


class Arena:
    """Runs functions of contenders in processes. `environment`: variables that name their database."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.environment = {**os.environ, "PYTHONWARNINGS": "ignore", **environment}
        self.environment.pop("DJANGO_SETTINGS_MODULE", None)
        self.result = directory / "laps"

    def run(self, name: str, verb: str, *counts: int, **environment: str) -> str:
        """The output of the contender's process. Raises CalledProcessError and TimeoutExpired."""
        command = [sys.executable, "-m", "tests.benchmarks.contenders", name, verb, *map(str, counts)]
        try:
            return subprocess.run(
                command,
                env={**self.environment, "PGDATABASE": name, **environment},
                check=True, capture_output=True, text=True, timeout=TOO_LONG,
            ).stdout  # fmt: skip
        except subprocess.CalledProcessError as error:
            error.add_note(error.stderr[-2000:])
            raise

    @contextmanager
    def running(self, name: str, verb: str, *counts: int, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process of the contender that runs during the block and then gets SIGTERM."""
        command = [sys.executable, "-m", "tests.benchmarks.contenders", name, verb, *map(str, counts)]
        process = subprocess.Popen(
            command, env={**self.environment, "PGDATABASE": name, **environment}, stdout=subprocess.DEVNULL
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=TOO_LONG)

    def seconds(self, name: str, verb: str, *counts: int) -> float:
        """Seconds that the function took, after one message to warm up."""
        return float(self.run(name, verb, *counts, BENCHMARK_WARM="1").split()[-1])

    def settle(self) -> None:
        """What others have left to the database is not done while the next is measured."""

    def lap_time(self, name: str, verb: str, count: int, **environment: str) -> float:
        """Seconds from the first call of a task to the last."""
        self.result.unlink(missing_ok=True)
        self.run(name, verb, count, BENCHMARK_LAPS=str(count), BENCHMARK_RESULT=str(self.result), **environment)
        return json.loads(self.result.read_text())

    def lap_time_together(self, name: str, processes: int, count: int, **environment: str) -> float:
        """The same for processes that drain together. Raises ValueError if they end before all tasks were called."""
        with tempfile.TemporaryDirectory() as tally:
            with ExitStack() as stack:
                workers = [
                    stack.enter_context(self.running(name, "drain", count, BENCHMARK_TALLY=tally, **environment))
                    for _ in range(processes)
                ]
                _wait_for(count, Path(tally), workers)
            records = _records(Path(tally))
            return (max(last for _, _, last in records) - min(first for _, first, _ in records)) / 1e9


def _wait_for(count: int, tally: Path, workers: list[subprocess.Popen[bytes]]) -> None:
    """Wait until all tasks were called, and for the workers that end by themselves then."""
    until = time.monotonic() + TOO_LONG
    while (called := sum(calls for calls, _, _ in _records(tally))) < count:
        if time.monotonic() > until or all(worker.poll() is not None for worker in workers):
            raise ValueError(f"{called} of {count} tasks were called")
        time.sleep(0.02)
    for worker in workers:
        with suppress(subprocess.TimeoutExpired):
            worker.wait(timeout=GRACE)


def _records(tally: Path) -> list[tuple[int, int, int]]:
    """Of each process: the number of calls, and the nanoseconds of the first and the last."""
    texts = [path.read_bytes() for path in tally.iterdir()]
    return [stopwatch.RECORD.unpack(text) for text in texts if len(text) == stopwatch.RECORD.size and any(text)]


class PostgreSQLArena(Arena):
    def prepare(self, name: str) -> None:
        self.execute(f'CREATE DATABASE "{name}"')
        self.run(name, "prepare")

    def settle(self) -> None:
        self.execute("CHECKPOINT")

    def execute(self, statement: str, database: str = "postgres") -> list[tuple]:
        host, user = self.environment["PGHOST"], self.environment["PGUSER"]
        with psycopg.connect(host=host, user=user, dbname=database, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


class FileArena(Arena):
    """SQLite: one file per contender."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory = directory

    def prepare(self, name: str) -> None:
        self.run(name, "prepare")

    def run(self, name: str, verb: str, *counts: int, **environment: str) -> str:
        return super().run(name, verb, *counts, **self._file(name), **environment)

    def running(self, name: str, verb: str, *counts: int, **environment: str) -> AbstractContextManager:
        return super().running(name, verb, *counts, **self._file(name), **environment)

    def _file(self, name: str) -> dict[str, str]:
        return {"BENCHMARK_SQLITE": str(self.directory / f"{name}.sqlite3")}


class MariaDBArena(Arena):
    def prepare(self, name: str) -> None:
        self.run(name, "prepare")


@contextmanager
def postgresql() -> Iterator[PostgreSQLArena]:
    """PostgreSQL, and Redis for Celery if it is installed."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        socket = stack.enter_context(postgresql_socket(durable=True))
        redis = stack.enter_context(_redis(directory))
        yield PostgreSQLArena(directory, PGHOST=socket, PGUSER=USER, BENCHMARK_REDIS=redis)


@contextmanager
def sqlite() -> Iterator[FileArena]:
    with tempfile.TemporaryDirectory() as directory:
        yield FileArena(Path(directory))


@contextmanager
def mariadb() -> Iterator[MariaDBArena]:
    with tempfile.TemporaryDirectory() as directory, mariadb_socket(durable=True) as socket:
        yield MariaDBArena(Path(directory), BENCHMARK_MARIADB=socket)


@contextmanager
def _redis(directory: Path) -> Iterator[str]:
    socket = directory / "redis"
    try:
        command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", str(directory), "--save", ""]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    except FileNotFoundError:
        yield ""
        return
    try:
        yield f"redis+socket://{socket}"
    finally:
        server.terminate()
        server.wait()
