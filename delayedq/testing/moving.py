"""A clock that a test moves."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django.utils import timezone

from delayedq.clock import choose

if TYPE_CHECKING:
    from collections.abc import Iterator


class Clock:
    """Shows one moment until it is moved."""

    def __init__(self, moment: datetime) -> None:
        self._moment = moment.astimezone(UTC)
        self._zone = moment.tzinfo

    def __call__(self) -> datetime:
        """The moment that it shows, in the time zone that it was given."""
        return self._moment.astimezone(self._zone)

    def advance(self, delta: timedelta | None = None, **units: float) -> datetime:
        """Move on by a timedelta, or by what makes one: `advance(hours=3)`. Elapsed time: a DST change is no jump.

        Raises ValueError for a negative one.
        """
        step = (delta or timedelta()) + timedelta(**units)
        if step < timedelta():
            raise ValueError(f"The clock can only move forward, not by {step}.")
        self._moment += step
        return self()

    def move_to(self, when: datetime | str) -> datetime:
        """Move on to a moment. Raises ValueError for one that is past."""
        moment = moment_of(when, self._zone)
        self.advance(moment - self._moment)
        return self()

    def __repr__(self) -> str:
        return f"<clock at {self().isoformat()}>"


@contextmanager
def clock(when: datetime | str | None = None, tz: tzinfo | str | None = None) -> Iterator[Clock]:
    """Set the time of the database, as delayedq sees it, within the block; the clock stands until it is moved.

    when: an aware datetime, or an ISO text that is a wall time in `tz` (default: the current time zone of Django);
    None is now. It applies to due times, leases, retries, cron, retention, bare queues, QuerySets such as
    `Message.objects.due()`, and `schedule_in`. It does not change `timezone.now()`: if your own code calls that, use
    freezegun or time-machine too.

        with clock("2026-03-08 06:55", "America/New_York") as now:
            now.advance(hours=3)
    """
    zone = ZoneInfo(tz) if isinstance(tz, str) else tz
    moving = Clock(timezone.now() if when is None else moment_of(when, zone))
    with choose(moving):
        yield moving


def moment_of(when: Any, zone: tzinfo | None) -> datetime:
    """An aware datetime. Raises ValueError for a text that is no time, TypeError for what is none at all."""
    try:
        moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    except ValueError:
        raise ValueError(f"{when!r} is not a time; write it like '2026-03-08 06:55'.") from None
    if not isinstance(moment, datetime):
        raise TypeError(f"A moment is a datetime or an ISO text, not {when!r}.")
    return moment if moment.tzinfo else timezone.make_aware(moment, zone)
