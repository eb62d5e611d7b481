"""What became of the ticks: for people who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delayedq.cron.beat import SETTINGS
from delayedq.models import CronTick, FinishedMessage, Message

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from delayedq.store.protocol import Store


class LastTick(NamedTuple):
    """`state` is how its message ended, or what it does: due, running, retrying, or unknown if its history is gone."""

    nominal_at: datetime
    state: str
    message_id: int | None = None
    is_live: bool = False


def last_tick(store: Store, name: str, now: datetime) -> LastTick | None:
    """The newest tick of a schedule of the settings that is past; None if there is none yet."""
    return next(iter(last_ticks(store, name, now, 1)), None)


def last_ticks(store: Store, name: str, now: datetime, count: int) -> list[LastTick]:
    """The newest ticks of a schedule of the settings that are past, the newest first."""
    past = CronTick.objects.using(store.alias).filter(
        schedule__owner=SETTINGS, schedule__name=name, nominal_at__lte=now
    )
    ticks = list(past.order_by("-nominal_at")[:count])
    states = _states(store, [tick.message_id for tick in ticks if tick.message_id is not None], now)
    return [LastTick(tick.nominal_at, *states.get(tick.message_id or 0, ("unknown", None, False))) for tick in ticks]


def _states(store: Store, ids: Sequence[int], now: datetime) -> dict[int, tuple[str, int, bool]]:
    """What lives is looked for first: what ends meanwhile is found in the history."""
    live = Message.objects.using(store.alias).only("attempt", "lease_token", "leased_until").in_bulk(ids)
    ended = FinishedMessage.objects.using(store.alias).only("outcome").in_bulk([id_ for id_ in ids if id_ not in live])
    return {id_: (row.outcome, id_, False) for id_, row in ended.items()} | {
        id_: (_state(message, now), id_, True) for id_, message in live.items()
    }


def _state(message: Message, now: datetime) -> str:
    if message.lease_token is not None and message.leased_until is not None and message.leased_until > now:
        return "running"
    return "retrying" if message.attempt else "due"
