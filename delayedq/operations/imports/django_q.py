"""The schedules of django-q2."""

from __future__ import annotations

import ast
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils import timezone

from delayedq.operations.imports.schedules import ForeignSchedule, RefusedSchedule
from delayedq.operations.imports.waiting import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY = timedelta(days=1)
MONTHS = 12
#: The last day that each month has.
LAST_DAY = 28
#: How many months lie between two runs, by its type.
_MONTHLY = {"M": 1, "BM": 2, "Q": 3, "Y": MONTHS}


def found() -> Iterator[ForeignSchedule]:
    """Its schedules, in the order in which they were made. Raises InvalidMessage if its tables can't be read here."""
    for one in rows_of("django_q", "Schedule").order_by("pk"):
        name = one.name or f"django-q2 {one.pk}"
        yield ForeignSchedule(name, one.func, one.repeats != 0, partial(_read, one), partial(_notes, one))


def _read(schedule: Any) -> tuple[dict[str, Any], str]:
    if schedule.hook or schedule.intended_date_kwarg:
        raise RefusedSchedule(
            "It has a hook, or passes its date as an argument. A task asks current_message().nominal_at."
        )
    given, said = _when(schedule)
    if schedule.repeats > 0 and schedule.schedule_type != "O":
        given["max_runs"] = schedule.repeats
    args, kwargs = _arguments(schedule)
    return given | {"args": args or None, "kwargs": kwargs or None}, said


def _when(schedule: Any) -> tuple[dict[str, Any], str]:
    """The keys that say when it ticks, and the same in words. Raises Refused."""
    kind, at, zone = schedule.schedule_type, schedule.next_run, _zone()
    if kind == "C":
        return {"cron": schedule.cron, "timezone": zone}, _said(schedule.cron, zone)
    if at is None:
        raise RefusedSchedule("It has no next run.")
    at = at.replace(microsecond=0)
    if kind == "O":
        return {"every": DAY, "anchor": at, "start": at, "end": at}, f"once, at {at}"
    periods = {"I": timedelta(minutes=schedule.minutes or 0), "H": timedelta(hours=1), "BW": timedelta(weeks=2)}
    if kind in periods:
        return {"every": periods[kind], "anchor": at, "start": at}, f"every {periods[kind]}, from {at}"
    cron = _expression(kind, timezone.localtime(at, ZoneInfo(zone or settings.TIME_ZONE)))
    return {"cron": cron, "timezone": zone, "start": at}, f"{_said(cron, zone)}, from {at}"


def _zone() -> str | None:
    """In which it reads local times, if that is not TIME_ZONE."""
    zone: str | None = getattr(settings, "Q_CLUSTER", {}).get("time_zone")
    return zone


def _said(cron: str, zone: str | None) -> str:
    return f"{cron} {zone}" if zone else str(cron)


def _expression(kind: str, at: datetime) -> str:
    """The times that follow `at`, as the clocks of its zone show them. Raises Refused."""
    if kind == "D":
        return f"{at.minute} {at.hour} * * *"
    if kind == "W":
        return f"{at.minute} {at.hour} * * {at.isoweekday() % 7}"
    if kind not in _MONTHLY:
        raise RefusedSchedule(f"Its type {kind!r} is unknown here.")
    if at.day > LAST_DAY:
        raise RefusedSchedule(f"It runs on day {at.day}, which not every month has.")
    months = sorted((at.month - 1 + step) % MONTHS + 1 for step in range(0, MONTHS, _MONTHLY[kind]))
    which = "*" if len(months) == MONTHS else ",".join(map(str, months))
    return f"{at.minute} {at.hour} {at.day} {which} *"


def _arguments(schedule: Any) -> tuple[list[Any], dict[str, Any]]:
    """Its arguments, which are stored as the source text of a call or of a dict. Raises Refused."""
    try:
        listed = (schedule.args or "").strip().rstrip(",")
        args = list(ast.literal_eval(f"({listed},)")) if listed else []
        text = (schedule.kwargs or "").strip()
        if text.startswith("{"):
            return args, dict(ast.literal_eval(text))
        call = ast.parse(f"f({text})", mode="eval").body
        if isinstance(call, ast.Call) and not call.args and all(each.arg for each in call.keywords):
            return args, {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (ValueError, SyntaxError, TypeError):
        raise RefusedSchedule(f"Its arguments are not literals: {schedule.args!r}, {schedule.kwargs!r}.") from None
    raise RefusedSchedule(f"Its keyword arguments are not all names with values: {schedule.kwargs!r}.")


def _notes(schedule: Any) -> list[str]:
    return [f"its cluster {schedule.cluster!r} was left out"] if schedule.cluster else []
