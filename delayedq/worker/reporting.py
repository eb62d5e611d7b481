"""What attempts report of their progress is written by a thread of its own, once a second: no task waits for it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from django.db import Error, connections

from delayedq import clock
from delayedq.core.progress import Progress
from delayedq.store import served_store
from delayedq.store.progress import write_progress
from delayedq.worker.sessions import keep_no_query_log

if TYPE_CHECKING:
    from delayedq.worker.attempt import Attempt

logger = logging.getLogger("delayedq")

#: Seconds between two writes of the same message, at least.
EVERY = 1.0


def progress_of(attempt: Attempt) -> Progress:
    """What the attempt has reported last."""
    report, moment = attempt.reported, clock.now()
    assert report is not None
    attempt.first_reported_at = attempt.first_reported_at or moment
    return Progress(*report, attempt.first_reported_at, moment)


class ProgressWriter:
    """Belongs to a worker process. Its thread starts with the first report, and sleeps while there is none."""

    def __init__(self) -> None:
        #: What has reported, by message, and what of it was written.
        self._attempts: dict[int, Attempt] = {}
        self._written: dict[int, object] = {}
        #: Did the last write fail? Only the first one of several is logged.
        self._is_failing = False
        self._lock = threading.Lock()
        self._asked = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def report(self, attempt: Attempt) -> None:
        """Write what it has reported, soon. Any thread may call this."""
        if self._attempts.get(attempt.id) is attempt:
            return
        with self._lock:
            self._attempts[attempt.id] = attempt
            self._written.pop(attempt.id, None)  # that was an earlier attempt
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="delayedq-progress", daemon=True)
                self._thread.start()
        self._asked.set()

    def stop(self) -> None:
        """Write what is left, and end the thread."""
        self._stopping.set()
        self._asked.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        keep_no_query_log(served_store().alias)
        while not self._stopping.is_set():
            self._asked.wait()
            self._asked.clear()
            while self._write() and not self._stopping.wait(EVERY):
                pass
        self._write()
        connections.close_all()

    def _write(self) -> bool:
        """Write what is new; returns whether there was anything. What has nothing new is forgotten."""
        reported = {}
        with self._lock:
            for id_, attempt in [*self._attempts.items()]:
                report = attempt.reported
                if self._written.get(id_) is report:
                    self._attempts.pop(id_)
                    self._written.pop(id_)
                    if attempt.reported is report:
                        continue
                    self._attempts[id_] = attempt  # it has reported meanwhile
                reported[id_] = progress_of(attempt)
                self._written[id_] = report
        if reported:
            self._store(reported)
        return bool(self._attempts)

    def _store(self, reported: dict[int, Progress]) -> None:
        store = served_store()
        try:
            write_progress(store, reported)
        except Error:
            with self._lock:
                for id_ in reported:
                    self._written.pop(id_, None)  # it is tried again
            if not self._is_failing:
                logger.warning("The progress of %s messages was not written.", len(reported), exc_info=True)
            self._is_failing = True
            with suppress(Exception):
                connections[store.alias].close()
        else:
            self._is_failing = False


def report_now(attempt: Attempt) -> None:
    """Without a worker, as in `run_due`: write it here, if the last write is a second ago; `flush` writes the rest."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return
    if time.monotonic() - attempt.written_at >= EVERY:
        attempt.written_at = time.monotonic()
        flush(attempt)


def flush(attempt: Attempt) -> None:
    """Write what it has reported last, if it has, and if its backend has a database."""
    if attempt.reported is not None and hasattr(attempt.task.get_backend(), "store"):
        write_progress(served_store(), {attempt.id: progress_of(attempt)})
