"""What became of the ticks: for people who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delayedq.cron.beat import SETTINGS
from delayedq.models import CronTick, FinishedMessage, Message

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.store.protocol import Store


class LastTick(NamedTuple):
    """`state` is how its message ended, or what it does: due, running, retrying, or unknown if its history is gone."""

    nominal_at: datetime
    state: str


def last_tick(store: Store, name: str, now: datetime) -> LastTick | None:
    """The newest tick of a schedule of the settings that is past; None if there is none yet."""
    past = CronTick.objects.using(store.alias).filter(
        schedule__owner=SETTINGS, schedule__name=name, nominal_at__lte=now
    )
    newest = past.order_by("-nominal_at").first()
    return None if newest is None else LastTick(newest.nominal_at, _state(store, newest.message_id or 0))


def _state(store: Store, message_id: int) -> str:
    """What lives is looked for first: what ends meanwhile is found in the history."""
    live = Message.objects.using(store.alias).filter(id=message_id)
    for state, messages in (("running", live.leased()), ("retrying", live.retrying()), ("due", live)):
        if messages.exists():
            return state
    ended = FinishedMessage.objects.using(store.alias).filter(id=message_id).first()
    return ended.outcome if ended else "unknown"
