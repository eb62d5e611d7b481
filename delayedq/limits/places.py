"""The places of messages in their channels: what waits, what runs, and what is not as it was any more."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from django.db.models import Exists, Min, OuterRef, Subquery

from delayedq.limits.offers import line_up_again
from delayedq.limits.places_held import AT_ONCE, HeldAttempt, give_up, held_key, message_of, unlocked
from delayedq.limits.requests import ChannelState, ChannelView, Running
from delayedq.limits.room import MOST_VISITED, at_once
from delayedq.limits.rules import HEAD
from delayedq.sql.priority import BOUNDARY

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.limits.channels import Channels
    from delayedq.limits.requests import ChannelQuery, Lease, ServedGroup
    from delayedq.models import ChannelMessage
    from delayedq.store.base import Store

#: Where a message was cancelled, so many others of its channel are looked at.
SWEPT = 1_000


class TakenPlace(NamedTuple):
    """A place that a claim has taken; `held_until`: it is held for its attempt, whatever became of its message.

    Or, in the place of a message: its attempt has a held place where it started, as the message was replaced into
    this channel while it ran.
    """

    id: int
    channel: int
    group: int
    token: int
    held_until: datetime | None

    @property
    def message(self) -> int:
        return message_of(self.id, self.token)

    @property
    def runs_elsewhere(self) -> bool:
        return self.id > 0 and self.held_until is not None

    @property
    def attempt(self) -> HeldAttempt:
        return self.message, self.token


class Attempts(NamedTuple):
    running: set[HeldAttempt]
    #: Their leases ran out, and can be renewed until they are taken away.
    ended: set[HeldAttempt]


class Places:
    """At one moment. A message runs if it carries the token of its place, and its lease holds; or its place is held.

    expired: leases that ran out may be taken away; else they hold, as their keepers may renew them yet.
    """

    def __init__(self, channels: Channels, now: datetime, *, expired: bool = True) -> None:
        self._channels = channels
        self._alias = channels.database.alias
        self._now = now
        self._expired = expired

    @property
    def _all(self) -> QuerySet[ChannelMessage]:
        from delayedq.models import ChannelMessage

        return ChannelMessage.objects.using(self._alias)

    def running_by_group(self, groups: Collection[int]) -> Counter[int]:
        """How many messages run in each of these groups."""
        return Counter(one.group for one in self._in_groups(groups)[0])

    def attempts_by_group(self, groups: Collection[int]) -> dict[int, Attempts]:
        """What runs in each of these groups, and what ran out there and can be renewed until its lease is taken.

        Held places that ran out are given up.
        """
        running, ended = self._in_groups(groups)
        leases = self._channels.leased_among([one.message for one in ended]) if ended else {}
        leased = {one.attempt for one in ended if (lease := leases.get(one.message)) and lease.token == one.token}
        held = [one for one in [*ended, *self._held_since(ended, leased)] if one.id < 0]
        stay = self._give_up([one for one in held if not self._is_held(one)])
        attempts = {id_: Attempts(set(), set()) for id_ in groups}
        for one in ended:
            if one.attempt in leased:
                attempts[one.group].ended.add(one.attempt)
        for one in [*running, *(one for one in held if self._is_held(one) or one.id in stay)]:
            attempts[one.group].running.add(one.attempt)
        return attempts

    def _held_since(self, ended: Collection[TakenPlace], leased: Collection[HeldAttempt]) -> list[TakenPlace]:
        """What was renewed and then taken from its attempt since it was read as `ended`: its place is held now."""
        lost = {held_key(*one.attempt) for one in ended if one.id > 0 and one.attempt not in leased}
        return self._taken(self._all.filter(message_id__in=lost)) if lost else []

    def _in_groups(self, groups: Collection[int]) -> tuple[list[TakenPlace], list[TakenPlace]]:
        """What runs in them, and what has a place as if it ran; what runs elsewhere is neither."""
        taken, held = self._judged(self._all.filter(group_id__in=groups))
        running = [one for one in taken if one.id in held and not one.runs_elsewhere]
        return running, [one for one in taken if one.id not in held]

    def running(self, channels: Collection[int]) -> tuple[dict[int, Running], dict[int, list[int]]]:
        """What runs in each of these channels, and the ids of what has a place as if it ran."""
        taken, held = self._judged(self._all.filter(channel_id__in=channels))
        running = dict.fromkeys(channels, Running())
        ended: dict[int, list[int]] = {id_: [] for id_ in channels}
        for one in taken:
            if one.id in held:
                number = 0 if one.runs_elsewhere else 1
                running[one.channel] = running[one.channel].and_until(held[one.id], number)
            else:
                ended[one.channel].append(one.id)
        return running, ended

    def _taken(self, places: QuerySet[ChannelMessage]) -> list[TakenPlace]:
        rows = places.filter(lease_token__gt=0)
        named = rows.values_list("message_id", "channel_id", "group_id", "lease_token", "held_until")
        return [TakenPlace(*row) for row in named]

    def _judged(self, places: QuerySet[ChannelMessage]) -> tuple[list[TakenPlace], dict[int, datetime]]:
        """Of these, those that claims have taken; and of what runs, `_held`.

        What was taken from its attempt after the places were read was given a held place then, which stands for it.
        """
        taken = self._taken(places)
        held = self._held(taken)
        known = {one.id for one in taken}
        lost = [one for one in taken if one.id > 0 and one.id not in held and not one.runs_elsewhere]
        keys = {held_key(*one.attempt): one for one in lost}
        if new := self._taken(places.filter(message_id__in=keys.keys() - known)) if keys.keys() - known else []:
            replaced = {keys[one.id] for one in new}
            taken, held = [*(one for one in taken if one not in replaced), *new], held | self._held(new)
        return taken, held

    def _held(self, taken: Collection[TakenPlace]) -> dict[int, datetime]:
        """The ids of the places of those that run, and until when their leases hold, or at least now."""
        leases = self._leases([one.message for one in taken]) if taken else {}
        held = {}
        for one in taken:
            lease = leases.get(one.message)
            if lease is not None and lease.token == one.token:
                held[one.id] = max(lease.until or self._now, self._now)
            elif one.held_until is not None and self._is_held(one):
                held[one.id] = max(one.held_until, self._now)
        return held

    def _is_held(self, one: TakenPlace) -> bool:
        """Whether it is held for an attempt, until later or until it may be given up."""
        return one.id < 0 and one.held_until is not None and (one.held_until > self._now or not self._expired)

    def _leases(self, ids: Sequence[int]) -> dict[int, Lease]:
        return self._channels.held_among(ids, self._now) if self._expired else self._channels.leased_among(ids)

    def give_away(self, ended: Collection[int], *, is_strict: bool = False) -> None:
        """`put_right` places of what ran. Leases that ran out are taken away, so that nobody can renew them.

        Where that can't be done, as another transaction has locked the message or it was renewed in this moment, the
        place stays as it is.
        """
        taken = self._taken(self._all.filter(message_id__in=ended))
        self.take_leases({one.attempt for one in taken})
        self._give_up([one for one in taken if one.id < 0])
        self.put_right([id_ for id_ in ended if id_ > 0], is_strict=is_strict)

    def _give_up(self, held: Sequence[TakenPlace]) -> set[int]:
        """Free these held places, which ran out; not those of attempts whose messages carry their tokens.

        Returns the ids of those that stay.
        """
        if not held:
            return set()
        leases = self._channels.leased_among([one.message for one in held])
        lost = [one for one in held if one.message not in leases or leases[one.message].token != one.token]
        return give_up(self._channels, {one.attempt for one in lost}, self._now)

    def put_right(self, ids: Collection[int], *, is_strict: bool = False) -> set[int]:
        """Have these wait, as their messages say; those without a message in a limited lane have no place any more.

        What carries the token of its place stays as it is.

        is_strict: those that were claimed are first in their channels, and block them. Returns those that have no
        message any more. What an operator brings back at this moment keeps its place. A place that another transaction
        has locked stays as it is: all claims would wait for that.
        """
        if not ids:
            return set()
        with self._channels.database.atomic(savepoint=False):
            return self._put_right(ids, is_strict=is_strict)

    def _put_right(self, ids: Collection[int], *, is_strict: bool) -> set[int]:
        from delayedq.models import Message

        places = {place.message_id: place for place in unlocked(self._channels, ids)}
        # Read once the places are locked: what moves a message writes its place later.
        messages = Message.objects.using(self._alias).filter(id__in=ids, priority__lt=BOUNDARY)
        due = {id_: (at, token) for id_, at, token in messages.values_list("id", "scheduled_at", "lease_token")}
        gone = {id_ for id_ in ids if id_ not in due}
        if freed := gone & places.keys():
            self._channels.drop_places(freed)
            line_up_again(self._channels, freed)
        live = [(place, *due[id_]) for id_, place in places.items() if id_ in due]
        changed = [place for place, at, token in live if _waits_again(place, at, token, is_strict=is_strict)]
        fields = ["lease_token", "due_at", "urgency", "held_until"]
        self._all.bulk_update(changed, fields, batch_size=AT_ONCE)
        return gone

    def take_leases(self, ended: AbstractSet[HeldAttempt], most: int | None = None) -> AbstractSet[HeldAttempt]:
        """Take away the leases of up to so many of these that ran out, unless another transaction has locked them."""
        from delayedq.models import Message, has_run_out

        if not ended or not self._expired:
            return set()
        expired = Message.objects.using(self._alias).filter(has_run_out(self._now), priority__lt=BOUNDARY)
        rows = self._channels.database.unlocked(expired.filter(id__in=[id_ for id_, _ in ended])).order_by("id")
        taken = ended & {(id_, token or 0) for id_, token in rows.values_list("id", "lease_token")[:most]}
        if taken:
            ids = [id_ for id_, _ in taken]
            expired.filter(id__in=ids).update(lease_token=None, leased_until=None, leased_by=None)
        return taken

    def sweep(self, channel: int) -> None:
        """Of the first SWEPT that wait in a channel, those whose messages have ended have no place any more."""
        from delayedq.models import Message

        first = self._all.filter(channel_id=channel, lease_token=0).order_by("urgency", "due_at", "message_id")
        ids = set(first.values_list("message_id", flat=True)[:SWEPT])
        live = Message.objects.using(self._alias).filter(id__in=ids, priority__lt=BOUNDARY)
        self.put_right(ids - set(live.values_list("id", flat=True)))

    def look(self, asked: ChannelQuery) -> list[ChannelView]:
        """As SQLite, MariaDB and MySQL do it. PostgreSQL does the same in one statement."""
        channels = self._in_turn(asked)
        ids = [one.id for one in channels]
        share = share_of(asked.room, len(ids))
        running, ended = self.running(ids)
        heads, due = self._channels.heads(dict.fromkeys(ids, share), self._now), self._next_due(ids)
        definitions = self._definitions(asked.group, channels)
        blocked = self.blocked(ids) if asked.is_strict else {}
        return [
            ChannelView(
                one, running[one.id], share, heads[one.id], due.get(one.id), ended[one.id], definitions.get(one.name),
                blocked.get(one.id),
            )
            for one in channels
        ]  # fmt: skip

    def _in_turn(self, asked: ChannelQuery) -> list[ChannelState]:
        from delayedq.models import Channel

        ready = Channel.objects.using(self._alias).filter(group_id=asked.group.id, is_ready__in=[True])
        rows = ready.order_by("turn", "id").values_list(*ChannelState._fields)
        first = [ChannelState._make(row) for row in rows[: asked.most]]
        before = accumulate((at_once(one.seconds, in_pairs=asked.in_pairs) for one in first), initial=0)
        channels = [one for one, taken in zip(first, before, strict=False) if taken < asked.most]
        if others := {*asked.others} - {one.id for one in channels}:
            channels += map(ChannelState._make, rows.filter(id__in=others)[:MOST_VISITED])
        return channels

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

    def _definitions(self, group: ServedGroup, channels: Sequence[ChannelState]) -> dict[str, str]:
        """The limits that were set live, as `claims.limit_in` reads them: that of the queue, then that of the task."""
        from delayedq.models import LimitState

        names = [one.name for one in channels if one.name]
        named = LimitState.objects.using(self._alias).filter(
            scope__in=[group.queue, group.kind], channel__in=names, definition__isnull=False
        )
        rows = sorted(named.values_list("scope", "channel", "definition"), key=lambda row: row[0] == group.kind)
        found: defaultdict[str, list[str]] = defaultdict(list)
        for _, channel, definition in rows:
            found[channel].append(definition or "{}")
        return {channel: "\n".join(definitions) for channel, definitions in found.items()}


def _waits_again(place: ChannelMessage, due_at: datetime, token: int | None, *, is_strict: bool) -> bool:
    """Have it wait as its message says, unless that runs; says whether that changes anything."""
    was_taken = place.lease_token != 0
    if (was_taken and place.lease_token == token) or (not was_taken and place.due_at == due_at):
        return False
    if is_strict and was_taken:
        place.urgency = HEAD
    place.lease_token, place.due_at, place.held_until = 0, due_at, None
    return True


def share_of(room: int, channels: int) -> int:
    """How many messages of each channel to look at: its share of the room, and one more to know whether more wait."""
    return -(-max(room, 0) // max(channels, 1)) + 1


def unblock(store: Store, channels: Collection[int]) -> bool:
    """Have the messages that block these channels wait as all others do; says whether there were any."""
    from delayedq.models import ChannelMessage, Message

    alias = store.database.alias
    heads = ChannelMessage.objects.using(alias).filter(channel_id__in=channels, lease_token=0, urgency=HEAD)
    with store.database.atomic():
        messages = Message.objects.using(alias).filter(id__in=list(heads.values_list("message_id", flat=True)))
        # Who has locked a place has locked its message before: so no claim takes it, and waits for the place.
        priorities = dict(messages.select_for_update().order_by("id").values_list("id", "priority"))
        for id_, priority in priorities.items():
            heads.filter(message_id=id_).update(urgency=-priority)
    return bool(priorities)
