"""Which limits hold back messages that wait or fall due: they start no faster than a rate lets them.

What is said is a bound: whatever the workers do, the last message starts no earlier. How long messages run is not known
ahead, so the concurrency of a limit tells nothing of times to come.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from django.db.models import Max, Min

from delayedq.core.channels import bucket_name, group_id
from delayedq.core.limiting import last_start
from delayedq.models import Channel, ChannelGroup, ChannelMessage
from delayedq.operations.channel_list import listed, scopes_now
from delayedq.operations.channels import buckets_now, rules_here
from delayedq.operations.sizing import read_bounded
from delayedq.store import operator_store
from delayedq.store.channels.visits import bucket_of
from delayedq.tasks import registered
from delayedq.tasks.channels import lines_up

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.core.limiting import Limit
    from delayedq.operations.channel_list import Listed
    from delayedq.store.base import Store
    from delayedq.store.channels.visits import HasTokens
    from delayedq.store.figures import Grid

#: At most so many groups are looked at, and so many channels by themselves: those in which most messages wait.
MOST_GROUPS, MOST_CHANNELS = 1_000, 25
#: The bucket of what was due before the first one.
OVERDUE = -1


class HeldBack(NamedTuple):
    """`waiting` messages that a limit holds back. The last can't start before `until`; None: it is paused.

    scope: the name of a queue, a task or a shared limit. channel: "" if the limit is not that of one channel.
    """

    scope: str
    channel: str
    limit: Limit
    waiting: int
    until: datetime | None


@dataclass(slots=True)
class LimitsAhead:
    """`held_back`: what is paused, then what takes longest. `overdue`: how many are due and wait for a limit."""

    held_back: list[HeldBack] = field(default_factory=list)
    overdue: int = 0


def limits_ahead(store: Store, grid: Grid, now: datetime) -> LimitsAhead:
    """Of the messages that wait and are due before the grid ends."""
    waiting = _Waiting(store, grid, now)
    if not waiting.groups:
        return LimitsAhead()
    shared, full = _of_scopes(store, waiting)
    channels = _largest(store, waiting)
    found = [*shared, *_of_channels(channels, waiting)]
    found.sort(key=lambda one: (one.until is not None, now - (one.until or now), one.scope, one.channel))
    return LimitsAhead(found, _overdue(channels, waiting, full))


def _groups(store: Store) -> dict[int, ChannelGroup]:
    """Those that a claim knows, and those of the tasks, which it may not know yet."""
    tasks = [(one.queue_name, one.module_path) for one in registered.values() if lines_up(one)]
    known = [ChannelGroup(group_id(queue, kind), queue=queue, kind=kind) for queue, kind in tasks]
    known += ChannelGroup.objects.using(store.alias).order_by("queue", "kind")[:MOST_GROUPS]
    return {one.pk: one for one in known}


class _Waiting:
    """How many messages wait in channels, by group, channel and bucket; of many, about so many."""

    def __init__(self, store: Store, grid: Grid, now: datetime) -> None:
        self.grid, self.now = grid, now
        self.by_channel: dict[int, dict[int, Counter[int]]] = {}
        self.groups: dict[int, ChannelGroup] = {}
        places = ChannelMessage.objects.using(store.alias).filter(message_id__gt=0)
        found = places.aggregate(first=Min("message_id"), last=Max("message_id"))
        if found["first"] is not None:
            self._read(store, places, (found["first"], found["last"] + 1))

    def _read(self, store: Store, places: QuerySet[ChannelMessage], ends: tuple[int, int]) -> None:
        inside = places.filter(message_id__lt=ends[1]).order_by("message_id").values_list("message_id")
        read = partial(operator_store(store.alias).figures.waiting_in_channels, self.grid)
        part, found = read_bounded(inside, ends, read, size=lambda found: sum(one.number for one in found))
        for one in found:
            channels = self.by_channel.setdefault(one.group, {})
            channels.setdefault(one.channel, Counter())[one.bucket] += part.estimate(one.number)
        self.groups = {id_: group for id_, group in _groups(store).items() if id_ in self.by_channel}

    def of_group(self, id_: int) -> Counter[int]:
        total: Counter[int] = Counter()
        for channel in self.by_channel[id_].values():
            total.update(channel)
        return total

    def held_back(
        self, scope: str, channel: str, limit: Limit, state: HasTokens | None, due: Counter[int]
    ) -> HeldBack | None:
        """What this limit makes of these; None: it holds none of them back for longer than a bucket."""
        if limit.is_paused:
            return HeldBack(scope, channel, limit, due.total(), None)
        if limit.rate is None:
            return None
        arrivals = [(self._moment(bucket), due[bucket]) for bucket in sorted(due)]
        until = last_start(limit.rate, bucket_of(state), self.now, arrivals)
        is_later = until - arrivals[-1][0] >= timedelta(seconds=self.grid.width)
        return HeldBack(scope, channel, limit, due.total(), until) if is_later else None

    def _moment(self, bucket: int) -> datetime:
        return max(self.now, self.grid.start + bucket * timedelta(seconds=self.grid.width))


def _of_scopes(store: Store, waiting: _Waiting) -> tuple[list[HeldBack], set[str]]:
    """What the limits that channels share hold back, and the names of those that have no room now."""
    states = buckets_now(store)
    due: dict[str, Counter[int]] = {}
    for id_, group in waiting.groups.items():
        for scope, _ in rules_here(group.queue, group.kind).scopes:
            due.setdefault(scope, Counter()).update(waiting.of_group(id_))
    limits = [one for one in scopes_now(store, waiting.now) if one.scope in due and not one.channel]
    held_back = [
        waiting.held_back(one.scope, "", one.limit, states.get(bucket_name(one.scope)), due[one.scope])
        for one in limits
    ]
    return [one for one in held_back if one is not None], {one.scope for one in limits if not one.has_room}


type _Own = tuple[Channel, Listed, Counter[int]]


def _largest(store: Store, waiting: _Waiting) -> list[_Own]:
    """The channels in which most messages wait, with what is known of them and when these are due."""
    due = {id_: counted for id_ in waiting.groups for id_, counted in waiting.by_channel[id_].items()}
    largest = sorted(due, key=lambda id_: (-due[id_].total(), id_))[:MOST_CHANNELS]
    rows = list(Channel.objects.using(store.alias).filter(id__in=largest, group_id__in=waiting.groups))
    known = listed(store, waiting.now, list(waiting.groups.values()), rows)
    return [(row, one, due[row.pk]) for row, one in zip(rows, known, strict=True)]


def _of_channels(channels: list[_Own], waiting: _Waiting) -> Iterator[HeldBack]:
    """What their own limits hold back."""
    for row, one, due in channels:
        held = waiting.held_back(one.kind, one.name, one.limit, row, due)
        if held is not None:
            yield held


def _overdue(channels: list[_Own], waiting: _Waiting, full: set[str]) -> int:
    """How many are due in groups whose shared limits have no room, or else in channels whose own limit has none."""
    held = {
        id_
        for id_, group in waiting.groups.items()
        if full & {scope for scope, _ in rules_here(group.queue, group.kind).scopes}
    }
    whole = sum(waiting.of_group(id_)[OVERDUE] for id_ in held)
    return whole + sum(due[OVERDUE] for row, one, due in channels if row.group_id not in held and not one.has_room)
