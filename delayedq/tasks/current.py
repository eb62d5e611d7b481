"""The message that this code was started for."""

from __future__ import annotations

from collections.abc import Sized
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from delayedq.worker.attempt import Attempt

current_attempt: ContextVar[Attempt | None] = ContextVar("delayedq_current_attempt", default=None)


def current_message() -> Attempt:
    """Return the message that the calling task was started for. Raises LookupError outside of a task."""
    attempt = current_attempt.get()
    if attempt is None:
        raise LookupError("There is no current message: this code was not started by a worker.")
    return attempt


# Report the progress of a loop: `for row in track(rows, "importing")`.


def track[T](rows: Iterable[T], note: str = "", *, total: float | None = None) -> Iterator[T]:
    """Yield the same rows, and report each finished one as progress of the calling task's message.

    note: a text of at most 200 characters. total: how many rows there are; None asks `len(rows)`, if they have one.
    Outside of a task, nothing is reported. Raises ValueError for a wrong note or total.
    """
    attempt = current_attempt.get()
    if attempt is None:
        yield from rows
        return
    if total is None and isinstance(rows, Sized):
        total = len(rows)
    attempt.progress(0, total, note)
    for done, row in enumerate(rows, 1):
        yield row
        attempt.progress(done, total, note)
