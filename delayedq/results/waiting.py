"""Wait until messages have ended: one or many, in a thread or in an event loop.

Whether they have ended is asked of the database, at once and then after pauses that grow to a second. Between that a
listener wakes who waits: on PostgreSQL by NOTIFY; on SQLite by any commit, if a thread waits. MySQL has none.

A message that is neither live nor in the history was deleted: its result can't be read, and TaskResultDoesNotExist is
raised.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from itertools import batched
from typing import TYPE_CHECKING, Any, Self

from asgiref.sync import sync_to_async
from django.db import Error, connections

from delayedq.compat import task_backends
from delayedq.store.base import ASK_EVERY
from delayedq.store.database import NOTIFY_WAIT, WakeUpPipe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from delayedq.compat import TaskResult
    from delayedq.store.base import Store
    from delayedq.store.database import Listener

    AnyResult = TaskResult[..., Any]

#: Seconds between two questions: the first pause, by how much each is longer than the last, and the longest.
FIRST, GROWTH, LONGEST = 0.02, 1.5, 1.0
#: Messages in one question.
CHUNK = 5_000


def wait_all(results: Iterable[AnyResult], timeout: timedelta | None = None) -> list[AnyResult]:
    """Wait until all of these have ended, and return them, refreshed, in the same order.

    Raises TimeoutError if that takes longer than `timeout` (a timedelta; None: no limit), TypeError for another timeout
    and for anything that is not a result (`task.get_result(scheduled.id)` gives one for what `enqueue_many` returns),
    and RuntimeError in a transaction, which may not see the end of a message.

        wait_all([resize.enqueue(photo) for photo in photos], timeout=timedelta(minutes=5))
    """
    given = list(results)
    for _ in as_completed(given, timeout):
        pass
    return given


def as_completed(results: Iterable[AnyResult], timeout: timedelta | None = None) -> Iterator[AnyResult]:
    """Yield each of these results, refreshed, as soon as it has ended. Raises what `wait_all` raises."""
    with _Unended(results, timeout) as waiting:
        while True:
            yield from waiting.ended()
            if not waiting.left:
                return
            waiting.prepare()
            waiting.sleep()


async def await_all(
    results: Iterable[AnyResult],
    timeout: timedelta | None = None,  # noqa: ASYNC109 - as `wait_all`
) -> list[AnyResult]:
    """The async version of `wait_all`."""
    given = list(results)
    async for _ in as_completed_async(given, timeout):
        pass
    return given


async def as_completed_async(
    results: Iterable[AnyResult],
    timeout: timedelta | None = None,  # noqa: ASYNC109 - as `as_completed`
) -> AsyncIterator[AnyResult]:
    """The async version of `as_completed`; no thread waits while it does."""
    waiting = _Unended(results, timeout)
    try:
        while True:
            for result in await sync_to_async(waiting.ended)():
                yield result
            if not waiting.left:
                return
            await sync_to_async(waiting.prepare)()
            await waiting.asleep()
    finally:
        await sync_to_async(waiting.close)()


def check_result(one: object, what: str) -> None:
    """Raises TypeError for what is no result. what: is done to it."""
    if not hasattr(one, "refresh"):
        cure = " Call the method of the flow itself for that." if hasattr(one, "steps") else ""
        raise TypeError(f"Results are {what}, as `enqueue` and `task.get_result(id)` return them, not {one!r}.{cure}")


class _Unended:
    """What has not ended yet, of some results, and how to sleep until some of it may have."""

    def __init__(self, results: Iterable[AnyResult], timeout: timedelta | None) -> None:
        check_timeout(timeout)
        self.left: dict[str, dict[int, list[AnyResult]]] = {}
        #: What has no id was never stored: a limit has refused it.
        self._dropped: list[AnyResult] = []
        for result in results:
            check_result(result, "waited for")
            if not result.id:
                self._dropped.append(result)
                continue
            self.left.setdefault(result.backend, {}).setdefault(int(result.id), []).append(result)
        self._give_up_at = None if timeout is None else time.monotonic() + timeout.total_seconds()
        self._pause = FIRST
        self._ask_at = 0.0
        self._pipe: WakeUpPipe | None = None
        self._listener: Listener | None = None
        #: Those that have lost their connection: they are closed at the end, by the thread that has made them.
        self._deaf: list[Listener] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for listener in (*self._deaf, *([] if self._listener is None else [self._listener])):
            listener.close()
        if self._pipe is not None:
            self._pipe.close()

    def ended(self) -> list[AnyResult]:
        """Those that have ended since the last call, refreshed."""
        found: list[AnyResult] = []
        dropped, self._dropped = self._dropped, []
        for backend, waiting in [*self.left.items()]:
            for id_ in _ended(backend, list(waiting), waiting):
                found += waiting.pop(id_)
            if not waiting:
                del self.left[backend]
        for result in found:
            result.refresh()
        return found + dropped

    def prepare(self) -> None:
        """Before a sleep: may it sleep at all? Say that somebody waits, and listen."""
        if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            count = sum(map(len, self.left.values()))
            raise TimeoutError(f"{count} of the messages did not end within the timeout.")
        stores = [_store(backend) for backend in self.left]
        for store in stores:
            check_outside_of_transactions(store)
        if time.monotonic() < self._ask_at:
            return
        self._ask_at = time.monotonic() + ASK_EVERY
        with suppress(Error):  # without it, ends are found by asking
            for store in stores:
                store.ask_for_ends()
            if self._listener is None and len(stores) == 1:
                self._listener = stores[0].end_listener()
                self._pause = 0.0  # what has ended meanwhile was not heard

    def _patience(self) -> float:
        pause = self._pause
        self._pause = min(LONGEST, max(FIRST, pause * GROWTH))
        return pause if self._give_up_at is None else max(0.0, min(pause, self._give_up_at - time.monotonic()))

    def sleep(self) -> None:
        """Sleep until something may have ended."""
        wake_at = time.monotonic() + self._patience()
        self._pipe = self._pipe or WakeUpPipe()
        while (left := wake_at - time.monotonic()) > 0:
            self._pipe.wait(left, self._listener)
            if self._heard():
                return

    async def asleep(self) -> None:
        """`sleep`, in an event loop."""
        wake_at = time.monotonic() + self._patience()
        while (left := wake_at - time.monotonic()) > 0:
            if self._listener is None or self._listener.interval is not None:
                await asyncio.sleep(left)
            elif await _readable(self._listener, left) and self._heard():
                return

    def _heard(self) -> bool:
        """After a notification, others may have been left out for a moment: see `tell_ends`.

        If the connection of the listener is lost, ends are found by asking, until `prepare` makes another one.
        """
        if self._listener is None:
            return False
        try:
            if not self._listener.heard():
                return False
        except Error:
            self._deaf.append(self._listener)
            self._listener = None
            return False
        self._pause = NOTIFY_WAIT
        return True


async def _readable(listener: Listener, seconds: float) -> bool:
    """Wait for its descriptor, `seconds` at most; whether there is something to read."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listener.fileno(), event.set)
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)
    finally:
        loop.remove_reader(listener.fileno())
    return event.is_set()


def _ended(backend: str, ids: Sequence[int], waiting: dict[int, list[AnyResult]]) -> list[int]:
    """Which of these messages have ended; those of a test backend, which has no store, as their results say."""
    if not hasattr(task_backends[backend], "store"):
        return [id_ for id_ in ids if waiting[id_][0].is_finished]
    from delayedq.models import Message  # a project that has forgotten the app is told so by its checks

    live: set[int] = set()
    for some in batched(ids, CHUNK):
        live.update(Message.objects.using(_store(backend).alias).filter(id__in=some).values_list("id", flat=True))
    return [id_ for id_ in ids if id_ not in live]


def _store(backend: str) -> Store:
    """Raises TimeoutError for a backend that runs nothing later."""
    store: Store | None = getattr(task_backends[backend], "store", None)
    if store is None:
        raise TimeoutError(f"The backend {backend!r} never runs its messages, so waiting for them would never end.")
    return store


def check_timeout(timeout: object) -> None:
    """Raises TypeError for what is no timeout."""
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(f"A timeout is a timedelta or None, not {timeout!r}.")


def check_outside_of_transactions(store: Store) -> None:
    if connections[store.alias].in_atomic_block:
        raise RuntimeError(
            f"A transaction on {store.alias!r} may not see the end of a message: wait after the transaction. "
            "In a test, call run_due() first."
        )
