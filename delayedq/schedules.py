"""Schedules in the database, made and changed by code: `from delayedq import schedules`.

    schedules.create("digest of ann", send_digest, cron="0 8 * * *", timezone="Europe/London", args=["ann"])
    schedules.update("digest of ann", cron="0 9 * * *")
    schedules.disable("digest of ann")

Each function works in the caller's transaction: what it did is there when that commits, and never was if it rolls back.
Each takes the same keys as an entry of `DELAYEDQ["CRON"]` and checks them in the same way. Schedules of the settings
can be disabled, enabled and run here, but not changed or deleted. Everything raises InvalidSchedule, which says what is
wrong, and has changed nothing then.
"""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from itertools import batched
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from delayedq.conf import get_settings
from delayedq.core.serialization import dumps, loads
from delayedq.cron import placing
from delayedq.cron.beat import CHUNK, SETTINGS
from delayedq.cron.definitions import read, read_stored
from delayedq.cron.placing import ScheduleVisit, bring_up_to_date, empty, lock, tell_changed, together, write
from delayedq.exceptions import InvalidSchedule, QueueFull
from delayedq.models import CronSchedule
from delayedq.store import default_store
from delayedq.store.protocol import OfferOutcome
from delayedq.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from delayedq.cron.definitions import Definition
    from delayedq.store.base import Store
    from delayedq.tasks.scheduling import Scheduled

__all__ = ["create", "create_many", "delete", "disable", "enable", "get", "run_now", "update"]

DELETED = "Its schedule was deleted."
#: How many names are compared with one that is unknown, and how many of them the error lists.
NAMES, SHOWN = 10_000, 10
#: A key that replaces others.
REPLACES = {"cron": ("every", "anchor"), "every": ("cron", "timezone")}


def create(name: str, task: Task[..., Any] | str, *, enabled: bool = True, **options: Any) -> datetime | None:
    """Add a schedule of this name, which no other has; returns when it ticks first (None: disabled, or never).

    `task` is a task or the path of one. `options` are those of `DELAYEDQ["CRON"]`: either `cron` (with `timezone`) or
    `every` (with `anchor`), and `args`, `kwargs`, `queue_name`, `priority`, `misfire`, `starting_deadline`, `overlap`,
    `jitter`, `start`, `end`, `max_runs`. Nothing runs for the past. Its next tick is placed at once.
    """
    given = {"task": _path(task), **_given(options)}
    definition = _read(name, {**given, "enabled": enabled})
    store = default_store()

    def work() -> datetime | None:
        now = store.now()
        row = lock(store, SETTINGS, name, now)
        _begin(row, enabled, now)
        return _save(store, row, given, definition, now, "created")

    return together(store, work)


def create_many(given: Iterable[Mapping[str, Any]]) -> int:
    """Add many schedules, all or none, some hundred with a few statements; returns how many.

    Each is a dict with `name`, `task` and what else `create` takes.

        schedules.create_many(
            {"name": f"digest {user.pk}", "task": send_digest, "cron": "H 8 * * *", "args": [user.pk]} for user in users
        )
    """
    store = default_store()
    read = [_read_one(one) for one in given]
    names = Counter(definition.name for _, definition in read)
    if names and (most := names.most_common(1)[0])[1] > 1:
        raise InvalidSchedule(f"The name {most[0]!r} is given {most[1]} times.")

    def work() -> None:
        now = store.now()
        for some in batched(read, CHUNK):
            _create_some(store, some, now)

    together(store, work)
    return len(read)


def _read_one(one: Mapping[str, Any]) -> tuple[dict[str, Any], Definition]:
    if not isinstance(one, dict) or not {"name", "task"} <= one.keys():
        raise InvalidSchedule(f"Each schedule is a dict with 'name', 'task' and its options, not {one!r}.")
    given = _given({**one, "task": _path(one["task"])})
    name = given.pop("name", None)
    return given, _read(name, given)


def _create_some(store: Store, some: Sequence[tuple[dict[str, Any], Definition]], now: datetime) -> None:
    rows = CronSchedule.objects.using(store.alias).filter(
        owner=SETTINGS, name__in=[definition.name for _, definition in some]
    )
    new = [CronSchedule(owner=SETTINGS, name=definition.name, covered_until=now) for _, definition in some]
    CronSchedule.objects.using(store.alias).bulk_create(new, ignore_conflicts=True)
    by_name = {row.name: row for row in rows.select_for_update().order_by("id")}
    visited = []
    for given, definition in some:
        row = by_name[definition.name]
        _begin(row, definition.enabled, now)
        row.definition = dumps({key: value for key, value in given.items() if key != "enabled"})
        tell_changed(store, row.name, "created", 0)
        if definition.enabled:
            visited.append(ScheduleVisit(row, definition))
    write(store, by_name.values(), "definition")
    bring_up_to_date(store, visited, now)


def _begin(row: CronSchedule, enabled: bool, now: datetime) -> None:
    """Raises InvalidSchedule if the row is that of another schedule."""
    is_in_use = row.definition is not None or (row.config_hash and row.retired_at is None)
    if is_in_use or row.name in get_settings().CRON:
        raise InvalidSchedule(f"There is a schedule {row.name!r} already; change it with update().")
    row.config_hash, row.covered_until, row.retired_at, row.runs = "", now, None, 0
    row.disabled_at = None if enabled else now


def update(name: str, **changes: Any) -> datetime | None:
    """Change the keys that are given, as in `create`; None removes a key. Returns when it ticks next.

    With `enabled` it is disabled or enabled too. A schedule whose times or messages change takes back its future ticks
    and starts again, from now.
    """
    store = default_store()

    def work() -> datetime | None:
        now = store.now()
        row = _locked(store, name, now)
        if row.definition is None:
            raise InvalidSchedule(_in_settings(name))
        given = _merged(loads(row.definition), changes)
        definition = _read(name, given)
        enabled = given.pop("enabled", None)
        if enabled is False:
            placing.disable(store, row, now)
        elif enabled and row.disabled_at is not None:
            row.disabled_at = None
            row.covered_until = now
            tell_changed(store, name, "enabled", 0)
        return _save(store, row, given, definition, now, "")

    return together(store, work)


def delete(name: str) -> bool:
    """Delete a schedule of the database, and take back its ticks that have not begun; False if there is none."""
    store = default_store()

    def work() -> bool:
        now = store.now()
        rows = CronSchedule.objects.using(store.alias).select_for_update().filter(owner=SETTINGS, name=name)
        row = rows.first()
        if row is None or (row.definition is None and name not in get_settings().CRON and row.retired_at is None):
            return False
        if name in get_settings().CRON and row.definition is None:
            raise InvalidSchedule(_in_settings(name))
        empty(store, [row], DELETED, now, "deleted")
        row.delete()
        return True

    return together(store, work)


def disable(name: str) -> bool:
    """Place no ticks until it is enabled again, and take back those that wait; False if it is disabled already."""
    store = default_store()

    def work() -> bool:
        now = store.now()
        row = _locked(store, name, now)
        was_enabled = row.disabled_at is None
        placing.disable(store, row, now)
        return was_enabled

    return together(store, work)


def enable(name: str) -> bool:
    """Place its ticks again, from the next one on; False if it is not disabled."""
    store = default_store()

    def work() -> bool:
        now = store.now()
        row = _locked(store, name, now)
        was_disabled = row.disabled_at is not None
        placing.enable(store, row, definition_of(row), now)
        return was_disabled

    return together(store, work)


def run_now(name: str) -> Scheduled:
    """Offer its message once, due now, also if it is disabled. It is not a tick, and does not replace one.

    Raises InvalidSchedule if no schedule has this name, QueueFull if a limit of its task has reached its size.
    """
    store = default_store()
    row = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS, name=name).first()
    definition = definition_of(row or CronSchedule(owner=SETTINGS, name=name))
    if definition is None:
        raise InvalidSchedule(unknown(store, name))
    scheduled = definition.run()
    if scheduled.outcome is OfferOutcome.DROPPED:
        raise QueueFull(f"A limit of {definition.task.name} has reached its size: nothing was stored.")
    return scheduled


def get(name: str) -> dict[str, Any]:
    """The keys of a schedule of the database, as they were given. Raises InvalidSchedule."""
    store = default_store()
    rows = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS, name=name, definition__isnull=False)
    stored = rows.values_list("definition", flat=True).first()
    if stored is None:
        raise InvalidSchedule(unknown(store, name))
    given: dict[str, Any] = loads(stored)
    return given


def definition_of(row: CronSchedule) -> Definition | None:
    """From the database or the settings; None if neither has it. Raises InvalidSchedule."""
    if row.definition is not None:
        return read_stored(row.name, loads(row.definition))
    if row.name not in get_settings().CRON:
        return None
    try:
        return read(row.name, get_settings().CRON[row.name])
    except ImproperlyConfigured as error:
        raise InvalidSchedule(str(error)) from None


def _read(name: str, given: Mapping[str, Any]) -> Definition:
    """Raises InvalidSchedule."""
    definition = read_stored(name, given)
    if definition.store.alias != default_store().alias:
        raise InvalidSchedule(
            f"Schedule {name!r}['task']: The messages of {given['task']!r} are in the database "
            f"{definition.store.alias!r}, schedules in {default_store().alias!r}; define it in DELAYEDQ['CRON']."
        )
    return definition


def _save(
    store: Store, row: CronSchedule, given: Mapping[str, Any], definition: Definition, now: datetime, change: str
) -> datetime | None:
    row.definition = dumps(dict(given))
    row.save(using=store.alias)
    if change:
        tell_changed(store, row.name, change, 0)
    if row.disabled_at is not None:
        write(store, [row])
        return None
    bring_up_to_date(store, [ScheduleVisit(row, definition)], now)
    return row.next_at


def _locked(store: Store, name: str, now: datetime) -> CronSchedule:
    """Also of one of the settings that no worker has seen yet. Raises InvalidSchedule."""
    if name in get_settings().CRON:
        return lock(store, SETTINGS, name, now)
    rows = CronSchedule.objects.using(store.alias).select_for_update()
    row = rows.filter(owner=SETTINGS, name=name).first()
    if row is None:
        raise InvalidSchedule(unknown(store, name))
    return row


def _path(task: Task[..., Any] | str) -> str:
    return task.module_path if isinstance(task, Task) else task


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not None; tuples keep their type in JSON."""
    return {key: value for key, value in options.items() if value is not None}


def _merged(given: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    if "task" in changes:
        changes = {**changes, "task": _path(changes["task"])}
    for key, others in REPLACES.items():
        if changes.get(key) is not None:
            given = {name: value for name, value in given.items() if name not in others}
    return _given({**given, **changes})


def _in_settings(name: str) -> str:
    return f"Schedule {name!r} is not in the database: what DELAYEDQ['CRON'] defines is changed there."


def unknown(store: Store, name: str) -> str:
    """What is wrong with a name that no schedule has."""
    rows = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS).order_by("name")
    known = list(dict.fromkeys([*get_settings().CRON, *rows.values_list("name", flat=True)[:NAMES]]))
    close = get_close_matches(str(name), known, 1)
    some = ", ".join(known[:SHOWN]) + (" and others" if len(known) > SHOWN else "")
    return (
        f"There is no schedule {name!r}; there are {some or 'none'}.{f' Did you mean {close[0]!r}?' if close else ''}"
    )
