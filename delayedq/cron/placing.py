"""Ticks and their messages: placed together, ahead of time, each exactly once.

A tick is a row of `CronTick`, unique by schedule and nominal time, written in the transaction that offers its message.
It outlives the message as its tombstone, so a process that comes later, with a clock however slow, finds that the tick
was placed. Tombstones are pruned by count; `covered_until` of the schedule rises with that, and nothing at or before it
is placed again.

A process that changes the ticks of a schedule holds the lock of its row. Messages are taken back by `store.withdraw`,
which changes only messages that no attempt has begun: what runs, or waits for another attempt, is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.db import transaction

from delayedq.core.error_records import with_error
from delayedq.models import CronSchedule, CronTick, Message
from delayedq.store.protocol import OnConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from datetime import datetime

    from delayedq.models import CronTickQuerySet
    from delayedq.store.base import Store
    from delayedq.store.protocol import Offer

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
