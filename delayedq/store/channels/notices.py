"""Taking notices: the channels in which something happened are in turn, or rest until that is due.

This is how SQLite, MariaDB and MySQL do it. PostgreSQL does the same in one statement (`postgresql.channels_sql.HEAR`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delayedq.store.channels.visits import LEAST_SECONDS, cost

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime

    from delayedq.models import Channel, ChannelNotice
    from delayedq.store.channels.requests import Notice, Told
    from delayedq.store.channels.verbs import Channels

#: So many notices are taken by one claim, and so many channels are put in turn when their time came.
MOST_NOTICES, MOST_RISING = 5_000, 1_000
#: The weight of what was known of a channel's messages, for each message that ended since.
KEPT = 0.9


class _Heard(NamedTuple):
    """All notices of one channel."""

    group_id: int
    name: str
    at: datetime
    ended: int
    seconds: float

    def mean(self, before: float) -> float:
        """Seconds that a message of this channel takes, if it was `before`."""
        if not self.ended:
            return before
        kept = KEPT**self.ended if before else 0.0
        return before * kept + self.seconds / self.ended * (1 - kept)


def hear(store: Channels, now: datetime, told: Told) -> bool:
    """Read what was told since the last claim, and forget it; those whose time has come are in turn.

    Returns whether there may be more to read.
    """
    from delayedq.models import Channel, ChannelNotice

    alias = store.database.alias
    notices = list(ChannelNotice.objects.using(alias).order_by("id")[:MOST_NOTICES])
    if notices:
        store.forget_notices([one.pk for one in notices])
    store.drop_places(told.ended)
    heard: list[ChannelNotice | Notice] = [*notices, *told.notices]
    if heard:
        _put_in_turn(store, _by_channel(heard), _groups(alias, heard), now)
    # By a list: with Django 5.2, SQLite gets `NOT is_ready`, for which it uses no index.
    rested = Channel.objects.using(alias).filter(is_ready__in=[False], ready_at__lte=now)
    if ids := list(rested.order_by("ready_at").values_list("id", flat=True)[:MOST_RISING]):
        Channel.objects.using(alias).filter(id__in=ids).update(is_ready=True)
    return len(notices) == MOST_NOTICES


def _groups(alias: str, notices: Iterable[ChannelNotice | Notice]) -> dict[int, float]:
    """Where the turns of these groups are; those that are new begin at 0."""
    from delayedq.models import ChannelGroup

    ids = {one.group_id: (one.queue, one.kind) for one in notices}
    known = dict(ChannelGroup.objects.using(alias).filter(id__in=ids).values_list("id", "turn"))
    new = [ChannelGroup(id=id_, queue=names[0], kind=names[1]) for id_, names in ids.items() if id_ not in known]
    ChannelGroup.objects.using(alias).bulk_create(new, ignore_conflicts=True)
    return dict.fromkeys(ids, 0.0) | known


def _by_channel(notices: Iterable[ChannelNotice | Notice]) -> dict[int, _Heard]:
    heard: dict[int, _Heard] = {}
    for one in notices:
        first = heard.get(one.channel_id)
        new = _Heard(one.group_id, one.name, one.at, one.ended, one.seconds)
        heard[one.channel_id] = new if first is None else _both(first, new)
    return heard


def _both(one: _Heard, other: _Heard) -> _Heard:
    return one._replace(at=min(one.at, other.at), ended=one.ended + other.ended, seconds=one.seconds + other.seconds)


def _put_in_turn(store: Channels, heard: dict[int, _Heard], turns: dict[int, float], now: datetime) -> None:
    from delayedq.models import Channel

    known = Channel.objects.using(store.database.alias).in_bulk(list(heard))
    store_channels(store, [_after(known.get(id_), id_, said, turns[said.group_id], now) for id_, said in heard.items()])


def _after(known: Channel | None, id_: int, heard: _Heard, turn: float, now: datetime) -> Channel:
    """The channel as the notices leave it. An attempt was charged with the mean of those before it: that is put right.

    A channel that had nothing to do begins where the others are: it has no claim to the time when it was not there.
    """
    from delayedq.models import Channel

    channel = known or Channel(id=id_, group_id=heard.group_id, name=heard.name, turn=turn, ready_at=heard.at)
    if not channel.is_ready:
        channel.turn = max(channel.turn, turn)
    if heard.ended:
        charged = heard.ended * cost(channel.seconds)
        took = max(heard.seconds, heard.ended * LEAST_SECONDS)
        channel.turn += (took - charged) / channel.weight if known else 0.0
        channel.seconds = heard.mean(channel.seconds)
    channel.ready_at = min(channel.ready_at, heard.at)
    channel.is_ready = channel.is_ready or channel.ready_at <= now
    return channel


_FIELDS = ["is_ready", "ready_at", "turn", "seconds", "weight", "tokens", "tokens_at"]


def store_channels(store: Channels, channels: Collection[Channel]) -> None:
    """Insert or update them."""
    from delayedq.models import Channel

    Channel.objects.using(store.database.alias).bulk_create(
        channels, update_conflicts=True, update_fields=_FIELDS, unique_fields=store.unique("id"), batch_size=500
    )
