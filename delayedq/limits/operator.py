"""Describe channels: how many messages run and wait in one, its limits, and when the next may start."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import Max, Min, Q
from django.utils.translation import gettext as _

from delayedq.core.bounds import is_storable
from delayedq.limits.channels import Channels
from delayedq.limits.declared import UNLIMITED, lines_up, rules_known, rules_of
from delayedq.limits.places import Places
from delayedq.limits.rates import last_start
from delayedq.limits.requests import Rules
from delayedq.limits.room import bucket_of, room_of
from delayedq.limits.rules import Limit, bucket_name, channel_id, group_id
from delayedq.limits.setting import definitions
from delayedq.limits.waiting import waiting_before, waiting_in
from delayedq.models import Channel, ChannelGroup, ChannelMessage, LimitState, Message
from delayedq.operations.counting import read_bounded
from delayedq.operations.wording import both, grouped, span
from delayedq.store import operator_store
from delayedq.store.protocol import BARE
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.core.sampling import Sample
    from delayedq.limits.room import HasTokens
    from delayedq.store.base import Store
    from delayedq.store.figures import Grid

# Channels


#: Waiting messages are counted up to this number.
MOST_WAITING = 5_000


class LimitNow(NamedTuple):
    """A limit at a moment. `released_at`: when the next message may start by its rate; None: one may now.

    `scope`: the name of the queue, the task or the shared limit; "": it is the channel's own.
    """

    scope: str
    limit: Limit
    running: int
    released_at: datetime | None

    @property
    def is_full(self) -> bool:
        return self.limit.concurrency is not None and self.running >= self.limit.concurrency


def set_for(live: Mapping[tuple[str, str], Mapping[str, Any]], queue: str, kind: str, name: str) -> dict[str, Any]:
    """What is set live for a channel: of what both say, that of the task goes before that of the queue."""
    return {**live.get((queue, name), {}), **live.get((kind, name), {})}


def limits_now(store: Store, queue: str, kind: str, name: str, now: datetime) -> Iterator[LimitNow]:
    """The limits of a channel: its own, then those that it shares with others."""
    rules, set_live, places = rules_here(queue, kind), definitions(store), Places(Channels.of(store), now)
    own = set_for(set_live, queue, kind, name) if name else {}
    limit = (rules.channel or UNLIMITED).overridden(own) if own else rules.channel
    if limit is not None:
        id_ = channel_id(queue, kind, name)
        running, _ = places.running([id_])
        yield _now("", limit, running[id_].number, Channel.objects.using(store.alias).filter(pk=id_).first(), now)
    states = buckets_now(store)
    for scope, defined in rules.scopes:
        limit = defined.overridden(set_live.get((scope, ""), {}))
        if limit == UNLIMITED:
            continue
        groups = [one.pk for one in ChannelGroup.objects.using(store.alias) if scope in _scopes(one)]
        running_in_scope = places.running_by_group(groups).total()
        yield _now(scope, limit, running_in_scope, states.get(bucket_name(scope)), now)


def buckets_now(store: Store) -> dict[str, LimitState]:
    """The token buckets of the limits that channels share, by `bucket_name`."""
    return {one.channel: one for one in LimitState.objects.using(store.alias).filter(scope="", tokens__isnull=False)}


def _now(scope: str, limit: Limit, running: int, state: HasTokens | None, now: datetime) -> LimitNow:
    rate_only = Limit(rate=limit.rate)
    return LimitNow(scope, limit, running, room_of(rate_only, 0, bucket_of(state), 1, now).released_at)


def rules_here(queue: str, kind: str) -> Rules:
    """The limits of a task in a queue, as this process knows them."""
    if BARE in queue:
        return rules_known(queue)
    task = registered.get(kind)
    return Rules() if task is None else rules_of(task, queue)


def _scopes(group: ChannelGroup) -> list[str]:
    return [scope for scope, _ in rules_here(group.queue, group.kind).scopes]


def why_limited(store: Store, message: Message, name: str, now: datetime) -> Iterator[str]:
    """Why a due message with a channel waits, in sentences; none if nothing is in its way."""
    own = _("Channel %s") % name if name else _("Its task")
    for one in limits_now(store, message.queue, message.kind, name, now):
        subject = _("The limit %s") % one.scope if one.scope else own
        if one.limit.is_paused:
            yield _("%(limit)s is paused.") % {"limit": subject}
        elif one.is_full:
            given = {"running": grouped(one.running), "most": grouped(one.limit.concurrency or 0)}
            yield _("%(limit)s has %(running)s of %(most)s running.") % {"limit": subject, **given}
        elif one.released_at is not None:
            released = {"limit": subject, "when": both(one.released_at, now)}
            yield _("%(limit)s has its next release %(when)s.") % released
    if (head := _head(store, message, name)) is not None and head.due_at > now:
        blocked = _(
            "%(limit)s is blocked by message %(id)s, which is tried again %(when)s; `channels skip` lets the others "
            "start."
        )
        yield blocked % {"limit": own, "id": head.message_id, "when": both(head.due_at, now)}
    id_ = channel_id(message.queue, message.kind, name)
    if before := waiting_before(store, id_, message, now, MOST_WAITING):
        yield _said_before(before, name)


def _said_before(before: int, name: str) -> str:
    given = {"number": grouped(min(before, MOST_WAITING)), "channel": name}
    if name:
        words = _("%(number)s of channel %(channel)s wait before it.")
        more = _("More than %(number)s of channel %(channel)s wait before it.")
    else:
        words, more = _("%(number)s of its task wait before it."), _("More than %(number)s of its task wait before it.")
    return (more if before > MOST_WAITING else words) % given


def _head(store: Store, message: Message, name: str) -> ChannelMessage | None:
    """The message that blocks its channel until it has ended; None: none, or it itself."""
    if not _is_strict(message.queue, message.kind):
        return None
    id_ = channel_id(message.queue, message.kind, name)
    head = Places(Channels.of(store), store.now()).heads([id_]).first()
    return None if head is None or head.message_id == message.pk else head


def _is_strict(queue: str, kind: str) -> bool:
    return rules_here(queue, kind).is_strict


def terms_of(limit: Limit) -> str:
    """A limit in words; "-": it limits nothing."""
    said = []
    if limit.concurrency:
        said.append(_("%s at once") % grouped(limit.concurrency))
    if limit.rate is not None:
        terms = {"count": grouped(limit.rate.count), "span": span(limit.rate.per)}
        shown = _("%(count)s in each window of %(span)s") if limit.rate.window else _("%(count)s in %(span)s")
        said.append(shown % terms)
    if limit.size is not None:
        said.append(_("size %s") % grouped(limit.size))
    if limit.share is not None:
        said.append(_("share %s") % grouped(limit.share))
    if isinstance(limit.weight, int | float) and limit.weight != 1:
        said.append(_("weight %s") % f"{limit.weight:g}")
    if limit.is_strict:
        said.append(_("in order"))
    return ", ".join(said) or "-"


# The channels that have messages, a page at a time, and the limits that hold now. It only reads.
#
# A page costs the same however many channels there are: those of one task in one queue come one after another as an
# index has them, first those in turn, and what is in each is counted up to a bound.


#: Channels on a page, or limits of channels, and up to how many waiting messages are counted in each channel.
PAGE, MOST_COUNTED = 25, 1_000

#: At most so many groups, and so many limits that were set live, are looked at.
MOST_LISTED = 1_000


class ListedChannel(NamedTuple):
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


class ChannelPage(NamedTuple):
    """`following`: the text with which the next page is asked for; "": there is none."""

    channels: list[ListedChannel]
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


class ScopesNow(NamedTuple):
    """Limits that channels share. `is_cut`: there are more groups or limits than MOST_LISTED, so not all is counted."""

    limits: list[ScopeNow]
    is_cut: bool


class LimitPage(NamedTuple):
    """Limits that were set live for single channels. `following`: as of a ChannelPage."""

    limits: list[ScopeNow]
    following: str


def _has_room(limit: Limit, running: int, released_at: datetime | None) -> bool:
    is_full = limit.concurrency is not None and running >= limit.concurrency
    return not is_full and released_at is None


def page_of_channels(
    store: Store, now: datetime, *, queue: str = "", kind: str = "", name: str | None = None, after: str = ""
) -> ChannelPage:
    """PAGE channels of this queue and task ("": of all), or those with this name."""
    wanted = Q(**{field: value for field, value in (("queue", queue), ("kind", kind)) if value})
    groups = list(ChannelGroup.objects.using(store.alias).filter(wanted).order_by("queue", "kind")[:MOST_LISTED])
    if name is not None:
        ids = [channel_id(group.queue, group.kind, name) for group in groups]
        return ChannelPage(
            listed(store, now, groups, list(Channel.objects.using(store.alias).filter(id__in=ids)[:PAGE])), ""
        )
    found = list(islice(_in_order(store, groups, after), PAGE + 1))
    shown = found[:PAGE]
    return ChannelPage(listed(store, now, groups, shown), _cursor(shown[-1]) if len(found) > PAGE else "")


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


def listed(
    store: Store, now: datetime, groups: Sequence[ChannelGroup], channels: Sequence[Channel]
) -> list[ListedChannel]:
    """What is in these channels of these groups."""
    waiting = waiting_in(store, [one.pk for one in channels], now, MOST_COUNTED)
    rooms = rooms_of(store, now, groups, channels)
    return [room._replace(waiting=waiting[one.pk]) for one, room in zip(channels, rooms, strict=True)]


def rooms_of(
    store: Store, now: datetime, groups: Sequence[ChannelGroup], channels: Sequence[Channel]
) -> list[ListedChannel]:
    """The same but for how many wait."""
    by_id = {group.pk: group for group in groups}
    running, _ = Places(Channels.of(store), now).running([one.pk for one in channels])
    live = _live_of(store, [one.name for one in channels if one.name])
    heads = {
        head.channel_id: head for head in Places(Channels.of(store), now).heads([one.pk for one in channels]).reverse()
    }
    found = []
    for one in channels:
        group = by_id[one.group_id]
        own = set_for(live, group.queue, group.kind, one.name)
        limit = (rules_here(group.queue, group.kind).channel or UNLIMITED).overridden(own)
        number, released_at = running[one.pk].number, _released_at(limit, one, now)
        room = ListedChannel(group.queue, group.kind, one.name, 0, number, limit, released_at)
        found.append(room._replace(**_blocked(heads.get(one.pk) if limit.is_strict else None, now)))
    return found


def _blocked(head: ChannelMessage | None, now: datetime) -> dict[str, Any]:
    if head is None or head.due_at <= now:
        return {}
    return {"blocked_by": head.message_id, "blocked_until": head.due_at}


def _live_of(store: Store, names: Sequence[str]) -> dict[tuple[str, str], dict[str, Any]]:
    rows = LimitState.objects.using(store.alias).filter(channel__in=names, definition__isnull=False)
    return {(one.scope, one.channel): json.loads(one.definition or "{}") for one in rows[:MOST_LISTED]}


def _released_at(limit: Limit, state: HasTokens | None, now: datetime) -> datetime | None:
    return room_of(Limit(rate=limit.rate), 0, bucket_of(state), 1, now).released_at


# Limits
def known_channels(store: Store, scope: str, name: str) -> set[str]:
    """The name itself if it is a channel of the scope: one that has messages, or for which something was set live.

    Else the names of others of the scope, at most MOST_LISTED.
    """
    groups = [one for one in ChannelGroup.objects.using(store.alias) if scope in {one.queue, one.kind}]
    channels, live = Channel.objects.using(store.alias), LimitState.objects.using(store.alias).filter(scope=scope)
    ids = [channel_id(group.queue, group.kind, name) for group in groups]
    if channels.filter(id__in=ids).exists() or live.filter(channel=name).exists():
        return {name}
    others = channels.filter(group_id__in=[group.pk for group in groups]).values_list("name", flat=True)
    return {*others[:MOST_LISTED], *live.values_list("channel", flat=True)[:MOST_LISTED]} - {""}


def scopes_now(store: Store, now: datetime) -> ScopesNow:
    """The limits of queues, tasks and several tasks, by name."""
    set_live = LimitState.objects.using(store.alias).filter(channel="")[: MOST_LISTED + 1]
    states = {one.scope: one for one in set_live}
    groups = list(ChannelGroup.objects.using(store.alias)[: MOST_LISTED + 1])
    is_cut = max(len(states), len(groups)) > MOST_LISTED
    known, buckets = _defined(groups), buckets_now(store)
    running = Places(Channels.of(store), now).running_by_group([one.pk for one in groups])
    of_scopes = [
        _scope_now(scope, known.get(scope, UNLIMITED), states.get(scope), buckets, now)._replace(
            running=sum(running[one.pk] for one in groups if scope in dict(rules_here(one.queue, one.kind).scopes))
        )
        for scope in sorted({*known, *states} - {""})
    ]
    return ScopesNow([one for one in of_scopes if one.limit != UNLIMITED or one.is_live], is_cut)


def page_of_limits(
    store: Store, now: datetime, *, name: str | None = None, after: str = "", most: int | None = None
) -> LimitPage:
    """PAGE or `most` of the limits that were set live for one channel, by scope and channel, or of those for this one.

    After the text of another page; one that is none begins at the first.
    """
    size = PAGE if most is None else most
    rows = LimitState.objects.using(store.alias).filter(definition__isnull=False).exclude(channel="")
    if name is not None:
        rows = rows.filter(channel=name)
    if (last := _limit_position(after)) is not None:
        scope, channel = last
        rows = rows.filter(Q(scope__gt=scope) | Q(channel__gt=channel), scope__gte=scope)
    found = list(rows.order_by("scope", "channel")[: size + 1])
    following = json.dumps([found[size - 1].scope, found[size - 1].channel]) if len(found) > size else ""
    return LimitPage([_scope_now(one.scope, UNLIMITED, one, {}, now) for one in found[:size]], following)


def _limit_position(after: str) -> tuple[str, str] | None:
    """The scope and the channel in a text with which a page of limits is asked for; None: it is none."""
    try:
        scope, channel = json.loads(after)
    except (ValueError, TypeError, RecursionError):
        return None
    is_position = isinstance(scope, str) and isinstance(channel, str) and is_storable(scope + channel)
    return (scope, channel) if is_position else None


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


# Which limits hold back messages that wait or fall due: they start no faster than a rate lets them.
#
# What is said is a bound: whatever the workers do, the last message starts no earlier. How long messages run is not
# known ahead, so the concurrency of a limit tells nothing of times to come.


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
    waiting = _WaitingCounts(store, grid, now)
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


# By their places, which know of no other lease than their own.
WAITING_IN_CHANNELS = """
SELECT group_id, channel_id, CASE WHEN due_at < {start} THEN -1 ELSE {place_due_in} END AS bucket, count(*)
FROM {places}
WHERE lease_token = 0 AND due_at < {end}
GROUP BY group_id, channel_id, bucket
"""


class WaitingInChannel(NamedTuple):
    """How many messages of a channel fall due in a bucket, by the ids of the channel and its group."""

    group: int
    channel: int
    bucket: int
    number: int


def waiting_in_channels(store: Store, grid: Grid, ids: Sample) -> list[WaitingInChannel]:
    """How many messages with these ids wait in each channel and fall due, by bucket; -1 has what is overdue."""
    sliced = store.database.dialect.sliced
    places = sliced.format(table="delayedq_channelmessage", column="message_id", type="bigint")
    statement = WAITING_IN_CHANNELS.replace("{places}", places)
    return [WaitingInChannel(*row) for row in operator_store(store.alias).figures.rows(statement, grid, ids.slices)]


class _WaitingCounts:
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
        read = partial(waiting_in_channels, store, self.grid)
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


def _of_scopes(store: Store, waiting: _WaitingCounts) -> tuple[list[HeldBack], set[str]]:
    """What the limits that channels share hold back, and the names of those that have no room now."""
    states = buckets_now(store)
    due: dict[str, Counter[int]] = {}
    for id_, group in waiting.groups.items():
        for scope, _limits in rules_here(group.queue, group.kind).scopes:
            due.setdefault(scope, Counter()).update(waiting.of_group(id_))
    limits = [one for one in scopes_now(store, waiting.now).limits if one.scope in due]
    held_back = [
        waiting.held_back(one.scope, "", one.limit, states.get(bucket_name(one.scope)), due[one.scope])
        for one in limits
    ]
    return [one for one in held_back if one is not None], {one.scope for one in limits if not one.has_room}


type _Own = tuple[Channel, ListedChannel, Counter[int]]


def _largest(store: Store, waiting: _WaitingCounts) -> list[_Own]:
    """The channels in which most messages wait, with what is known of them and when these are due."""
    due = {id_: counted for id_ in waiting.groups for id_, counted in waiting.by_channel[id_].items()}
    largest = sorted(due, key=lambda id_: (-due[id_].total(), id_))[:MOST_CHANNELS]
    rows = list(Channel.objects.using(store.alias).filter(id__in=largest, group_id__in=waiting.groups))
    known = listed(store, waiting.now, list(waiting.groups.values()), rows)
    return [(row, one, due[row.pk]) for row, one in zip(rows, known, strict=True)]


def _of_channels(channels: list[_Own], waiting: _WaitingCounts) -> Iterator[HeldBack]:
    """What their own limits hold back."""
    for row, one, due in channels:
        held = waiting.held_back(one.kind, one.name, one.limit, row, due)
        if held is not None:
            yield held


def _overdue(channels: list[_Own], waiting: _WaitingCounts, full: set[str]) -> int:
    """How many are due in groups whose shared limits have no room, or else in channels whose own limit has none."""
    held = {
        id_
        for id_, group in waiting.groups.items()
        if full & {scope for scope, _ in rules_here(group.queue, group.kind).scopes}
    }
    whole = sum(waiting.of_group(id_)[OVERDUE] for id_ in held)
    return whole + sum(due[OVERDUE] for row, one, due in channels if row.group_id not in held and not one.has_room)
