"""Fixtures and an option for pytest; they need pytest-django. Installed with delayedq as the plugin `delayedq`."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from delayedq import pytest_replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from delayedq.testing import AttemptReport, Clock
    from delayedq.worker.loop import Loop


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("delayedq").addoption(
        "--delayedq-replay",
        metavar="FILE",
        type=Path,
        help="In place of tests, run the ended messages of FILE (JSON lines, Parquet, or a lake) with the code of "
        "today, each in a transaction that is rolled back, and fail if some end in another way.",
    )


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption("--delayedq-replay")
    if path is not None:
        pytest_replay.check(config, path)
        config.pluginmanager.register(pytest_replay.ReplayPlugin(path.absolute()), "delayedq-replay")


@pytest.fixture
def delayedq_clock() -> Iterator[Clock]:
    """A clock that begins at the present moment: `delayedq_clock.advance(hours=3)`. See `delayedq.testing.clock`."""
    from delayedq.testing import clock

    with clock() as moving:
        yield moving


@pytest.fixture
def run_due(db: None) -> Callable[..., list[AttemptReport]]:  # noqa: ARG001 - it is needed
    """`delayedq.testing.run_due`, in a test that may use the database."""
    from delayedq.testing import run_due as run

    return run


@pytest.fixture
def worker(transactional_db: None) -> Iterator[Loop]:  # noqa: ARG001 - it is needed
    """A worker (the loop of a worker process, in a thread) on the test database; stopped at the end of the test.

    Where the backends in TASKS have several databases, it serves that of the first one.
    It sees what is committed, hence `transactional_db`. Raises RuntimeError on SQLite in memory, which each thread has
    for itself.
    """
    yield from served_by_a_worker()


def served_by_a_worker() -> Iterator[Loop]:
    """The worker, in a thread, until the generator goes on."""
    from delayedq.conf import get_settings
    from delayedq.management.backends import all_stores
    from delayedq.store import serving
    from delayedq.worker.loop import Loop
    from delayedq.worker.options import Options

    store = all_stores()[0]
    connection: Any = store.database.connection
    if connection.vendor == "sqlite" and connection.is_in_memory_db():
        raise RuntimeError("The test database is in memory: use the fixture run_due, or set TEST['NAME'] to a file.")
    settings = get_settings()
    options = Options(
        lease=settings.LEASE,
        poll_interval=timedelta(milliseconds=50),
        shutdown_timeout=timedelta(seconds=25),
        cron=False,
    )
    loop = Loop(store, options, "delayedq-test-worker")
    thread = threading.Thread(target=loop.run, name="delayedq-test-worker")
    with serving(store.alias):
        thread.start()
        yield loop
        loop.stop()
        thread.join()
