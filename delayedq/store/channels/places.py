"""The places of messages in their channels: what waits, what runs, and what is not as it was any more."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from django.db.models import OuterRef, Subquery

from delayedq.core.channels import BOUNDARY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.models import ChannelMessage
    from delayedq.store.base import Store

    Row = tuple[int, int, int, int]


class Running(NamedTuple):
    """How many messages run, and the first moment at which one of their leases ends."""

    number: int = 0
    until: datetime | None = None

    def and_until(self, until: datetime) -> Running:
        """With another one."""
        return Running(self.number + 1, until if self.until is None else min(self.until, until))


class Places:
    """At one moment. A message runs if it carries the token of its place, and its lease holds."""

    def __init__(self, store: Store, now: datetime) -> None:
        self._store = store
        self._now = now

    @property
    def _all(self) -> QuerySet[ChannelMessage]:
        from delayedq.models import ChannelMessage

        return ChannelMessage.objects.using(self._store.alias)

    def running_by_group(self, groups: Collection[int]) -> Counter[int]:
        """How many messages run in each of these groups."""
        taken = self._taken(self._all.filter(group_id__in=groups))
        held = self._held(taken)
        return Counter(group for id_, _, group, _ in taken if id_ in held)

    def running(self, channels: Collection[int]) -> dict[int, Running]:
        """What runs in each of these channels. Places of what does not run any more are put right."""
        running, ended = self.look(channels)
        self.put_right(ended)
        return running

    def look(self, channels: Collection[int]) -> tuple[dict[int, Running], list[int]]:
        """What runs in each of these channels, and the ids of what has a place as if it ran."""
        taken = self._taken(self._all.filter(channel_id__in=channels))
        held = self._held(taken)
        running = dict.fromkeys(channels, Running())
        for id_, channel, _, _ in taken:
            if id_ in held:
                running[channel] = running[channel].and_until(held[id_])
        return running, [id_ for id_, *_ in taken if id_ not in held]

    def _taken(self, places: QuerySet[ChannelMessage]) -> list[Row]:
        rows = places.filter(lease_token__gt=0).values_list("message_id", "channel_id", "group_id", "lease_token")
        return list(rows)

    def _held(self, taken: Collection[Row]) -> dict[int, datetime]:
        """Those that run, and until when their leases hold, or at least now."""
        held = self._store.held_among([row[0] for row in taken], self._now) if taken else {}
        tokens = {id_: token for id_, _, _, token in taken}
        return {id_: max(one.until or self._now, self._now) for id_, one in held.items() if one.token == tokens[id_]}

    def put_right(self, ids: Collection[int]) -> None:
        """Have these wait, as their messages say; those without a message in a limited lane have no place any more."""
        if not ids:
            return
        from delayedq.models import Message

        messages = Message.objects.using(self._store.alias).filter(id__in=ids, priority__lt=BOUNDARY)
        due = dict(messages.values_list("id", "scheduled_at"))
        self._store.drop_places([id_ for id_ in ids if id_ not in due])
        for place in self._all.filter(message_id__in=list(due)):
            place.lease_token, place.due_at = 0, due[place.message_id]
            place.save(using=self._store.alias, update_fields=["lease_token", "due_at"])

    def heads(self, most: Mapping[int, int]) -> dict[int, list[int]]:
        """The ids of the first messages that are due in each of these channels, up to so many."""
        found: dict[int, list[int]] = {id_: [] for id_ in most}
        for channel, message in self._store.channel_heads(most, self._now):
            found[channel].append(message)
        return found

    def next_due(self, channels: Collection[int]) -> dict[int, datetime | None]:
        """When the next message of each of these channels is due; None: some run and none waits.

        Those with no message at all are left out.
        """
        if not channels:
            return {}
        from delayedq.models import Channel

        waiting = self._all.filter(channel_id=OuterRef("id"), lease_token=0).order_by("due_at").values("due_at")[:1]
        rows = Channel.objects.using(self._store.alias).filter(id__in=channels)
        due = dict(rows.annotate(due=Subquery(waiting)).values_list("id", "due"))
        running = {row[1] for row in self._taken(self._all.filter(channel_id__in=channels))}
        return {id_: moment for id_, moment in due.items() if moment is not None or id_ in running}
