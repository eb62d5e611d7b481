"""What offers and settlements say of messages with a channel. They only insert, so none of them waits for another.

A message is *lined up* in its channel by the transaction that stores it, and a *notice* tells the next claim to look at
that channel. So does the end of an attempt: there is room for another message then. `channels` reads the notices.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from delayedq.core.channels import BOUNDARY, LIMITED, channel_id, channel_of, group_id, is_limited, with_channel
from delayedq.store.protocol import Finish, GiveBack, OfferOutcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from delayedq.models import ChannelNotice
    from delayedq.store.channels.verbs import Channels
    from delayedq.store.database import Database
    from delayedq.store.protocol import Claimed, Offer, Offered, Settled, Transition


class _Address:
    """A channel by its names."""

    __slots__ = ("kind", "name", "queue")

    def __init__(self, queue: str, kind: str, name: str) -> None:
        self.queue, self.kind, self.name = queue, kind, name

    @property
    def id(self) -> int:
        return channel_id(self.queue, self.kind, self.name)

    def notice(self, at: datetime, ended: int = 0, seconds: float = 0.0) -> ChannelNotice:
        from delayedq.models import ChannelNotice  # stores are imported before the models are loaded

        return ChannelNotice(
            channel_id=self.id, queue=self.queue, kind=self.kind, name=self.name, at=at, ended=ended, seconds=seconds
        )


def as_stored(offer: Offer) -> Offer:
    """An offer with a channel as its row has it: in a limited lane, with the channel in its metadata."""
    if offer.channel is None:
        return offer
    metadata = with_channel(offer.metadata, offer.channel)
    return offer._replace(priority=offer.priority - LIMITED, metadata=metadata)


def line_up_offered(database: Database, offers: Iterable[Offer], offered: Iterable[Offered]) -> None:
    """Line up those of these offers that have a channel; IGNORED ones stand in it already."""
    pairs = zip(offers, offered, strict=True)
    ids = [
        one.id for offer, one in pairs if offer.channel is not None and one.id and one.outcome != OfferOutcome.IGNORED
    ]
    if ids:
        line_up(database, ids)


def line_up(database: Database, ids: Collection[int]) -> None:
    """Give these live messages their places in their channels, or new places; those without a channel have none."""
    from delayedq.models import ChannelMessage, ChannelNotice, Message

    named = ("id", "queue", "kind", "priority", "scheduled_at", "metadata")
    rows = Message.objects.using(database.alias).filter(id__in=ids, priority__lt=BOUNDARY).values_list(*named)
    places: list[ChannelMessage] = []
    notices: dict[int, ChannelNotice] = {}
    for id_, queue, kind, priority, due_at, metadata in rows:
        if (name := channel_of(metadata)) is not None:
            address = _Address(queue, kind, name)
            place = ChannelMessage(message_id=id_, channel_id=address.id, group_id=group_id(queue, kind))
            place.urgency, place.due_at = -priority, due_at
            places.append(place)
            notice = notices.setdefault(address.id, address.notice(due_at))
            notice.at = min(notice.at, due_at)
    fields = ["channel_id", "group_id", "urgency", "due_at"]
    unique = None if database.connection.vendor == "mysql" else ["message_id"]
    ChannelMessage.objects.using(database.alias).bulk_create(
        places, update_conflicts=True, update_fields=fields, unique_fields=unique, batch_size=1_000
    )
    ChannelNotice.objects.using(database.alias).bulk_create(notices.values(), batch_size=1_000)


def with_channels(transitions: Sequence[Transition]) -> list[Transition]:
    """Those whose messages have a channel."""
    return [one for one in transitions if is_limited(one.claimed.priority)]


def tell_ended(store: Channels, limited: Sequence[Transition], settled: Settled) -> None:
    """Within the transaction that settles them: their places are free, and their channels are to be looked at."""
    from delayedq.models import ChannelNotice

    database = store.database
    carried_out = [one for one in limited if one.claimed.id not in settled.busy | settled.lost]
    ended = [
        t.claimed.id for t in carried_out if not isinstance(t, GiveBack) and t.claimed.id not in settled.superseded
    ]
    store.drop_places(ended)
    notices: dict[int, ChannelNotice] = {}
    moment = database.now() if carried_out else None
    for one in carried_out:
        address = address_of(one.claimed)
        notice = notices.setdefault(address.id, address.notice(moment or database.now()))
        if (took := _seconds(one)) is not None:
            notice.ended, notice.seconds = notice.ended + 1, notice.seconds + took
    ChannelNotice.objects.using(database.alias).bulk_create(notices.values(), batch_size=1_000)


def address_of(claimed: Claimed) -> _Address:
    return _Address(claimed.queue, claimed.kind, channel_of(claimed.metadata) or "")


def _seconds(transition: Transition) -> float | None:
    """How long the attempt took; None if it never started."""
    if not isinstance(transition, Finish | GiveBack) or transition.started is None:
        return None
    return max(0.0, transition.started - transition.finished)


def notice_of(database: Database, queue: str, kind: str, name: str) -> None:
    """Have the next claim look at this channel."""
    _Address(queue, kind, name).notice(database.now() - timedelta(seconds=1)).save(using=database.alias)
