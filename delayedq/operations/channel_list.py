"""The channels that have messages, a page at a time, and the limits that hold now. It only reads.

A page costs the same however many channels there are: those of one task in one queue come one after another as an index
has them, first those in turn, and what is in each is counted up to a bound.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import Q

from delayedq.core.channels import bucket_name, channel_id
from delayedq.core.limiting import Limit
from delayedq.models import Channel, ChannelGroup, ChannelMessage, LimitState
from delayedq.operations.channels import buckets_now, rules_here, set_for
from delayedq.operations.live_places import count_live
from delayedq.store.channels.places import Places
from delayedq.store.channels.visits import bucket_of, room_of
from delayedq.tasks import registered
from delayedq.tasks.channels import UNLIMITED, lines_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from delayedq.store.base import Store
    from delayedq.store.channels.visits import HasTokens

#: Channels on a page, and up to how many waiting messages are counted in each.
PAGE, MOST_COUNTED = 25, 1_000
#: At most so many groups, and so many limits that were set live, are looked at.
MOST = 1_000


class Listed(NamedTuple):
    """A channel. `waiting`: how many messages are due in it, up to MOST_COUNTED + 1. `limit`: its own.

    released_at: when the next of them may start by its rate; None: one may now. blocked_by: the id of the message that
    blocks it, until it is tried again at `blocked_until`.
    """

    queue: str
    kind: str
    name: str
    waiting: int
    running: int
    limit: Limit
    released_at: datetime | None
    blocked_by: int | None = None
    blocked_until: datetime | None = None

    @property
    def has_room(self) -> bool:
        """Whether its own limit lets a message start now."""
        return _has_room(self.limit, self.running, self.released_at)


class Page(NamedTuple):
    """`following`: the text with which the next page is asked for; "": there is none."""

    channels: list[Listed]
    following: str


class ScopeNow(NamedTuple):
    """A limit that channels share, or (`channel`) one that was set live for one of them.

    running: how many of its messages run; None: it is of one channel, in the list of those.
    """

    scope: str
    channel: str
    limit: Limit
    is_live: bool
    paused_by: str
    running: int | None
    released_at: datetime | None

    @property
    def has_room(self) -> bool:
        """Whether it lets a message start now."""
        return _has_room(self.limit, self.running or 0, self.released_at)


def _has_room(limit: Limit, running: int, released_at: datetime | None) -> bool:
    is_full = limit.concurrency is not None and running >= limit.concurrency
    return not is_full and released_at is None


def page_of_channels(
    store: Store, now: datetime, *, queue: str = "", kind: str = "", name: str | None = None, after: str = ""
) -> Page:
    """PAGE channels of this queue and task ("": of all), or those with this name."""
    wanted = Q(**{field: value for field, value in (("queue", queue), ("kind", kind)) if value})
    groups = list(ChannelGroup.objects.using(store.alias).filter(wanted).order_by("queue", "kind")[:MOST])
    if name is not None:
        ids = [channel_id(group.queue, group.kind, name) for group in groups]
        return Page(listed(store, now, groups, list(Channel.objects.using(store.alias).filter(id__in=ids)[:PAGE])), "")
    found = list(islice(_in_order(store, groups, after), PAGE + 1))
    shown = found[:PAGE]
    return Page(listed(store, now, groups, shown), _cursor(shown[-1]) if len(found) > PAGE else "")


def _cursor(last: Channel) -> str:
    return f"{last.group_id}/{last.is_ready:d}/{last.turn.hex()}/{last.pk}"


def _in_order(store: Store, groups: Sequence[ChannelGroup], after: str) -> Iterator[Channel]:
    """From behind a cursor; one that is none begins at the first."""
    parts = [(group.pk, is_ready) for group in groups for is_ready in (True, False)]
    place, turn, last = _position(after)
    start = parts.index(place) if place in parts else 0
    for number, (group, is_ready) in enumerate(parts[start:]):
        rows = Channel.objects.using(store.alias).filter(group_id=group, is_ready=is_ready).order_by("turn", "id")
        if number == 0 and place in parts:
            rows = rows.filter(Q(turn__gt=turn) | Q(id__gt=last), turn__gte=turn)
        yield from rows[: PAGE + 1]


def _position(after: str) -> tuple[tuple[int, bool], float, int]:
    try:
        group, is_ready, turn, last = after.split("/")
        return (int(group[:20]), is_ready == "1"), float.fromhex(turn[:40]), min(int(last[:20]), 2**63 - 1)
    except (ValueError, OverflowError):
        return (-1, False), 0.0, 0


def listed(store: Store, now: datetime, groups: Sequence[ChannelGroup], channels: Sequence[Channel]) -> list[Listed]:
    """What is in these channels of these groups."""
    by_id = {group.pk: group for group in groups}
    running, _ = Places(store, now).running([one.pk for one in channels])
    live = _live_of(store, [one.name for one in channels if one.name])
    heads = {head.channel_id: head for head in Places(store, now).heads([one.pk for one in channels]).reverse()}
    found = []
    for one in channels:
        group = by_id[one.group_id]
        own = set_for(live, group.queue, group.kind, one.name)
        limit = (rules_here(group.queue, group.kind).channel or UNLIMITED).overridden(own)
        places = ChannelMessage.objects.using(store.alias).filter(channel_id=one.pk, lease_token=0, due_at__lte=now)
        numbers = count_live(places.order_by("due_at"), MOST_COUNTED), running[one.pk].number
        listed = Listed(group.queue, group.kind, one.name, *numbers, limit, _released_at(limit, one, now))
        found.append(listed._replace(**_blocked(heads.get(one.pk) if limit.is_strict else None, now)))
    return found


def _blocked(head: ChannelMessage | None, now: datetime) -> dict[str, Any]:
    if head is None or head.due_at <= now:
        return {}
    return {"blocked_by": head.message_id, "blocked_until": head.due_at}


def _live_of(store: Store, names: Sequence[str]) -> dict[tuple[str, str], dict[str, Any]]:
    rows = LimitState.objects.using(store.alias).filter(channel__in=names, definition__isnull=False)
    return {(one.scope, one.channel): json.loads(one.definition or "{}") for one in rows[:MOST]}


def _released_at(limit: Limit, state: HasTokens | None, now: datetime) -> datetime | None:
    return room_of(Limit(rate=limit.rate), 0, bucket_of(state), 1, now).released_at


# Limits


def scopes_now(store: Store, now: datetime) -> list[ScopeNow]:
    """The limits of queues, tasks and several tasks, by name; then those that were set live for one channel."""
    states = {one.scope: one for one in LimitState.objects.using(store.alias).filter(channel="")[:MOST]}
    groups = list(ChannelGroup.objects.using(store.alias)[:MOST])
    known, buckets = _defined(groups), buckets_now(store)
    running = Places(store, now).running_by_group([one.pk for one in groups])
    of_scopes = [
        _scope_now(scope, known.get(scope, UNLIMITED), states.get(scope), buckets, now)._replace(
            running=sum(running[one.pk] for one in groups if scope in dict(rules_here(one.queue, one.kind).scopes))
        )
        for scope in sorted({*known, *states} - {""})
    ]
    by_hand = LimitState.objects.using(store.alias).filter(definition__isnull=False).exclude(channel="")
    of_channels = [
        _scope_now(one.scope, UNLIMITED, one, {}, now) for one in by_hand.order_by("scope", "channel")[:MOST]
    ]
    return [one for one in of_scopes if one.limit != UNLIMITED or one.is_live] + of_channels


def _defined(groups: Sequence[ChannelGroup]) -> dict[str, Limit]:
    """What the code says of each scope."""
    pairs = [(task.queue_name, task.module_path) for task in registered.values() if lines_up(task)]
    pairs += [(group.queue, group.kind) for group in groups]
    return {scope: limit for queue, kind in pairs for scope, limit in rules_here(queue, kind).scopes}


def _scope_now(
    scope: str, defined: Limit, state: LimitState | None, buckets: dict[str, LimitState], now: datetime
) -> ScopeNow:
    live = None if state is None or state.definition is None else state
    stored = json.loads(live.definition or "{}") if live else {}
    limit, paused = defined.overridden(stored), stored.get("paused")
    released_at = _released_at(limit, buckets.get(bucket_name(scope)), now)
    channel = state.channel if state else ""
    return ScopeNow(scope, channel, limit, live is not None, (paused or {}).get("by", ""), None, released_at)
