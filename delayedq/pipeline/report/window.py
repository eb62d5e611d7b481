"""The span of time that a report is about, and the buckets it is cut into."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

HOUR = 3_600
DAY = 24 * HOUR

#: Widths of a bucket in seconds, of which the first that gives few enough buckets is taken.
_WIDTHS = (1, 5, 15, 60, 300, 900, HOUR, 6 * HOUR, DAY, 7 * DAY, 28 * DAY)
_MOST = 200


@dataclass(frozen=True, slots=True)
class Window:
    """From `since` to before `until`, in seconds since 1970 (UTC). Buckets begin at multiples of `width` seconds."""

    since: float
    until: float
    width: int

    @classmethod
    def between(cls, since: datetime, until: datetime) -> Window:
        """Raises ValueError unless `until` is later than `since`, and both are aware."""
        if since.utcoffset() is None or until.utcoffset() is None:
            raise ValueError(f"A window is between aware times, not {since} and {until}.")
        if until <= since:
            raise ValueError(f"A window ends after it begins, not from {since} to {until}.")
        seconds = (until - since).total_seconds()
        width = next((width for width in _WIDTHS if seconds / width <= _MOST), _WIDTHS[-1])
        return cls(since.timestamp(), until.timestamp(), width)

    @property
    def seconds(self) -> float:
        return self.until - self.since

    @property
    def period(self) -> int:
        """The seconds for which load is looked at as one: an hour, or five minutes if the window is short."""
        return HOUR if self.seconds >= 2 * HOUR else 300

    def length(self, begins: float) -> float:
        """The seconds of the period that lie within the window, but at least half: scraps say nothing."""
        within = min(begins + self.period, self.until) - max(begins, self.since)
        return max(within, min(self.period, self.seconds) / 2)

    def buckets(self) -> list[float]:
        """Where they begin. The first may begin before the window."""
        first, end = self.since // self.width, ceil(self.until / self.width)
        return [number * float(self.width) for number in range(int(first), end)]

    def has(self, moment: Column) -> Column:
        """Is this moment, in seconds since 1970, within the window?"""
        return (moment >= self.since) & (moment < self.until)

    def bucket(self, moment: Column, width: int | None = None) -> Column:
        """Where the bucket of this moment begins."""
        width = width or self.width
        return F.floor(moment / width) * float(width)


def moment(seconds: float) -> datetime:
    """Seconds since 1970 as an aware datetime in UTC."""
    return datetime.fromtimestamp(seconds, UTC)
