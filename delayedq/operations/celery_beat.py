"""The periodic tasks of django-celery-beat, taken over as schedules of the database.

What has no equal here is refused with the reason, and stays where it is. Where a schedule behaves otherwise than it
did, a note says so.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.apps import apps
from django.db import transaction

from delayedq import schedules
from delayedq.exceptions import DelayedQError, InvalidSchedule
from delayedq.operations.schedule_edits import recorded
from delayedq.store import default_store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

#: The name of the app whose tables are read.
APP = "django_celery_beat"
DAY = timedelta(days=1)

IMPORTED, REFUSED = "imported", "refused"


class Refused(Exception):  # noqa: N818
    """A periodic task that no schedule can stand for."""


class Taken(NamedTuple):
    """What became of one periodic task: `outcome` is IMPORTED or REFUSED, `said` the times, or the reason."""

    name: str
    task: str
    outcome: str
    said: str
    first: datetime | None = None
    notes: tuple[str, ...] = ()


def take_over(tasks: Mapping[str, str], *, dry_run: bool = False) -> list[Taken]:
    """Make a schedule of each periodic task, all in one transaction; with `dry_run`, roll it back.

    `tasks` names the task here for the name that a task has there. Raises InvalidSchedule without that app.
    """
    if not apps.is_installed(APP):
        raise InvalidSchedule(f"{APP!r} is not in INSTALLED_APPS; its tables are read through its models.")
    periodic = apps.get_model(APP, "PeriodicTask").objects.select_related("interval", "crontab", "solar", "clocked")
    with transaction.atomic(using=default_store().alias):
        taken = [_take_over(one, tasks) for one in periodic.order_by("name")]
        if dry_run:
            transaction.set_rollback(True, using=default_store().alias)
    return taken


def _take_over(periodic: Any, tasks: Mapping[str, str]) -> Taken:
    task = tasks.get(periodic.task, periodic.task)
    try:
        given, said = _when(periodic)
        given |= _rest(periodic)
        first = recorded(
            periodic.name, "Import", lambda: schedules.create(periodic.name, task, enabled=periodic.enabled, **given)
        )
    except (Refused, DelayedQError) as error:
        return Taken(periodic.name, task, REFUSED, str(error))
    return Taken(periodic.name, task, IMPORTED, said, first, tuple(_notes(periodic, first)))


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
        raise Refused(f"It follows the sun ({periodic.solar.event}), which no schedule here does.")
    raise Refused("It has no interval, crontab or clocked time.")


def _interval(interval: Any) -> tuple[dict[str, Any], str]:
    period = timedelta(**{interval.period: interval.every})
    return {"every": period}, f"every {period}"


def _crontab(crontab: Any) -> tuple[dict[str, Any], str]:
    fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    expression = " ".join("".join(str(getattr(crontab, field)).split()) for field in fields)
    if crontab.day_of_month != "*" and crontab.day_of_week != "*":
        raise Refused(f"{expression!r} has two day fields: Celery requires both to match, here either will do.")
    return {"cron": expression, "timezone": str(crontab.timezone)}, f"{expression} {crontab.timezone}"


def _rest(periodic: Any) -> dict[str, Any]:
    """The other keys. Raises Refused."""
    given: dict[str, Any] = {"queue_name": periodic.queue or None}
    for key, kind in (("args", list), ("kwargs", dict)):
        try:
            value = json.loads(getattr(periodic, key) or json.dumps(kind()))
        except ValueError:
            raise Refused(f"Its {key} are no JSON: {getattr(periodic, key)!r}.") from None
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


def _notes(periodic: Any, first: datetime | None) -> list[str]:
    notes = []
    if periodic.clocked is not None and first is None and periodic.enabled:
        notes.append("its time has passed: it will not run")
    if periodic.interval is not None:
        notes.append("counts from the Unix epoch, not from its last run")
    if periodic.priority is not None:
        notes.append(f"priority {periodic.priority} of the broker was left out")
    if periodic.exchange or periodic.routing_key or periodic.headers not in {None, "", "{}"}:
        notes.append("exchange, routing key and headers were left out")
    if not periodic.enabled:
        notes.append("disabled, as it was")
    return notes
