"""Retries of work that a database has undone to end a deadlock."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: How often a piece of work is tried in all.
TRIES = 5


def retry[R](work: Callable[[], R], is_deadlock: Callable[[Exception], bool]) -> R:
    """Do the work at most TRIES times, again only after an error of which `is_deadlock` says so.

    Raises what the last try raised, and at once any other error.
    """
    for _ in range(TRIES - 1):
        try:
            return work()
        except Exception as error:
            if not is_deadlock(error):
                raise
    return work()
