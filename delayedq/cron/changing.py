"""Stopping and resuming a schedule: by hand, by the settings, or because no settings define it any more."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from delayedq.core.ticks import SKIP_AFTER
from delayedq.cron.placing import together, withdraw
from delayedq.cron.telling import tell_changed, tell_missed
from delayedq.cron.visiting import Visited, bring_up_to_date, lock_each, not_begun, take_back_ticks, ticks_from, write

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime

    from delayedq.cron.definitions import Definition
    from delayedq.models import CronSchedule, CronTick
    from delayedq.store.base import Store

DISABLED_BY_HAND = "Its schedule was disabled."


def stop(
    store: Store,
    ids: Collection[int],
    reason: str,
    now: datetime,
    *,
    retire: bool,
    still: Callable[[Sequence[CronSchedule]], list[CronSchedule]],
) -> None:
    """Take back the ticks of those that are `still` to be stopped once their rows are locked.

    With `retire`, one that is defined again goes on from where it was; else it starts again, from then.
    """

    def work() -> None:
        rows = still([row for row in lock_each(store, ids) if row.retired_at is None])
        empty(store, rows, reason, now, "retired" if retire else "disabled")
        for row in rows:
            row.covered_until = min(row.covered_until, now)
            if retire:
                row.retired_at = now
            else:
                row.config_hash = ""
        write(store, rows)

    together(store, work)


def disable(store: Store, row: CronSchedule, now: datetime) -> None:
    """Place no ticks of this schedule any more, and take back what waits. The caller has locked the row."""
    if row.disabled_at is None:
        row.disabled_at = now
        empty(store, [row], DISABLED_BY_HAND, now, "disabled")
        write(store, [row])


def enable(store: Store, row: CronSchedule, definition: Definition | None, now: datetime) -> None:
    """Place its ticks again, from now on. The caller has locked the row; None: a worker will find the definition.

    So it will if that of the settings here is not the one that workers have installed.
    """
    if row.disabled_at is None:
        return
    row.disabled_at = None
    row.covered_until = row.next_at = now
    tell_changed(store, row.name, "enabled", 0)
    if definition is None or not definition.enabled:
        write(store, [row])
    elif row.definition is not None or row.config_hash in {"", definition.config_hash}:
        bring_up_to_date(store, [Visited(row, definition)], now)
    else:
        write(store, [row])


def empty(store: Store, rows: Sequence[CronSchedule], reason: str, now: datetime, change: str) -> None:
    """Take back the future ticks, and cancel those that are late by a minute or more; what has begun goes on."""
    if not rows:
        return
    found = ticks_from(store, rows, now)
    waiting = not_begun(store, found)
    future: dict[int, CronTick] = {}
    late: dict[int, CronTick] = {}
    for tick in found:
        if tick.message_id in waiting and tick.nominal_at > now:
            future[tick.message_id] = tick
        elif tick.message_id in waiting and now - tick.nominal_at > SKIP_AFTER:
            late[tick.message_id] = tick
    names = {row.pk: row for row in rows}
    taken_back = take_back_ticks(store, future, reason, now)
    for id_ in withdraw(store, late, reason, now):
        tick = late[id_]
        tell_missed(store, names[tick.schedule_id].name, tick.nominal_at, tick.nominal_at, reason)
    counts = Counter(future[id_].schedule_id for id_ in taken_back)
    for row in rows:
        row.runs = max(0, row.runs - counts[row.pk])
        row.next_at = None
        tell_changed(store, row.name, change, counts[row.pk])
