"""Write the progress that attempts report in a thread of its own, once a second: no task waits for it.

Whoever stores the end of an attempt writes its last report before that, so it stands where the message has ended.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from django.db import Error, connections

from delayedq import clock
from delayedq.core.progress import Progress
from delayedq.store import served_store
from delayedq.store.progress import write_progress
from delayedq.worker.sessions import keep_no_query_log

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from delayedq.worker.attempt import Attempt

logger = logging.getLogger("delayedq")

#: Seconds between two writes of the same message, at least.
EVERY = 1.0
#: Seconds for which whoever writes a last report waits for a write that is under way.
PATIENCE = 1.0

#: Held by whoever writes, in the threads of a worker process, and what of: nothing older is written after something
#: newer of the same attempt.
_writing = threading.Lock()
_being_written: set[Attempt] = set()


def progress_of(attempt: Attempt) -> Progress:
    """What the attempt has reported last."""
    report, moment = attempt.reported, clock.now()
    assert report is not None
    attempt.first_reported_at = attempt.first_reported_at or moment
    return Progress(*report, attempt.first_reported_at, moment)


class ProgressWriter:
    """Belongs to a worker process. Its thread starts with the first report, and sleeps while there is none.

    `wait` is entered around its statements.
    """

    def __init__(self, wait: AbstractContextManager[None] | None = None) -> None:
        self._wait = wait or nullcontext()
        #: What has reported, by message.
        self._attempts: dict[int, Attempt] = {}
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
            self._attempts[attempt.id] = attempt  # and no earlier one
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
        with _writing:
            attempts = self._unwritten()
            _being_written.update(attempts)
            self._store(attempts)
            _being_written.clear()
        return bool(self._attempts)

    def _unwritten(self) -> list[Attempt]:
        with self._lock:
            for id_ in [id_ for id_, attempt in self._attempts.items() if attempt.is_written]:
                attempt = self._attempts.pop(id_)
                if not attempt.is_written:
                    self._attempts[id_] = attempt  # it has reported meanwhile
            return [*self._attempts.values()]

    def _store(self, attempts: list[Attempt]) -> None:
        try:
            with self._wait:
                _write(attempts)
        except Error:  # it is tried again
            if not self._is_failing:
                logger.warning("The progress of %s messages was not written.", len(attempts), exc_info=True)
            self._is_failing = True
            with suppress(Exception):
                connections[served_store().alias].close()
        else:
            self._is_failing = False


def _write(attempts: Iterable[Attempt]) -> None:
    """Write what these have reported last, in one statement; none if that was written before."""
    reports = {attempt: attempt.reported for attempt in attempts if not attempt.is_written}
    if reports:
        write_progress(served_store(), {attempt.id: progress_of(attempt) for attempt in reports})
    for attempt, report in reports.items():
        attempt.written = report


def write_last(attempts: Iterable[Attempt], patience: float = PATIENCE) -> None:
    """Of these attempts, whose ends are stored next: what was not written yet.

    patience: for how many seconds it waits for a write of one of them that is under way. Errors are logged: an end is
    no later for that, and the worker's thread tries it again.
    """
    left = [attempt for attempt in attempts if not attempt.is_written]
    if not left:
        return
    must_wait = not _being_written.isdisjoint(left)
    is_ours = must_wait and _writing.acquire(timeout=patience)
    try:
        _write(left)
    except Error:
        logger.warning("The last progress of %s messages was not written.", len(left), exc_info=True)
    finally:
        if is_ours:
            _writing.release()


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
    if not attempt.is_written and hasattr(attempt.task.get_backend(), "store"):
        _write([attempt])
