"""To visit schedules: bring the ticks of up to some hundred of them up to date, in one transaction.

A visit takes back the future ticks of another definition, cancels missed ticks that may not run any more, and places
those that are due within AHEAD, and at least the next one. It reads only ticks from `next_at` on, which is the first
that was not judged yet, so its cost does not grow with the number of tombstones.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from django.db import connections, transaction
from django.db.models import F
from django.db.models.functions import Coalesce, Least

from delayedq import signals
from delayedq.core.errors import with_error
from delayedq.cron.expressions import SECOND, latest, ticks
from delayedq.cron.ticks import SKIP_AFTER, Misfire, still_due
from delayedq.models import CronSchedule, CronTick, Message
from delayedq.store.protocol import OnConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from datetime import datetime

    from delayedq.cron.definitions import Definition
    from delayedq.models import CronTickQuerySet
    from delayedq.store.base import Store
    from delayedq.store.protocol import Offer

    Find = Callable[[CronSchedule], Definition | None]

# Ticks and their messages: placed together, ahead of time, each exactly once.
#
# A tick is a row of `CronTick`, unique by schedule and nominal time, written in the transaction that offers its
# message. It outlives the message as its tombstone, so a process that comes later, with a clock however slow, finds
# that the tick was placed. Tombstones are pruned by count; `covered_until` of the schedule rises with that, and
# nothing at or before it is placed again.
#
# A process that changes the ticks of a schedule holds the lock of its row. Messages are taken back by
# `store.withdraw`, which changes only messages that no attempt has begun: what runs, or waits for another attempt, is
# left alone.


#: Tombstones of past ticks that are kept per schedule.
KEPT = 1_000


class Tick(NamedTuple):
    nominal_at: datetime
    offer: Offer


def together[R](store: Store, work: Callable[[], R]) -> R:
    """Do the work in one transaction; again, as `Database.retried` does, if the database undid it."""

    def transact() -> R:
        with transaction.atomic(using=store.alias):
            return work()

    return store.database.retried(transact)


def lock(store: Store, owner: str, name: str, since: datetime) -> CronSchedule:
    """The schedule's row, locked until the caller's transaction ends.

    A new row begins at `since`: nothing at or before it is placed.
    """
    schedules = CronSchedule.objects.using(store.alias).select_for_update()
    schedule, _ = schedules.get_or_create(owner=owner, name=name, defaults={"covered_until": since})
    return schedule


def ticks_of(store: Store, schedule: CronSchedule) -> CronTickQuerySet:
    return CronTick.objects.using(store.alias).filter(schedule=schedule)


def place(store: Store, schedule: CronSchedule, config_hash: str, ticks: Iterable[Tick]) -> list[datetime]:
    """Place those that were never placed; returns their nominal times."""
    wanted = {tick.nominal_at: tick for tick in ticks if tick.nominal_at > schedule.covered_until}
    if not wanted:
        return []
    placed = ticks_of(store, schedule).between(min(wanted), max(wanted)).values_list("nominal_at", flat=True)
    new = [wanted[nominal_at] for nominal_at in sorted(wanted.keys() - set(placed))]
    offered = store.offer_many([tick.offer for tick in new], OnConflict.KEEP)
    CronTick.objects.using(store.alias).bulk_create(
        CronTick(schedule=schedule, nominal_at=tick.nominal_at, config_hash=config_hash, message_id=one.id)
        for tick, one in zip(new, offered, strict=True)
    )
    return [tick.nominal_at for tick in new]


def refresh(store: Store, placed: CronTickQuerySet, ticks: Iterable[Tick]) -> None:
    """Replace the messages of those of these ticks that no attempt has begun."""
    offers = {tick.nominal_at: tick.offer for tick in ticks}
    waiting = unbegun(store, placed.filter(nominal_at__in=offers))
    messages = Message.objects.using(store.alias).select_for_update().filter(id__in=waiting.values())
    still = set(messages.filter(attempt=0, lease_token=None).values_list("id", flat=True))  # and locked: none begins
    store.offer_many(offers[nominal_at] for nominal_at, id_ in waiting.items() if id_ in still)


def take_back(store: Store, ticks: CronTickQuerySet, reason: str, now: datetime) -> None:
    """Cancel the future ones and delete their rows, so that another definition may place them again."""
    future = _by_message(ticks.filter(nominal_at__gt=now))
    withdrawn = withdraw(store, future, reason, now)
    CronTick.objects.using(store.alias).filter(pk__in=[future[id_].pk for id_ in withdrawn]).delete()


def unbegun(store: Store, ticks: CronTickQuerySet) -> dict[datetime, int]:
    """By nominal time, the id of each message that waits for its first attempt."""
    placed = _by_message(ticks)
    messages = Message.objects.using(store.alias).filter(id__in=placed, attempt=0, lease_token=None)
    return {placed[id_].nominal_at: id_ for id_ in messages.values_list("id", flat=True)}


def withdraw(store: Store, messages: Collection[int], reason: str, now: datetime) -> set[int]:
    """Cancel those of these messages that no attempt has begun; returns their ids."""
    return store.at(now).withdraw(messages, _errors(reason, now)) if messages else set()


def prune(store: Store, schedule: CronSchedule, now: datetime) -> None:
    """Delete all but the newest KEPT tombstones, and raise `covered_until` to the newest one deleted."""
    past = ticks_of(store, schedule).filter(nominal_at__lte=now).order_by("-nominal_at")
    for edge in past.values_list("nominal_at", flat=True)[KEPT : KEPT + 1]:
        schedule.covered_until = max(schedule.covered_until, edge)
        past.order_by().filter(nominal_at__lte=edge).delete()


def _by_message(ticks: CronTickQuerySet) -> dict[int, CronTick]:
    return {tick.message_id: tick for tick in ticks if tick.message_id is not None}


def _errors(reason: str, now: datetime) -> str:
    """What the history of a withdrawn message says of its end."""
    cancelled = "delayedq.exceptions.Cancel"
    return with_error(None, attempt=0, failed_at=now, seconds=None, worker=None, exception=cancelled, message=reason)


# What cron did, sent as signals after commit: the log is one of their receivers.


logger = logging.getLogger("delayedq")


def tell_placed(store: Store, schedule: str, nominal_at: datetime, message_id: int | None) -> None:
    """Sends nothing if the log is the only receiver and its level is above DEBUG."""
    if len(signals.tick_placed.receivers) > 1 or logger.isEnabledFor(logging.DEBUG):
        _after_commit(
            store,
            lambda: signals.tick_placed.send_robust(schedule, nominal_at=nominal_at, message_id=message_id),
        )


def tell_missed(store: Store, schedule: str, first: datetime, last: datetime, reason: str) -> None:
    _after_commit(store, lambda: signals.tick_missed.send_robust(schedule, nominal_at=first, until=last, reason=reason))


def tell_changed(store: Store, schedule: str, change: str, taken_back: int) -> None:
    _after_commit(store, lambda: signals.schedule_changed.send_robust(schedule, change=change, taken_back=taken_back))


def _after_commit(store: Store, send: Callable[[], object]) -> None:
    transaction.on_commit(send, using=store.alias, robust=True)


# Visiting


#: How long before they are due ticks are placed.
AHEAD = timedelta(minutes=10)

#: A changed definition of the settings begins where the ticks of the one before end, if that was not longer ago: so
#: long can it take until a worker sees that those with the one before are gone.
HANDOVER = timedelta(minutes=5)

#: At most this many ticks of one schedule are placed in one visit.
MOST = 1_000

#: A definition that was retired and returns within this time goes on from where it was; else it is new.
RETURNS = timedelta(days=7)

#: Tombstones are pruned each time that a schedule has placed this many ticks.
PRUNE_EVERY = 100

#: What a visit writes to the row of a schedule.
WRITTEN = ("config_hash", "covered_until", "next_at", "runs", "running_id", "disabled_at", "retired_at")

CHANGED = "Its schedule has changed."


class PendingTick(NamedTuple):
    """A tick that has come, and whose message no attempt has begun; with jitter, it may be due later."""

    due_at: datetime
    tick: CronTick


@dataclass(slots=True)
class ScheduleVisit:
    """A locked schedule, and its ticks from `next_at` on."""

    row: CronSchedule
    definition: Definition
    ticks: list[CronTick] = field(default_factory=list)
    waiting: list[PendingTick] = field(default_factory=list)
    new: list[Tick] = field(default_factory=list)
    runs_before: int = 0
    #: Its next tick.
    following: datetime | None = None

    @property
    def changed(self) -> bool:
        return self.row.config_hash != self.definition.config_hash

    @property
    def runs_left(self) -> int | None:
        """How many more ticks it may have; None: any number."""
        most = self.definition.max_runs
        return None if most is None else max(0, most - self.row.runs)


def visit(store: Store, ids: Collection[int], find: Find, now: datetime, *, install: bool = False) -> set[int]:
    """Bring these schedules up to date; returns the ids of those that need nothing more now.

    Schedules whose row another transaction has locked are left out. Without `install`, so are those whose definition is
    not the one that is installed, and those that were visited meanwhile.
    """
    return together(store, lambda: _visit(store, ids, find, now, install))


def _visit(store: Store, ids: Collection[int], find: Find, now: datetime, install: bool) -> set[int]:
    locked = lock_each(store, ids, skip=True)
    visited = []
    for row in locked:
        definition = find(row) if row.disabled_at is None else None
        if definition is None or not definition.enabled:
            continue
        one = ScheduleVisit(row, definition)
        if install or (not one.changed and row.next_at is not None and row.next_at <= now):
            visited.append(one)
    if visited:
        bring_up_to_date(store, visited, now)
    return {row.pk for row in locked}


def lock_each(store: Store, ids: Collection[int], *, skip: bool = False) -> list[CronSchedule]:
    """The rows of these schedules, locked until the transaction ends; with `skip`, without those that are locked."""
    skip = skip and connections[store.alias].features.has_select_for_update_skip_locked
    rows = CronSchedule.objects.using(store.alias).select_for_update(skip_locked=skip)
    return list(rows.filter(id__in=ids).order_by("id"))


def bring_up_to_date(store: Store, visited: Sequence[ScheduleVisit], now: datetime) -> None:
    """Judge, plan and place the ticks as the module says, and write the rows, which the caller has locked."""
    put_off = _read_ticks(store, visited, now)
    _take_back_changed(store, visited, put_off, now)
    for one in visited:
        one.runs_before = one.row.runs
        _install(store, one, now)
    _judge(store, visited, now)
    for one in visited:
        _plan_ahead(one, now)
    _place(store, visited)
    for one in visited:
        one.row.next_at = _next_at(one, now)
        if one.row.runs // PRUNE_EVERY > one.runs_before // PRUNE_EVERY:
            prune(store, one.row, now)
    write(store, [one.row for one in visited])


def write(store: Store, rows: Iterable[CronSchedule], *more: str) -> None:
    """What a visit changes, and `more`, in one statement; bulk_update would make a CASE for each row."""
    with_target = connections[store.alias].features.supports_update_conflicts_with_target
    CronSchedule.objects.using(store.alias).bulk_create(
        rows, update_conflicts=True, update_fields=[*WRITTEN, *more], unique_fields=["id"] if with_target else None
    )


# What there is
def ticks_from(store: Store, rows: Iterable[CronSchedule], now: datetime) -> list[CronTick]:
    """The ticks of these schedules that may need something, or may not be placed again."""
    found = CronTick.objects.using(store.alias).filter(schedule__in=[row.pk for row in rows])
    since = Least(Coalesce(F("schedule__next_at"), F("schedule__covered_until")), now)
    return list(found.filter(nominal_at__gte=since).order_by("nominal_at"))


def not_begun(store: Store, found: Iterable[CronTick]) -> dict[int, tuple[datetime, datetime]]:
    """When the messages that no attempt has begun are due, and were due at first, by their id."""
    ids = [tick.message_id for tick in found if tick.message_id is not None]
    messages = Message.objects.using(store.alias).filter(id__in=ids, attempt=0, lease_token=None)
    return {id_: times for id_, *times in messages.values_list("id", "scheduled_at", "scheduled_at_initially")}  # type: ignore[misc]


def _read_ticks(store: Store, visited: Sequence[ScheduleVisit], now: datetime) -> dict[int, CronTick]:
    """Returns those of another definition that lie in the future, by message."""
    by_schedule = {one.row.pk: one for one in visited}
    found = ticks_from(store, [one.row for one in visited], now)
    times = not_begun(store, found)
    of_others: dict[int, CronTick] = {}
    for tick in found:
        one = by_schedule[tick.schedule_id]
        one.ticks.append(tick)
        if tick.message_id not in times:
            continue
        due_at, due_at_first = times[tick.message_id]
        if tick.nominal_at > now and tick.config_hash != one.definition.config_hash:
            of_others[tick.message_id] = tick
        elif tick.nominal_at <= now and not _is_moved(one, tick, due_at, due_at_first):
            one.waiting.append(PendingTick(due_at, tick))
    return of_others


def _is_moved(one: ScheduleVisit, tick: CronTick, due_at: datetime, due_at_first: datetime) -> bool:
    """Whether an operator has rescheduled or redriven its message."""
    if tick.config_hash != one.definition.config_hash:
        return due_at != due_at_first
    return due_at != one.definition.due_at(tick.nominal_at)


# Another definition
def _take_back_changed(
    store: Store, visited: Sequence[ScheduleVisit], of_others: dict[int, CronTick], now: datetime
) -> None:
    taken_back = take_back_ticks(store, of_others, CHANGED, now)
    for one in visited:
        left = [tick for tick in one.ticks if tick.message_id not in taken_back]
        number = len(one.ticks) - len(left)
        if one.changed and one.row.config_hash:
            tell_changed(store, one.row.name, "changed", number)
        one.ticks = left
        one.row.runs = max(0, one.row.runs - number)


def take_back_ticks(store: Store, by_message: dict[int, CronTick], reason: str, now: datetime) -> set[int]:
    """Cancel these messages, unless they have begun, and delete the rows of their ticks; returns the messages."""
    withdrawn = withdraw(store, by_message, reason, now)
    if withdrawn:
        rows = CronTick.objects.using(store.alias)
        rows.filter(pk__in=[by_message[id_].pk for id_ in withdrawn]).delete()
    return withdrawn


def _install(store: Store, one: ScheduleVisit, now: datetime) -> None:
    """A new definition starts now. One that returns after it was retired goes on from where it was."""
    row = one.row
    is_retired = row.retired_at is not None
    if row.retired_at is not None and now - row.retired_at > RETURNS:
        row.config_hash, row.runs = "", 0
    if not row.config_hash or (is_retired and one.changed):
        if row.definition is None:  # changes of those of the database are reported where they are made
            tell_changed(store, row.name, "installed", 0)
        row.covered_until = now
    elif is_retired:
        tell_changed(store, row.name, "installed again", 0)
    elif one.changed and not _takes_over(row, now):
        _tell_passed_over(store, one, now, "Its schedule was changed while no worker was there to place it.")
        row.covered_until = now
    row.config_hash, row.retired_at = one.definition.config_hash, None


def _takes_over(row: CronSchedule, now: datetime) -> bool:
    """Whether a changed definition starts where the ticks of the previous one, which workers have placed, end."""
    return row.definition is None and row.covered_until < now <= row.covered_until + HANDOVER


# Missed ticks
def _judge(store: Store, visited: Sequence[ScheduleVisit], now: datetime) -> None:
    """Cancel the ticks that are too late, and plan those that were not placed in time and still run."""
    late: dict[Misfire, dict[int, tuple[ScheduleVisit, PendingTick]]] = defaultdict(dict)
    for one in visited:
        definition, row = one.definition, one.row
        missed = _missed(one, now)
        due_at = {at: definition.due_at(at) for at in missed}
        past = sorted({*due_at.values(), *(tick.due_at for tick in one.waiting if tick.due_at <= now)})
        due = set(still_due(past, definition.misfire, definition.starting_deadline, now))
        for waiting in one.waiting:
            if waiting.due_at <= now and waiting.due_at not in due and waiting.tick.message_id is not None:
                late[definition.misfire][waiting.tick.message_id] = one, waiting
        ended = one.runs_left == 0
        _plan(one, [at for at in missed if due_at[at] in due])
        if not ended:
            reason = f"No worker was there to place it (misfire: {definition.misfire})."
            _tell_passed_over(store, one, now, reason)
        row.covered_until = max(row.covered_until, missed[-1] if len(missed) == MOST else now)
    for misfire, found in late.items():
        reason = f"It was missed (misfire: {misfire})."
        for id_ in withdraw(store, found, reason, now):
            one, waiting = found[id_]
            one.waiting.remove(waiting)
            tell_missed(store, one.row.name, waiting.tick.nominal_at, waiting.tick.nominal_at, reason)


def _missed(one: ScheduleVisit, now: datetime) -> list[datetime]:
    """The ticks that were not placed and may still run: at most MOST; the next visits return the others."""
    definition, covered_until = one.definition, one.row.covered_until
    if one.runs_left == 0 or covered_until >= now:
        return []
    limit = definition.starting_deadline
    if definition.misfire is Misfire.SKIP:
        limit = limit or SKIP_AFTER
    if definition.misfire is Misfire.ONCE:
        last = latest(definition.schedule, covered_until, now)
        return [] if last is None else [last]
    if limit is not None and now - covered_until - definition.jitter > limit:
        covered_until = now - limit - definition.jitter - SECOND
    return list(islice(ticks(definition.schedule, covered_until, now), MOST))


def _tell_passed_over(store: Store, one: ScheduleVisit, now: datetime, reason: str) -> None:
    """Report the ticks that were not placed and come before the first one that will run."""
    schedule, covered_until = one.definition.schedule, one.row.covered_until
    until = min((tick.nominal_at - SECOND for tick in one.new), default=now)
    if covered_until >= until or (last := latest(schedule, covered_until, until)) is None:
        return
    tell_missed(store, one.row.name, schedule.next_after(covered_until) or last, last, reason)


# Ticks to come
def _plan_ahead(one: ScheduleVisit, now: datetime) -> None:
    row, schedule = one.row, one.definition.schedule
    one.following = schedule.next_after(now)
    if one.following is None or row.covered_until < now:
        return
    until = max(now + AHEAD, one.following)
    ahead = list(islice(ticks(schedule, row.covered_until, until), MOST))
    _plan(one, ahead)
    row.covered_until = ahead[-1] if len(ahead) == MOST else max(row.covered_until, until)


def _plan(one: ScheduleVisit, instants: Iterable[datetime]) -> None:
    """Those that were never placed, up to `max_runs`."""
    known = {tick.nominal_at for tick in one.ticks}
    for at in instants:
        if at in known or at <= one.row.covered_until:
            continue
        if one.runs_left == 0:
            return
        one.new.append(one.definition.tick(at, last=one.runs_left == 1))
        one.row.runs += 1


def _place(store: Store, visited: Sequence[ScheduleVisit]) -> None:
    new = [(one, tick) for one in visited for tick in one.new]
    if not new:
        return
    offered = store.offer_many([tick.offer for _, tick in new], OnConflict.KEEP)
    placed = [
        CronTick(
            schedule=one.row, nominal_at=tick.nominal_at, config_hash=one.definition.config_hash, message_id=offer.id
        )
        for (one, tick), offer in zip(new, offered, strict=True)
    ]
    CronTick.objects.using(store.alias).bulk_create(placed)
    for (one, _), tick in zip(new, placed, strict=True):
        if tick.message_id is None:
            tell_missed(store, one.row.name, tick.nominal_at, tick.nominal_at, "a limit of its task is full")
        else:
            tell_placed(store, one.row.name, tick.nominal_at, tick.message_id)


def _next_at(one: ScheduleVisit, now: datetime) -> datetime | None:
    """The first tick that a later visit must judge, or place the one after; None if there is none."""
    known = [*(tick.nominal_at for tick in one.ticks), *(tick.nominal_at for tick in one.new)]
    waiting = [waiting.tick.nominal_at for waiting in one.waiting]
    waiting += [tick.nominal_at for tick in one.new if tick.nominal_at <= now]
    if waiting:
        return min(waiting)
    if one.runs_left == 0:
        return min((at for at in known if at > now), default=None)
    if one.following is not None and one.row.covered_until < max(now + AHEAD, one.following):
        return now  # there were more than MOST
    return one.following


# Stopping and resuming a schedule: by hand, by the settings, or because no settings define it any more.


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
        bring_up_to_date(store, [ScheduleVisit(row, definition)], now)
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
