"""How long a message waited: from when it was due until its attempt started. One definition for figures and reports.

A message can be moved to a later time after its start, and then end: one that a person decides waits for the next visit
of a worker when it is ended. Its due time is not that of the attempt, and what it waited is not known: it is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

#: Seconds by which the clocks of hosts may differ: what started so much before its time waited not at all.
CLOCKS = 1.0


def waited(due: datetime, started: datetime | None) -> float | None:
    """In seconds; None if it is not known, or no attempt started."""
    if started is None:
        return None
    seconds = (started - due).total_seconds()
    return None if seconds < -CLOCKS else max(0.0, seconds)


def ran(started: datetime, finished: datetime) -> float:
    """How long an attempt ran, in seconds."""
    return max(0.0, (finished - started).total_seconds())


def in_sql(seconds: str) -> str:
    """The same in SQL. `seconds`: the expression for the seconds from due to start; NULL if it has not started."""
    return f"CASE WHEN {seconds} < -{CLOCKS} THEN NULL WHEN {seconds} < 0 THEN 0 ELSE {seconds} END"
