"""For how long messages have been due: those that wait for a worker, and those that wait for a limit.

A message that waits for a limit is not late. Of queues without channels this is what their lanes say. Of channels a
bounded number is looked at: that of the message which has been due the longest, the first in turn, and some that rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.channels import channel_of, is_limited
from delayedq.models import Channel, ChannelGroup, ChannelMessage, ChannelNotice, Message, is_free
from delayedq.operations.channel_list import listed
from delayedq.operations.channels import limits_now, waits_for_limit
from delayedq.operations.live_places import due_since

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from delayedq.store.base import Store
    from delayedq.store.protocol import LaneHead

#: At most so many lanes of channels and tasks of a queue are looked at, and so many channels of each.
MOST, CHANNELS = 20, 10
#: So many notices are looked at, for channels that no claim has heard of.
NOTICES = 20


class Wait(NamedTuple):
    """Seconds for which the first message has been due that waits for a worker, and the first that waits for a limit.

    0.0: there is none.
    """

    late: float = 0.0
    limited: float = 0.0

    def with_(self, seconds: float, *, limited: bool) -> Wait:
        if limited:
            return self._replace(limited=max(self.limited, seconds))
        return self._replace(late=max(self.late, seconds))


def waits(store: Store, heads: Iterable[LaneHead], now: datetime, least: float = 0.0) -> dict[str, Wait]:
    """By queue of these lanes. What has been due in channels for less than `least` seconds is not looked into."""
    found: dict[str, Wait] = {}
    lanes = 0
    for head in heads:
        wait, seconds = found.get(head.queue, Wait()), max(0.0, -head.due_in)
        is_in_channels = is_limited(head.priority) and seconds > 0 and seconds >= least
        lanes += is_in_channels
        if is_in_channels and lanes <= MOST:
            wait = _of_lane(store, head, wait, now)
        else:
            wait = wait.with_(seconds, limited=False)
        found[head.queue] = wait
    return found


def _of_lane(store: Store, head: LaneHead, wait: Wait, now: datetime) -> Wait:
    waiting = Message.objects.using(store.alias).filter(queue=head.queue, priority=head.priority)
    first = waiting.filter(is_free(now), scheduled_at__lte=now).order_by("scheduled_at", "id").first()
    if first is not None:
        limited = waits_for_limit(store, first, channel_of(first.metadata) or "", now)
        wait = wait.with_((now - first.scheduled_at).total_seconds(), limited=limited)
    told = [one for one in ChannelNotice.objects.using(store.alias).order_by("id")[:NOTICES] if one.queue == head.queue]
    groups = {one.group_id: ChannelGroup(id=one.group_id, queue=one.queue, kind=one.kind) for one in told}
    groups |= {one.pk: one for one in ChannelGroup.objects.using(store.alias).filter(queue=head.queue)[:MOST]}
    for group in list(groups.values())[:MOST]:
        new = {one.channel_id: one.name for one in told if one.group_id == group.pk}
        wait = _of_group(store, group, new, wait, now)
    return wait


def _of_group(store: Store, group: ChannelGroup, new: dict[int, str], wait: Wait, now: datetime) -> Wait:
    """`new`: ids and names of channels that no claim has heard of yet, or not again."""
    of_group = Channel.objects.using(store.alias).filter(group_id=group.pk)
    in_turn = list(of_group.filter(is_ready=True).order_by("turn", "id")[:CHANNELS])
    resting = list(of_group.filter(is_ready=False).order_by("turn", "id")[:CHANNELS])
    known = set(of_group.filter(id__in=new).values_list("id", flat=True)) if new else set()
    in_turn += [Channel(id=id_, group_id=group.pk, name=name) for id_, name in new.items() if id_ not in known]
    since = _due_since(store, [*in_turn, *resting], now)
    shared = any(one.scope and one.is_in_the_way for one in limits_now(store, group.queue, group.kind, "", now))
    free = {one.name for one in listed(store, now, [group], in_turn) if one.has_room and not shared}
    for channel in (one for one in (*in_turn, *resting) if one.pk in since):
        wait = wait.with_((now - since[channel.pk]).total_seconds(), limited=channel.name not in free)
    return wait


def _due_since(store: Store, channels: Sequence[Channel], now: datetime) -> dict[int, datetime]:
    """By channel, when its first message became due that waits: one read of an index for each."""
    due = ChannelMessage.objects.using(store.alias).filter(lease_token=0, due_at__lte=now).order_by("due_at")
    first = ((one.pk, due_since(due.filter(channel_id=one.pk))) for one in channels)
    return {id_: at for id_, at in first if at is not None}
