"""The places of messages in their channels: what waits, what runs, and what is not as it was any more."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from django.db.models import Exists, Min, OuterRef, Subquery

from delayedq.core.channels import BOUNDARY, HEAD
from delayedq.store.channels.offers import line_up_again
from delayedq.store.channels.requests import ChannelState, Look, Running

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.models import ChannelMessage
    from delayedq.store.channels.requests import Asked, Group
    from delayedq.store.channels.verbs import Channels

    Row = tuple[int, int, int, int]

#: Where a message was cancelled, so many others of its channel are looked at.
SWEPT = 1_000


class Places:
    """At one moment. A message runs if it carries the token of its place, and its lease holds."""

    def __init__(self, store: Channels, now: datetime) -> None:
        self._store = store
        self._alias = store.database.alias
        self._now = now

    @property
    def _all(self) -> QuerySet[ChannelMessage]:
        from delayedq.models import ChannelMessage

        return ChannelMessage.objects.using(self._alias)

    def running_by_group(self, groups: Collection[int]) -> Counter[int]:
        """How many messages run in each of these groups."""
        taken = self._taken(self._all.filter(group_id__in=groups))
        held = self._held(taken)
        return Counter(group for id_, _, group, _ in taken if id_ in held)

    def running(self, channels: Collection[int]) -> tuple[dict[int, Running], dict[int, list[int]]]:
        """What runs in each of these channels, and the ids of what has a place as if it ran."""
        taken = self._taken(self._all.filter(channel_id__in=channels))
        held = self._held(taken)
        running = dict.fromkeys(channels, Running())
        ended: dict[int, list[int]] = {id_: [] for id_ in channels}
        for id_, channel, _, _ in taken:
            if id_ in held:
                running[channel] = running[channel].and_until(held[id_])
            else:
                ended[channel].append(id_)
        return running, ended

    def _taken(self, places: QuerySet[ChannelMessage]) -> list[Row]:
        rows = places.filter(lease_token__gt=0).values_list("message_id", "channel_id", "group_id", "lease_token")
        return list(rows)

    def _held(self, taken: Collection[Row]) -> dict[int, datetime]:
        """Those that run, and until when their leases hold, or at least now."""
        held = self._store.held_among([row[0] for row in taken], self._now) if taken else {}
        tokens = {id_: token for id_, _, _, token in taken}
        return {id_: max(one.until or self._now, self._now) for id_, one in held.items() if one.token == tokens[id_]}

    def put_right(self, ids: Collection[int], *, is_strict: bool = False) -> set[int]:
        """Have these wait, as their messages say; those without a message in a limited lane have no place any more.

        is_strict: those that were claimed are first in their channels, and block them. Returns those that have no
        place any more. What an operator brings back at this moment keeps its place.
        """
        if not ids:
            return set()
        from delayedq.models import Message

        messages = Message.objects.using(self._alias).filter(id__in=ids, priority__lt=BOUNDARY)
        due = dict(messages.values_list("id", "scheduled_at"))
        gone = {id_ for id_ in ids if id_ not in due}
        if gone:
            self._store.drop_places(gone)
            line_up_again(self._store, gone)
        for place in self._all.filter(message_id__in=list(due)):
            if is_strict and place.lease_token:
                place.urgency = HEAD
            place.lease_token, place.due_at = 0, due[place.message_id]
            place.save(using=self._alias, update_fields=["lease_token", "due_at", "urgency"])
        return gone

    def sweep(self, channel: int) -> None:
        """Of the first SWEPT that wait in a channel, those whose messages have ended have no place any more."""
        from delayedq.models import Message

        first = self._all.filter(channel_id=channel, lease_token=0).order_by("urgency", "due_at", "message_id")
        ids = set(first.values_list("message_id", flat=True)[:SWEPT])
        live = Message.objects.using(self._alias).filter(id__in=ids, priority__lt=BOUNDARY)
        self.put_right(ids - set(live.values_list("id", flat=True)))

    def look(self, asked: Asked) -> list[Look]:
        """As SQLite, MariaDB and MySQL do it. PostgreSQL does the same in one statement."""
        channels = self._in_turn(asked)
        ids = [one.id for one in channels]
        share = share_of(asked.room, len(ids))
        running, ended = self.running(ids)
        heads, due = self._store.heads(dict.fromkeys(ids, share), self._now), self._next_due(ids)
        definitions = self._definitions(asked.group, channels)
        blocked = self.blocked(ids) if asked.is_strict else {}
        return [
            Look(
                one, running[one.id], share, heads[one.id], due.get(one.id), ended[one.id], definitions.get(one.name),
                blocked.get(one.id),
            )
            for one in channels
        ]  # fmt: skip

    def _in_turn(self, asked: Asked) -> list[ChannelState]:
        from delayedq.models import Channel

        ready = Channel.objects.using(self._alias).filter(group_id=asked.group.id, is_ready=True)
        rows = list(ready.order_by("turn", "id").values_list(*ChannelState._fields)[: asked.most])
        if others := {*asked.others} - {row[0] for row in rows}:
            rows += ready.filter(id__in=others).order_by("turn", "id").values_list(*ChannelState._fields)
        return [ChannelState(*row) for row in rows]

    def blocked(self, channels: Collection[int]) -> dict[int, datetime]:
        """Those that a message blocks, until it is due."""
        rows = (
            self.heads(channels).order_by().values("channel_id").annotate(due=Min("due_at")).filter(due__gt=self._now)
        )
        return dict(rows.values_list("channel_id", "due"))

    def heads(self, channels: Collection[int]) -> QuerySet[ChannelMessage]:
        """The messages that were claimed in channels with a strict order, and wait to be tried again."""
        from delayedq.models import Message

        live = Message.objects.filter(id=OuterRef("message_id"))
        heads = self._all.filter(Exists(live), channel_id__in=channels, lease_token=0, urgency=HEAD)
        return heads.order_by("due_at", "message_id")

    def _next_due(self, channels: Collection[int]) -> dict[int, datetime]:
        from delayedq.models import Channel

        later = self._all.filter(channel_id=OuterRef("id"), lease_token=0, due_at__gt=self._now)
        rows = Channel.objects.using(self._alias).filter(id__in=channels)
        return dict(rows.annotate(due=Subquery(later.order_by("due_at").values("due_at")[:1])).values_list("id", "due"))

    def _definitions(self, group: Group, channels: Sequence[ChannelState]) -> dict[str, str | None]:
        """The limits that were set live: what a task says goes before what its queue says."""
        from delayedq.models import LimitState

        names = [one.name for one in channels if one.name]
        named = LimitState.objects.using(self._alias).filter(
            scope__in=[group.queue, group.kind], channel__in=names, definition__isnull=False
        )
        rows = sorted(named.values_list("scope", "channel", "definition"), key=lambda row: row[0] == group.kind)
        return {channel: definition for _, channel, definition in rows}


def share_of(room: int, channels: int) -> int:
    """How many messages of each channel to look at: its share of the room, and one more to know whether more wait."""
    return -(-max(room, 0) // max(channels, 1)) + 1


def unblock(store: Channels, channels: Collection[int]) -> bool:
    """Have the messages that block these channels wait as all others do; says whether there were any."""
    from delayedq.models import ChannelMessage, Message

    alias = store.database.alias
    heads = ChannelMessage.objects.using(alias).filter(channel_id__in=channels, lease_token=0, urgency=HEAD)
    priorities = dict(
        Message.objects.using(alias).filter(id__in=heads.values("message_id")).values_list("id", "priority")
    )
    for id_, priority in priorities.items():
        heads.filter(message_id=id_).update(urgency=-priority)
    return bool(priorities)
