"""Tell claims of messages with a channel that are offered or settled.

Offers and settlements only insert, so none of them waits for another. A message is *lined up* in its channel by the
transaction that stores it, and a *notice* tells the next claim to look at that channel. So does the end of an attempt:
there is room for another message then. `claims` reads the notices.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from delayedq.limits.places_held import held_key, hold_moved
from delayedq.limits.requests import Events, Notice
from delayedq.limits.rules import channel_id, channel_of, group_id, with_channel
from delayedq.sql.priority import BOUNDARY, LIMITED, is_limited
from delayedq.store.feature import RevivedMessage
from delayedq.store.protocol import Discard, GiveBack, OfferOutcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from delayedq.limits.channels import Channels
    from delayedq.store.protocol import Claimed, Finish, Offer, Offered, Settled, Transition

#: The ids of so many channels are remembered.
REMEMBERED = 50_000


class ChannelAddress(NamedTuple):
    """A channel, by its ids and by its names."""

    id: int
    group_id: int
    queue: str
    kind: str
    name: str

    def notice(self, at: datetime) -> Notice:
        return Notice(*self, at)


@lru_cache(maxsize=REMEMBERED)
def address(queue: str, kind: str, name: str) -> ChannelAddress:
    """Where messages of this task and queue with this channel wait."""
    return ChannelAddress(channel_id(queue, kind, name), group_id(queue, kind), queue, kind, name)


def address_of(claimed: Claimed) -> ChannelAddress:
    return address(claimed.queue, claimed.kind, channel_of(claimed.metadata) or "")


def as_stored(offer: Offer) -> Offer:
    """An offer with a channel as its row has it: in a limited lane, with the channel in its metadata."""
    if offer.channel is None:
        return offer
    metadata = with_channel(offer.metadata, offer.channel)
    return offer._replace(priority=offer.priority - LIMITED, metadata=metadata)


def line_up_offered(channels: Channels, offers: Iterable[Offer], offered: Iterable[Offered]) -> None:
    """Line up those of these offers that have a channel; IGNORED ones stand in it already."""
    lined = {
        one.id: address(offer.queue, offer.kind, offer.channel)
        for offer, one in zip(offers, offered, strict=True)
        if offer.channel is not None and one.id and one.outcome != OfferOutcome.IGNORED
    }
    updated = [one.id for one in offered if one.outcome == OfferOutcome.UPDATED and one.id in lined]
    if updated:
        hold_moved(channels, {id_: lined[id_].id for id_ in updated if id_})
    if lined:
        channels.line_up(lined)


def line_up_again(channels: Channels, ids: Collection[int]) -> None:
    """The same for live messages by what their rows say; those without a channel have no place.

    Their channels are looked at, as they may have blocked them.
    """
    from delayedq.models import Message  # stores are imported before the models are loaded

    rows = Message.objects.using(channels.database.alias).filter(id__in=ids, priority__lt=BOUNDARY)
    line_up_rows(channels, [RevivedMessage(*row) for row in rows.values_list(*RevivedMessage._fields)])


def line_up_rows(channels: Channels, rows: Iterable[RevivedMessage]) -> None:
    """The same for messages that have a channel, by what was read of them."""
    lined = {one.id: address(one.queue, one.kind, channel_of(one.metadata) or "") for one in rows}
    if lined:
        hold_moved(channels, {id_: where.id for id_, where in lined.items()})
        channels.line_up(lined)
        now = channels.now()
        channels.tell(Events([where.notice(now) for where in {*lined.values()}]))


def with_channels(transitions: Sequence[Transition]) -> list[Transition]:
    """Those whose messages have a channel."""
    return [one for one in transitions if is_limited(one.claimed.priority)]


def ran_for(one: Finish | GiveBack) -> float:
    """Seconds; 0 if its task never started."""
    return max(0.0, one.started - one.finished) if one.started is not None else 0.0


def told_of(limited: Sequence[Transition], settled: Settled) -> Events:
    """What is to be said of these transitions: their places are free, and their channels are to be looked at.

    Also of those that are lost: an operator may have ended the message, whose place is held until its attempt ends.
    """
    over = [one for one in limited if one.claimed.id not in settled.busy] if settled.busy else limited
    if not over:
        return Events(())
    kept = settled.superseded | settled.lost
    ended = [one.claimed.id for one in over if not isinstance(one, GiveBack) and one.claimed.id not in kept]
    ended += [held_key(one.claimed.id, one.claimed.token) for one in over if one.claimed.id in kept]
    took: dict[ChannelAddress, list[float]] = {}
    known: dict[tuple[str, str, str | None], list[float]] = {}  # most messages of a channel have the same metadata
    for one in over:
        claimed = one.claimed
        name = claimed.queue, claimed.kind, claimed.metadata
        seconds = known.get(name)
        if seconds is None:
            seconds = known[name] = took.setdefault(address_of(claimed), [])
        if not isinstance(one, Discard) and one.started is not None:  # else it never started
            seconds.append(ran_for(one))
    past = over[0].claimed.created_at  # the channels are looked at at once: what a person has decided was not due
    return Events([Notice(*where, past, len(each), sum(each)) for where, each in took.items()], ended)
