"""Fixtures for pytest; they need pytest-django. Installed with delayedq as the plugin `delayedq`."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from delayedq.testing import AttemptReport, Clock
    from delayedq.worker.loop import Loop


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

    It sees what is committed, hence `transactional_db`. Raises RuntimeError on SQLite in memory, which each thread has
    for itself.
    """
    from delayedq.conf import get_settings
    from delayedq.store import served_store
    from delayedq.worker.loop import Loop
    from delayedq.worker.options import Options

    store = served_store()
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
    thread.start()
    yield loop
    loop.stop()
    thread.join()
