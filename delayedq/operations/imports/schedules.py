"""The schedules of another framework, copied as schedules of the database.

What has no equal here is refused with the reason. Where a schedule behaves otherwise than it did, a note says so. The
original stays as it is: disable it there, or its framework goes on placing its ticks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import Error, transaction

from delayedq import schedules
from delayedq.cron.operator import recorded
from delayedq.exceptions import DelayedQError
from delayedq.store import default_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

IMPORTED, REFUSED = "imported", "refused"


class RefusedSchedule(Exception):  # noqa: N818
    """A schedule there for which none here can stand."""


class ForeignSchedule(NamedTuple):
    """A schedule there. `read` gives the keys of one here, and its times in words, or raises Refused.

    `notes` says what is otherwise here.
    """

    name: str
    task: str
    enabled: bool
    read: Callable[[], tuple[dict[str, Any], str]]
    notes: Callable[[], list[str]]


class ImportedSchedule(NamedTuple):
    """What became of a schedule: `outcome` is IMPORTED or REFUSED, `said` the times, or the reason."""

    name: str
    task: str
    outcome: str
    said: str
    first: datetime | None = None
    notes: tuple[str, ...] = ()


def take_over(
    found: Iterable[ForeignSchedule], tasks: Mapping[str, str], *, dry_run: bool = False
) -> list[ImportedSchedule]:
    """Make a schedule of each, all in one transaction; with `dry_run`, roll it back.

    `tasks` names the task here for the name that a task has there.
    """
    store = default_store()
    with transaction.atomic(using=store.alias):
        taken = [_take_over(one, tasks.get(one.task, one.task)) for one in found]
        if dry_run:
            transaction.set_rollback(True, using=store.alias)
    return taken


def _take_over(one: ForeignSchedule, task: str) -> ImportedSchedule:
    try:
        given, said = _read(one)
        first = recorded(one.name, "Import", lambda: schedules.create(one.name, task, enabled=one.enabled, **given))
    except (RefusedSchedule, DelayedQError) as error:
        return ImportedSchedule(one.name, task, REFUSED, str(error))
    notes = one.notes()
    if not one.enabled:
        notes.append("disabled, as it was")
    elif first is None:
        notes.append("its time has passed: it will not run")
    return ImportedSchedule(one.name, task, IMPORTED, said, first, tuple(notes))


def _read(one: ForeignSchedule) -> tuple[dict[str, Any], str]:
    """Nothing there checks what stands in its columns, so anything may. Raises Refused."""
    try:
        return one.read()
    except (RefusedSchedule, Error):
        raise
    except Exception as error:
        raise RefusedSchedule(f"It can't be read: {type(error).__name__}: {error}.") from error
