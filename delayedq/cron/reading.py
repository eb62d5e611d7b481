"""The last ticks of schedules and their outcomes, for the admin and the command."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.db.models import OuterRef, Q, Subquery

from delayedq.cron.beat import SETTINGS
from delayedq.models import CronSchedule, CronTick, FinishedMessage, Message

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from delayedq.store.base import Store


class LastTick(NamedTuple):
    """`state`: the outcome of its message, or due, running, retrying, or unknown if its history was pruned."""

    nominal_at: datetime
    state: str
    message_id: int | None = None
    is_live: bool = False


def latest_ticks(store: Store, schedules: Sequence[int], now: datetime, count: int = 1) -> dict[int, list[LastTick]]:
    """The newest `count` past ticks of each of these schedules that has some, the newest first, by the schedule's id.

    4 statements, and more for more than about 1,000 ticks.
    """
    past = CronTick.objects.using(store.alias).filter(schedule=OuterRef("pk"), nominal_at__lte=now)
    first = Subquery(past.order_by("-nominal_at").values("nominal_at")[count - 1 : count])
    rows = CronSchedule.objects.using(store.alias).filter(id__in=schedules).annotate(first=first)
    chosen = Q(pk=None)
    for schedule, since in rows.values_list("pk", "first"):
        chosen |= Q(schedule=schedule, nominal_at__lte=now, **({"nominal_at__gte": since} if since else {}))
    ticks = list(CronTick.objects.using(store.alias).filter(chosen).order_by("-nominal_at"))
    found: dict[int, list[LastTick]] = {}
    for tick, told in zip(ticks, _told(store, ticks, now), strict=True):
        found.setdefault(tick.schedule_id, []).append(told)
    return found


def last_ticks(store: Store, name: str, now: datetime, count: int) -> list[LastTick]:
    """The newest past ticks of a schedule of the settings or the database, the newest first."""
    past = CronTick.objects.using(store.alias).filter(
        schedule__owner=SETTINGS, schedule__name=name, nominal_at__lte=now
    )
    return _told(store, list(past.order_by("-nominal_at")[:count]), now)


def _told(store: Store, ticks: Sequence[CronTick], now: datetime) -> list[LastTick]:
    states = _states(store, [tick.message_id for tick in ticks if tick.message_id is not None], now)
    return [LastTick(tick.nominal_at, *states.get(tick.message_id or 0, ("unknown", None, False))) for tick in ticks]


def _states(store: Store, ids: Sequence[int], now: datetime) -> dict[int, tuple[str, int, bool]]:
    """Live messages are read first: one that ends meanwhile is then found in the history."""
    live = Message.objects.using(store.alias).only("attempt", "lease_token", "leased_until").in_bulk(ids)
    ended = FinishedMessage.objects.using(store.alias).only("outcome").in_bulk([id_ for id_ in ids if id_ not in live])
    return {id_: (row.outcome, id_, False) for id_, row in ended.items()} | {
        id_: (state_of(message, now), id_, True) for id_, message in live.items()
    }


def state_of(message: Message, now: datetime) -> str:
    """A live message is running, retrying or due."""
    if message.lease_token is not None and message.leased_until is not None and message.leased_until > now:
        return "running"
    return "retrying" if message.attempt else "due"
