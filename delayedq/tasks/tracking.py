"""Report the progress of a loop: `for row in track(rows, "importing")`."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING

from delayedq.tasks.current import current_attempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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
