"""For how long messages have been due: those that wait for a worker, and those that wait for a limit.

A message that waits for a limit is not late. Of queues without channels this is what their lanes say. Of channels a
bounded number is looked at: that of the message which has been due the longest, the first in turn, and some that rest.
"""

from __future__ import annotations

from itertools import chain, product
from typing import TYPE_CHECKING, NamedTuple

from delayedq.limits.operator import rooms_of, rules_here, scopes_now
from delayedq.limits.rules import channel_id, channel_of, group_id
from delayedq.limits.waiting import due_since
from delayedq.models import Channel, ChannelGroup, ChannelNotice, Message, is_free
from delayedq.operations.browsing import united
from delayedq.sql.priority import is_limited

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.store.base import Store
    from delayedq.store.protocol import LaneHead

#: At most so many lanes of channels are looked at, and so many tasks of each queue that have channels.
MOST_LANES, MOST_TASKS = 20, 20

#: So many channels of a task are looked at that are in turn, and as many that rest: of many tasks fewer, so that there
#: are about MOST_CHANNELS in all.
LEAST, MOST, MOST_CHANNELS = 3, 10, 200

#: So many notices are looked at, for channels that no claim has heard of.
NOTICES = 20


class ChannelWait(NamedTuple):
    """Seconds for which the first message has been due that waits for a worker, and the first that waits for a limit.

    0.0: there is none.
    """

    late: float = 0.0
    limited: float = 0.0

    def with_(self, seconds: float, *, limited: bool) -> ChannelWait:
        if limited:
            return self._replace(limited=max(self.limited, seconds))
        return self._replace(late=max(self.late, seconds))


def waits(store: Store, heads: Iterable[LaneHead], now: datetime, least: float = 0.0) -> dict[str, ChannelWait]:
    """By queue of these lanes. What has been due in channels for less than `least` seconds is not looked into."""
    found: dict[str, ChannelWait] = {}
    lanes: list[LaneHead] = []
    for head in heads:
        wait, seconds = found.get(head.queue, ChannelWait()), max(0.0, -head.due_in)
        if is_limited(head.priority) and seconds > 0 and seconds >= least and len(lanes) < MOST_LANES:
            lanes.append(head)
        else:
            wait = wait.with_(seconds, limited=False)
        found[head.queue] = wait
    for queue, since, limited in _in_channels(store, lanes, now) if lanes else ():
        found[queue] = found[queue].with_((now - since).total_seconds(), limited=limited)
    return found


class _Named(NamedTuple):
    """A channel by its names."""

    queue: str
    kind: str
    name: str


def _in_channels(store: Store, lanes: Sequence[LaneHead], now: datetime) -> Iterator[tuple[str, datetime, bool]]:
    """Queues of these lanes, since when a message of them has been due, and whether it waits for a limit.

    The number of statements hardly grows with that of lanes or channels; on SQLite, which can't unite the first rows of
    several queries, with both up to their bounds.
    """
    firsts = {
        first: _Named(first.queue, first.kind, channel_of(first.metadata) or "") for first in _firsts(store, lanes, now)
    }
    groups, channels = _looked_at(store, {lane.queue for lane in lanes}, firsts.values())
    full = {one.scope for one in scopes_now(store, now).limits if not one.has_room}
    shut = {
        id_
        for id_, one in groups.items()
        if full.intersection(name for name, _ in rules_here(one.queue, one.kind).scopes)
    }
    rooms = rooms_of(store, now, list(groups.values()), list(channels.values()))
    limited = {
        one.pk: one.group_id in shut or not room.has_room or room.blocked_by is not None
        for one, room in zip(channels.values(), rooms, strict=True)
    }
    for first, named in firsts.items():
        yield named.queue, first.scheduled_at, limited[channel_id(*named)]
    for id_, since in due_since(store, channels, now).items():
        yield groups[channels[id_].group_id].queue, since, limited[id_]


def _firsts(store: Store, lanes: Iterable[LaneHead], now: datetime) -> Iterator[Message]:
    """Of each lane the message that has been due the longest."""
    due = Message.objects.using(store.alias).filter(is_free(now), scheduled_at__lte=now)
    due = due.only("queue", "kind", "metadata", "scheduled_at").order_by("scheduled_at", "id")
    return chain.from_iterable(united((due.filter(queue=one.queue, priority=one.priority) for one in lanes), 1))


def _looked_at(
    store: Store, queues: Collection[str], wanted: Iterable[_Named]
) -> tuple[dict[int, ChannelGroup], dict[int, Channel]]:
    """Groups of these queues and channels of them, by id; also those that are `wanted` or that a notice names."""
    notices = ChannelNotice.objects.using(store.alias).order_by("id")[:NOTICES]
    named = {*wanted, *(_Named(one.queue, one.kind, one.name) for one in notices if one.queue in queues)}
    groups = {group_id(queue, kind): ChannelGroup(group_id(queue, kind), queue, kind) for queue, kind, _ in named}
    known = (ChannelGroup.objects.using(store.alias).filter(queue=queue).order_by("kind") for queue in sorted(queues))
    groups |= {one.pk: one for rows in united(known, MOST_TASKS) for one in rows}
    channels = {channel_id(*one): Channel(channel_id(*one), group_id(one.queue, one.kind), one.name) for one in named}
    most = min(MOST, max(LEAST, MOST_CHANNELS // max(1, 2 * len(groups))))
    channels |= Channel.objects.using(store.alias).in_bulk(channels)
    return groups, channels | {one.pk: one for rows in united(_of_groups(store, groups), most) for one in rows}


def _of_groups(store: Store, groups: Iterable[int]) -> Iterator[QuerySet[Channel]]:
    """Of each group the channels in turn, and those that rest."""
    channels = Channel.objects.using(store.alias).order_by("turn", "id")
    for id_, is_ready in product(groups, (True, False)):
        yield channels.filter(group_id=id_, is_ready=is_ready)
