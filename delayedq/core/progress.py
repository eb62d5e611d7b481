"""How far an attempt has come, as its task says."""

from __future__ import annotations

import reprlib
import sys
from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.bounds import NAME_LENGTH, is_storable

if TYPE_CHECKING:
    from datetime import datetime, timedelta

#: The largest number that a column of the database takes.
MOST = sys.float_info.max


class Report(NamedTuple):
    """What a task has reported."""

    done: float
    total: float | None
    note: str


def checked(done: object, total: object, note: object) -> Report:
    """Raises ValueError for what is no progress."""
    for name, value in (("done", done), ("total", 0 if total is None else total)):
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MOST:
            raise ValueError(f"{name} is a number of at least 0, not {reprlib.repr(value)}.")
    if not isinstance(note, str) or len(note) > NAME_LENGTH or not is_storable(note):
        raise ValueError(f"note is a text of at most {NAME_LENGTH} characters, not {str(note)[:80]!r}.")
    return Report(done, total, note)  # type: ignore[arg-type]  # they are numbers


class Progress(NamedTuple):
    """How far the last attempt of a message had come when that was last stored: a second or so ago, or as it ended.

    done, total: numbers of whatever the task counts; total None: it does not know. began_at: its first report.
    """

    done: float
    total: float | None
    note: str
    began_at: datetime
    written_at: datetime

    @property
    def share(self) -> float | None:
        """From 0 to 1; None without a total."""
        return min(1.0, self.done / self.total) if self.total else None

    @property
    def left(self) -> timedelta | None:
        """How long the rest will take if it goes on as it went so far; None if nothing tells."""
        if not self.share:
            return None
        try:
            return (self.written_at - self.began_at) * ((1 - self.share) / self.share)
        except OverflowError:  # longer than a timedelta can be
            return None
