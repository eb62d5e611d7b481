"""The steps that cron starts: when each ran and will run, and which of them do not do their work."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db.models import Max
from django.utils.translation import gettext as _

from delayedq.conf import get_settings
from delayedq.core.bounds import KEY_LENGTH
from delayedq.core.serialization import load_call
from delayedq.cron.beat import SETTINGS
from delayedq.cron.definitions import read
from delayedq.cron.operator import ScheduleSelection, page_of_schedules
from delayedq.cron.reading import state_of
from delayedq.models import CronSchedule, CronTick, FinishedMessage, Message
from delayedq.operations.archived import ScheduledStep, Trouble
from delayedq.store import store_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from delayedq.cron.definitions import Definition
    from delayedq.cron.expressions import Schedule
    from delayedq.cron.operator import KnownSchedule
    from delayedq.pipeline.models import StepRun

    #: Each schedule of a step, with the arguments of that.
    KnownSteps = list[tuple[KnownSchedule, list[str]]]

#: What schedules a step, and what runs it: `pipeline.tasks`, which is not imported here, as it needs a backend.
SCHEDULED_BY, RUN_BY = "delayedq.pipeline.tasks.schedule_step", "delayedq.pipeline.tasks.run_step"
#: An archive takes minutes, and one that was killed is continued by the next.
LEFT_OVER = timedelta(hours=6)
#: After so many ticks that moved nothing, a scheduled archive is behind.
TICKS = 2
#: So many schedules are looked at.
MOST = 50


def key_of(arguments: Sequence[str]) -> str:
    """What a run of these arguments is known by: one of a key runs at a time, and the last one is in the books.

    It is the step, such as `archive`. Reports with other arguments are others, and so are loads and replays.
    """
    step = arguments[0]
    if step not in {"report", "load", "replay"} and len(step) <= KEY_LENGTH:
        return step
    return f"{step[: KEY_LENGTH // 2]} {sha256(json.dumps(arguments).encode()).hexdigest()[:16]}"


def scheduled_steps(alias: str, now: datetime) -> list[ScheduledStep]:
    """Each schedule of a step, in the settings or the database, with the last run of that. Raises django.db.Error."""
    return _with_runs(_known_steps(alias, now), now)


def _with_runs(readable: KnownSteps, now: datetime) -> list[ScheduledStep]:
    from delayedq.pipeline.models import StepRun

    if not readable:
        return []
    runs = StepRun.objects.in_bulk([key_of(arguments) for _, arguments in readable])
    rows = Message.objects.filter(id__in=[run.message_id for run in runs.values()])
    states = {row.pk: state_of(row, now) for row in rows}
    unsaid = [run.message_id for run in runs.values() if run.ended_at is None and run.message_id not in states]
    # Its end could not be recorded, though its message has one.
    states |= FinishedMessage.objects.filter(id__in=unsaid).values_list("id", "outcome") if unsaid else ()
    return [_with_run(one, arguments, runs, states) for one, arguments in readable]


def _known_steps(alias: str, now: datetime) -> KnownSteps:
    """Each schedule of a step that can be read, with the arguments of that."""
    given: dict[str, Definition] = {}
    for name, one in get_settings().CRON.items():
        if isinstance(one, dict) and one.get("task") == SCHEDULED_BY:
            with suppress(ImproperlyConfigured):  # `check` tells
                given[name] = read(name, one)
    stored = CronSchedule.objects.using(alias).filter(owner=SETTINGS, definition__isnull=False)
    if not given and not stored.exists():
        return []
    chosen = ScheduleSelection(kind=SCHEDULED_BY)
    found = page_of_schedules(store_for(alias), given, now, count=MOST, selection=chosen).schedules
    readable = [(one, _arguments(one.definition)) for one in found if one.definition is not None]
    return [(one, arguments) for one, arguments in readable if arguments]


def _with_run(
    known: KnownSchedule, arguments: list[str], runs: dict[str, StepRun], states: dict[int, str]
) -> ScheduledStep:
    step = ScheduledStep(known.name, arguments, known.following)
    if (run := runs.get(key_of(arguments))) is None:
        return step
    ended = "succeeded" if run.succeeded else "failed"
    return step._replace(last=run.ended_at or run.began_at, state=states.get(run.message_id, ended))


def _arguments(definition: Definition) -> list[str]:
    """Those of the step that it schedules; [] where they name none."""
    args, kwargs = load_call(definition.offer.payload)
    given: Any = kwargs.get("arguments") or next(iter(args), [])
    names_one = isinstance(given, list | tuple) and given and isinstance(given[0], str)
    return [str(one) for one in given] if names_one else []


def troubles_of_steps(alias: str, now: datetime, *, is_archive_told: bool = False) -> Iterator[Trouble]:
    """Scheduled steps that have failed, and those that do not do their work: nobody runs them, or they hang.

    is_archive_told: what keeps the archive from its work is known, and is not told again.
    """
    if not (known := _known_steps(alias, now)):
        return
    steps = _with_runs(known, now)
    yield from _failed(steps)
    late = _steps_behind(alias, now, steps) | ({} if is_archive_told else _archives_behind(known, now))
    told = {step.schedule for step in steps if step.state == "failed"}
    told |= {step.schedule for step in steps if is_archive_told and step.arguments[0] == "archive"}
    yield from (trouble for name, trouble in late.items() if name not in told)


def _failed(steps: Sequence[ScheduledStep]) -> Iterator[Trouble]:
    """Those whose last run has failed, or was ended from outside, and that are not tried again now."""
    told: set[str] = set()
    for step in steps:
        key = key_of(step.arguments)
        if step.state != "failed" or step.following is None or key in told:
            continue
        told.add(key)
        about = {"step": step.arguments[0], "schedule": step.schedule, "at": f"{step.last:%Y-%m-%d %H:%M}"}
        said = _("The step %(step)s, which the schedule %(schedule)s starts, has failed at %(at)s.") % about
        cure = _("Read the error of its dead letter (task %(task)s), and retry that when its cause is mended.")
        yield Trouble("failed step", said, step.last, cure % {"task": RUN_BY})


def _archives_behind(known: KnownSteps, now: datetime) -> dict[str, Trouble]:
    """By the schedule: history that should be in the lake, which the archives of two ticks have not moved."""
    from delayedq.pipeline.models import ArchiveBatch

    if not (schedules := _archives(known)):
        return {}
    oldest = FinishedMessage.objects.order_by("finished_at").values_list("finished_at", flat=True).first()
    if oldest is None:
        return {}
    moved = ArchiveBatch.objects.filter(state="deleted").aggregate(last=Max("deleted_at"))["last"]
    due = oldest + get_settings().ARCHIVE_AFTER
    since = due if moved is None else max(due, moved)
    found = {}
    for name, schedule in schedules.items():
        if not (missed := _missed(schedule, since, now)):
            continue
        about = {"schedule": name, "since": f"{missed:%Y-%m-%d %H:%M}", "oldest": f"{oldest:%Y-%m-%d %H:%M}"}
        said = _(
            "The archive that the schedule %(schedule)s starts has moved nothing since %(since)s, and history from"
            " %(oldest)s on waits for it."
        )
        cure = _("Look at the dead letters of delayedq.pipeline.tasks.run_step, then run `run_pipeline archive`.")
        found[name] = Trouble("archive behind", said % about, missed, cure)
    return found


def _missed(schedule: Schedule, since: datetime, now: datetime) -> datetime | None:
    """The first tick after that, if there were TICKS of them, and time to do their work."""
    missed = list(islice(schedule.ticks_after(since), TICKS))
    return missed[0] if len(missed) == TICKS and missed[-1] <= now - LEFT_OVER else None


def _archives(known: KnownSteps) -> dict[str, Schedule]:
    """By its name, each schedule that archives by age, unless it is disabled."""
    return {
        one.name: one.definition.schedule
        for one, arguments in known
        if one.definition is not None and one.following is not None and _is_archive_by_age(arguments)
    }


def _steps_behind(alias: str, now: datetime, steps: Sequence[ScheduledStep]) -> dict[str, Trouble]:
    """By the schedule: steps whose last run ended, or began, before two ticks that were placed."""
    found = {}
    for step in steps:
        if step.following is None or (step.last is not None and step.last > now - LEFT_OVER):
            continue
        placed = CronTick.objects.using(alias).filter(schedule__owner=SETTINGS, schedule__name=step.schedule)
        placed = placed.filter(nominal_at__lte=now - LEFT_OVER, **({"nominal_at__gt": step.last} if step.last else {}))
        missed = list(placed.order_by("nominal_at").values_list("nominal_at", flat=True)[:TICKS])
        if len(missed) < TICKS:
            continue
        about = {"step": step.arguments[0], "schedule": step.schedule, "since": f"{missed[0]:%Y-%m-%d %H:%M}"}
        said = _(
            "The step %(step)s, which the schedule %(schedule)s starts, has ended no run since its tick of %(since)s."
        )
        cure = _("Look whether a message of the task %(task)s waits or hangs, and whether a worker serves its queue.")
        found[step.schedule] = Trouble("step behind", said % about, missed[0], cure % {"task": RUN_BY})
    return found


def _is_archive_by_age(arguments: list[str]) -> bool:
    """Is the step the archive, by ARCHIVE_AFTER alone?"""
    return arguments[:1] == ["archive"] and "--older-than" not in arguments
