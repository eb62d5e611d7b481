"""The periodic tasks of django-celery-beat."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from delayedq.operations.imports.schedules import ForeignSchedule, RefusedSchedule
from delayedq.operations.imports.waiting import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The name of the app whose tables are read.
APP = "django_celery_beat"
DAY = timedelta(days=1)


def found() -> Iterator[ForeignSchedule]:
    """Its periodic tasks, by name. Raises InvalidMessage if its tables can't be read here."""
    # What says when each ticks is read one by one: a zone that this host does not know fails where it is read.
    for one in rows_of(APP, "PeriodicTask").order_by("name"):
        yield ForeignSchedule(one.name, one.task, one.enabled, partial(_read, one), partial(_notes, one))


def _read(periodic: Any) -> tuple[dict[str, Any], str]:
    given, said = _when(periodic)
    return given | _rest(periodic), said


def _when(periodic: Any) -> tuple[dict[str, Any], str]:
    """The keys that say when it ticks, and the same in words. Raises Refused."""
    if periodic.interval is not None:
        return _interval(periodic.interval)
    if periodic.crontab is not None:
        return _crontab(periodic.crontab)
    if periodic.clocked is not None:
        at = periodic.clocked.clocked_time.replace(microsecond=0)
        return {"every": DAY, "anchor": at, "start": at, "end": at}, f"once, at {at}"
    if periodic.solar is not None:
        raise RefusedSchedule(f"It is a solar schedule ({periodic.solar.event}), which delayedq does not have.")
    raise RefusedSchedule("It has no interval, crontab or clocked time.")


def _interval(interval: Any) -> tuple[dict[str, Any], str]:
    period = timedelta(**{interval.period: interval.every})
    return {"every": period}, f"every {period}"


def _crontab(crontab: Any) -> tuple[dict[str, Any], str]:
    fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    expression = " ".join("".join(str(getattr(crontab, field)).split()) for field in fields)
    if crontab.day_of_month != "*" and crontab.day_of_week != "*":
        raise RefusedSchedule(
            f"{expression!r} has two day fields: Celery requires both to match; here one of them is enough."
        )
    return {"cron": expression, "timezone": str(crontab.timezone)}, f"{expression} {crontab.timezone}"


def _rest(periodic: Any) -> dict[str, Any]:
    """The other keys. Raises Refused."""
    given: dict[str, Any] = {"queue_name": periodic.queue or None}
    for key, kind in (("args", list), ("kwargs", dict)):
        try:
            value = json.loads(getattr(periodic, key) or json.dumps(kind()))
        except ValueError:
            raise RefusedSchedule(f"Its {key} are not JSON: {getattr(periodic, key)!r}.") from None
        if value and not isinstance(value, kind):
            raise RefusedSchedule(f"Its {key} are not a {kind.__name__}: {getattr(periodic, key)!r}.")
        given[key] = value or None
    if periodic.expire_seconds:
        given["starting_deadline"] = timedelta(seconds=periodic.expire_seconds)
    if periodic.start_time is not None and periodic.clocked is None:
        given["start"] = periodic.start_time.replace(microsecond=0)
    if periodic.expires is not None and periodic.clocked is None:
        given["end"] = periodic.expires.replace(microsecond=0)
    if periodic.one_off and periodic.clocked is None:
        given["max_runs"] = 1
    return given


def _notes(periodic: Any) -> list[str]:
    notes = []
    if periodic.interval is not None:
        notes.append("counts from the Unix epoch, not from its last run")
    if periodic.priority is not None:
        notes.append(f"priority {periodic.priority} of the broker was left out")
    if periodic.exchange or periodic.routing_key or periodic.headers not in {None, "", "{}"}:
        notes.append("exchange, routing key and headers were left out")
    return notes
