"""The schedules of django-ox that are rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from delayedq.operations.imports.schedules import ForeignSchedule
from delayedq.operations.imports.waiting import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def found() -> Iterator[ForeignSchedule]:
    """Its schedules, by name. Raises InvalidMessage if its tables can't be read here."""
    for one in rows_of("django_ox", "OxSchedule").order_by("name"):
        yield ForeignSchedule(one.name, one.task_key, one.enabled, partial(_read, one), list)


def _read(schedule: Any) -> tuple[dict[str, Any], str]:
    given: dict[str, Any] = {
        "start": _whole(schedule.start_time),
        "end": _whole(schedule.end_time),
        "kwargs": schedule.arguments or None,
    }
    if schedule.starting_deadline_seconds is not None:
        given["starting_deadline"] = timedelta(seconds=schedule.starting_deadline_seconds)
    if schedule.trigger == "cron":
        return given | {"cron": schedule.cron}, schedule.cron
    every = timedelta(seconds=schedule.every_seconds)
    anchor = EPOCH + timedelta(seconds=schedule.phase_seconds)
    return given | {"every": every, "anchor": anchor}, f"every {every}"


def _whole(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(microsecond=0)
