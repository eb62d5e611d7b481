"""One beat: what each worker does about the schedules of the settings, about once a minute.

No worker leads. Whoever comes first locks a schedule, takes back the future ticks of its old definition, passes over
missed ticks that shall not run any more, and places those that are due within AHEAD (at least the next one). Because
ticks are placed long before they are due, it is the queue that starts them, on time, whatever the beat does meanwhile.
Time is the database's.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from django.db import Error

from delayedq.core.cron import latest, ticks
from delayedq.core.ticks import SKIP_AFTER, Misfire, still_due
from delayedq.cron.placing import lock, place, prune, take_back, ticks_of, together, unbegun, withdraw
from delayedq.models import CronSchedule

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from delayedq.cron.definitions import Definition
    from delayedq.store.protocol import Store

logger = logging.getLogger("delayedq")

#: Ticks are placed so long before they are due, and so many of a schedule in one beat.
AHEAD = timedelta(minutes=10)
MOST = 1_000
#: A schedule that another worker has just seen to needs nothing yet.
ENOUGH = timedelta(seconds=30)

#: Schedules of the settings have no owner.
SETTINGS = ""


def beat(
    store: Store, definitions: Mapping[str, Definition], *, now: datetime | None = None, thorough: bool = False
) -> None:
    """Bring the ticks of all schedules up to date.

    `thorough`: also those that another worker has just seen to. A worker that starts does so, before its first claim,
    since ticks may have been missed while nobody worked. What fails for one schedule is logged and tried again at the
    next beat; only the loss of the database ends this one (django.db.Error).
    """
    moment = now or store.now()
    known = {schedule.name: schedule for schedule in CronSchedule.objects.using(store.alias).filter(owner=SETTINGS)}
    disabled = {name for name, schedule in known.items() if schedule.disabled_at is not None}
    active = {name: one for name, one in definitions.items() if one.enabled and name not in disabled}
    for definition in active.values():
        if thorough or not _is_attended(known.get(definition.name), definition, moment):
            _attend(store, definition, moment)
    for name, schedule in known.items():
        if schedule.config_hash and name not in active:
            _retire(store, name, moment)


def disable(store: Store, name: str, now: datetime) -> None:
    """Place no ticks of this schedule any more, and take back its future ones, whatever the settings say."""

    def update() -> None:
        schedule = lock(store, SETTINGS, name, now)
        schedule.disabled_at = schedule.disabled_at or now
        _empty(store, schedule, now)

    together(store, update)


def enable(store: Store, definition: Definition, now: datetime) -> None:
    """The reverse of `disable`: its ticks are placed again, from now on."""
    schedules = CronSchedule.objects.using(store.alias).filter(owner=SETTINGS, name=definition.name)
    schedules.update(disabled_at=None)
    if definition.enabled:
        _attend(store, definition, now)


def _is_attended(schedule: CronSchedule | None, definition: Definition, now: datetime) -> bool:
    return (
        schedule is not None
        and schedule.config_hash == definition.config_hash
        and schedule.attended_at is not None
        and timedelta() <= now - schedule.attended_at < ENOUGH
    )


def _attend(store: Store, definition: Definition, now: datetime) -> None:
    def update() -> None:
        schedule = lock(store, SETTINGS, definition.name, now)
        if schedule.disabled_at is not None:
            return  # just now
        _install(store, schedule, definition, now)
        _place_missed(store, schedule, definition, now)
        _place_ahead(store, schedule, definition, now)
        prune(store, schedule, now)
        schedule.attended_at = now
        schedule.save()

    try:
        together(store, update)
    except Error:
        raise
    except Exception:
        logger.exception("The ticks of schedule %r could not be placed.", definition.name)


def _retire(store: Store, name: str, now: datetime) -> None:
    """It is not defined any more, or disabled; if it comes back, it starts from then."""

    def update() -> None:
        _empty(store, lock(store, SETTINGS, name, now), now)

    together(store, update)


def _empty(store: Store, schedule: CronSchedule, now: datetime) -> None:
    disabled = schedule.disabled_at is not None
    reason = "Its schedule was disabled." if disabled else "Its schedule is not defined any more."
    take_back(store, ticks_of(store, schedule), reason, now)
    schedule.config_hash = ""
    schedule.save()


def _install(store: Store, schedule: CronSchedule, definition: Definition, now: datetime) -> None:
    """A new definition starts now, in place of the future of the old one."""
    if schedule.config_hash == definition.config_hash:
        return
    others = ticks_of(store, schedule).exclude(config_hash=definition.config_hash)
    take_back(store, others, "Its schedule has changed.", now)
    schedule.config_hash = definition.config_hash
    schedule.covered_until = now


def _place_missed(store: Store, schedule: CronSchedule, definition: Definition, now: datetime) -> None:
    """Ticks that are past and have not begun: those that nobody placed, and those that were placed and not started."""
    own = ticks_of(store, schedule).filter(config_hash=definition.config_hash, nominal_at__lte=now)
    waiting = unbegun(store, own)
    missed = _missed(definition, schedule.covered_until, now)
    due = set(still_due(sorted({*waiting, *missed}), definition.misfire, definition.starting_deadline, now))
    late = [message for nominal_at, message in waiting.items() if nominal_at not in due]
    withdraw(store, late, f"It was missed (misfire: {definition.misfire}).", now)
    place(store, schedule, definition.config_hash, [definition.tick(at) for at in missed if at in due])
    schedule.covered_until = max(schedule.covered_until, missed[-1] if len(missed) == MOST else now)


def _missed(definition: Definition, covered_until: datetime, now: datetime) -> list[datetime]:
    """The ticks since then that may still run: at most MOST, the others come with the next beats."""
    limit = definition.starting_deadline
    if definition.misfire is Misfire.SKIP:
        limit = limit or SKIP_AFTER
    if definition.misfire is Misfire.ONCE:
        last = latest(definition.schedule, covered_until, now)
        return [] if last is None else [last]
    if limit is not None and now - covered_until > limit:
        covered_until = now - limit - timedelta(seconds=1)
    return list(islice(ticks(definition.schedule, covered_until, now), MOST))


def _place_ahead(store: Store, schedule: CronSchedule, definition: Definition, now: datetime) -> None:
    following = definition.schedule.next_after(now)
    if following is None or schedule.covered_until < now:
        return
    until = max(now + AHEAD, following)
    ahead = list(islice(ticks(definition.schedule, schedule.covered_until, until), MOST))
    place(store, schedule, definition.config_hash, [definition.tick(nominal_at) for nominal_at in ahead])
    schedule.covered_until = ahead[-1] if len(ahead) == MOST else max(schedule.covered_until, until)
