"""What a store does with messages that have a channel: `Channels.of(store)`. Messages without one never come here."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections

from delayedq.limits.offers import address, told_of, with_channels
from delayedq.limits.places import Places
from delayedq.limits.rates import TokenBucket
from delayedq.limits.requests import (
    ChannelClaim,
    ChannelRequest,
    ClaimContext,
    Events,
    Lease,
    Notice,
    ScopeState,
    ServedGroup,
    nobody,
)
from delayedq.limits.room import LEAST_SECONDS, cost
from delayedq.limits.rules import bucket_name
from delayedq.sql.priority import BOUNDARY
from delayedq.store.base import with_follow_ups
from delayedq.store.claim_tokens import new_token
from delayedq.store.database import retry_on_deadlock
from delayedq.store.feature import concerned
from delayedq.store.protocol import Finish

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from delayedq.limits.offers import ChannelAddress
    from delayedq.limits.requests import ChannelQuery, ChannelView, Dealt, Rules, Start
    from delayedq.limits.rules import Limit
    from delayedq.models import Channel, ChannelNotice
    from delayedq.store.base import Store
    from delayedq.store.protocol import Claimed, Settled, Transition

# Taking notices: the channels in which something happened are in turn, or rest until that is due.
#
# This is how SQLite, MariaDB and MySQL do it. PostgreSQL does the same in one statement
# (`postgresql.HEAR`).


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


def hear(channels: Channels, now: datetime, told: Events) -> bool:
    """Read what was told since the last claim, and forget it; those whose time has come are in turn.

    Returns whether there may be more to read.
    """
    from delayedq.models import Channel, ChannelNotice

    alias = channels.database.alias
    notices = list(ChannelNotice.objects.using(alias).order_by("id")[:MOST_NOTICES])
    if notices:
        channels.forget_notices([one.pk for one in notices])
    channels.drop_places(told.ended)
    heard: list[ChannelNotice | Notice] = [*notices, *told.notices]
    if heard:
        _put_in_turn(channels, _by_channel(heard), _groups(alias, heard), now)
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


def _put_in_turn(channels: Channels, heard: dict[int, _Heard], turns: dict[int, float], now: datetime) -> None:
    from delayedq.models import Channel

    known = Channel.objects.using(channels.database.alias).in_bulk(list(heard))
    store_channels(
        channels, [_after(known.get(id_), id_, said, turns[said.group_id], now) for id_, said in heard.items()]
    )


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


def store_channels(channels: Channels, rows: Collection[Channel]) -> None:
    """Insert or update them."""
    from delayedq.models import Channel

    Channel.objects.using(channels.database.alias).bulk_create(
        rows, update_conflicts=True, update_fields=_FIELDS, unique_fields=channels.unique("id"), batch_size=500
    )


# The statements about channels that all databases share.


#: Is there something to do; and when is the first of those that rest looked at again?
COMING = """
SELECT EXISTS (SELECT 1 FROM delayedq_channelnotice), EXISTS (SELECT 1 FROM delayedq_channel WHERE is_ready = TRUE),
    (SELECT min(ready_at) FROM delayedq_channel WHERE is_ready = FALSE)
"""

# The first one has a type for each column. {ready}: more groups in which channels are in turn.
SURROUNDINGS = """
SELECT 'scope', id, scope, definition, tokens, tokens_at FROM delayedq_limitstate WHERE channel = ''
UNION ALL SELECT 'bucket', NULL, channel, NULL, tokens, tokens_at FROM delayedq_limitstate
    WHERE scope = '' AND tokens IS NOT NULL
UNION ALL SELECT 'queue', NULL, queue, NULL, NULL, NULL FROM delayedq_pausedqueue
UNION ALL SELECT 'kind', NULL, kind, NULL, NULL, NULL FROM delayedq_pausedtask
UNION ALL SELECT 'share', NULL, scope, channel, NULL, NULL FROM delayedq_limitstate WHERE share > 0
UNION ALL SELECT
    CASE WHEN one.id IN (
        {ready} SELECT group_id FROM delayedq_channel WHERE group_id = one.id AND is_ready = TRUE
    ) THEN 'ready' ELSE 'group' END,
    id, queue, kind, turn, NULL
FROM delayedq_channelgroup AS one
"""


# Verbs


NOTHING = Events(())

#: Seconds for which `claim_at_last` asks again.
PATIENCE = 1.0


class Coming(NamedTuple):
    """Is there something to do in channels now; and when is the first of those that rest looked at again?"""

    is_now: bool
    rests_until: datetime | None


class Channels(ABC):
    """The channels of one store, at the moment at which it judges. Every verb may raise django.db.Error."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.database = store.database

    @staticmethod
    def of(store: Store) -> Channels:
        """As its database does it."""
        return _class_of(store.alias)(store)

    def at(self, moment: datetime | None) -> Channels:
        """The same of the store at this moment."""
        return type(self)(self.store.at(moment))

    def now(self) -> datetime:
        """The moment at which they judge what is due and leased."""
        return self.database.now()

    @retry_on_deadlock
    def claim(
        self,
        rules: Callable[[str, str], Rules | None],
        limit: int,
        lease: timedelta,
        worker: str,
        token: int | None = None,
        *,
        expired: bool = True,
        tell_unknown: Callable[[str, str], object] = nobody,
    ) -> ChannelClaim:
        """Lease up to `limit` messages that are due in channels, as far as their limits have room, in fair turn.

        `rules` tells the limits of a queue and a kind; None: its messages are not claimed. Without anything to do it
        only reads. expired, tell_unknown: see `ChannelRequest`.
        """
        coming = self.coming()
        if not coming.is_now:
            until = coming.rests_until
            due_in = None if until is None else max(0.0, (until - self.now()).total_seconds())
            if due_in is None or due_in > 0:
                return ChannelClaim([], due_in)
        request = ChannelRequest(rules, limit, lease, worker, token or new_token(), expired, tell_unknown)
        with self.database.atomic(savepoint=False):
            return self._claim(request, self.lock(), NOTHING)

    def claim_at_last(
        self, rules: Callable[[str, str], Rules | None], limit: int, lease: timedelta, worker: str
    ) -> ChannelClaim:
        """`claim`, for who takes an answer without messages for the end: then nothing can start now.

        It asks again where all that was chosen had been cancelled, and while another claim takes place: for at most
        PATIENCE seconds, if that never ends.
        """
        from delayedq.limits.claims import TAKEN

        give_up_at = time.monotonic() + PATIENCE
        while True:
            claim = self.claim(rules, limit, lease, worker)
            if claim.claimed or claim.due_in not in {0.0, TAKEN} or limit <= 0 or time.monotonic() >= give_up_at:
                return claim
            time.sleep(claim.due_in or 0.0)

    def settle_and_claim(
        self, transitions: Sequence[Transition], worker: str, request: ChannelRequest
    ) -> tuple[Settled, ChannelClaim]:
        """`Store.settle`, then `claim`. With messages that have a channel it is one transaction, which hears at once
        what the settlement tells. Without, two: the first stands when the second is undone, and is not tried again.
        """
        if limited := with_channels(transitions):
            if len(limited) == len(transitions) and (continued := self._continue(transitions, request)):
                return continued
            if request.chains:
                request.chains.end(limited)
            return self._settle_and_claim(transitions, limited, request)
        settled = self.store.settle(transitions, worker)
        return settled, self.claim(*request[:5], expired=request.expired, tell_unknown=request.tell_unknown)

    def _continue(
        self, transitions: Sequence[Transition], request: ChannelRequest
    ) -> tuple[Settled, ChannelClaim] | None:
        """End these, all of which have a channel, and claim the next message of each in its place; None: they can't."""
        chains, finishes = request.chains, [one for one in transitions if isinstance(one, Finish)]
        if not request.may_continue or chains is None or len(finishes) < len(transitions):
            return None
        if with_follow_ups(finishes) or len(concerned(finishes)) > 1 or not chains.may_continue(finishes, request):
            return None
        if continued := self._settle_and_continue(finishes, request):
            settled, claim = continued
            untouched = settled.untouched
            chains.continue_with([one for one in finishes if one.claimed.id not in untouched], claim.claimed)
        return continued

    def _settle_and_continue(
        self,
        finishes: Sequence[Finish],  # noqa: ARG002
        request: ChannelRequest,  # noqa: ARG002
    ) -> tuple[Settled, ChannelClaim] | None:
        """In one statement; None: nothing was done. Only PostgreSQL does it."""
        return None

    @retry_on_deadlock
    def _settle_and_claim(
        self, transitions: Sequence[Transition], limited: Sequence[Transition], request: ChannelRequest
    ) -> tuple[Settled, ChannelClaim]:
        with self.database.atomic():
            settled, moment, told = self._settle_and_lock(transitions, limited, request)
            return settled, self._claim(request, moment, told)

    def _settle_and_lock(
        self, transitions: Sequence[Transition], limited: Sequence[Transition], request: ChannelRequest
    ) -> tuple[Settled, datetime | None, Events]:
        """Settle, then `lock`; and what is to be said of those with a channel (`limited`)."""
        settled = self.store.carry_out(transitions, request.worker)
        return settled, self.lock(), told_of(limited, settled)

    def _claim(self, request: ChannelRequest, moment: datetime | None, told: Events) -> ChannelClaim:
        """moment: when it had the lock; None: another claim has it. told: what this transaction has settled before."""
        from delayedq.limits.claims import TAKEN, ChannelTurn

        if moment is None or request.limit <= 0:
            self.tell(told)
            return ChannelClaim([], TAKEN)
        if request.chains:
            told = told._replace(uncharged=request.chains.take_uncharged())
        return ChannelTurn(self.at(moment), request).take(told)

    @abstractmethod
    def lock(self) -> datetime | None:
        """Until the end of the transaction no other claim from channels takes place; None: one does now.

        Returns what it is now.
        """

    # What a claim reads and writes, once it has the lock

    def coming(self) -> Coming:
        """When there is something to do in some channel. It locks nothing."""
        ((notices, ready, until),) = self.database.rows(COMING)
        return Coming(bool(notices or ready), self._moment(until))

    def hear(self, now: datetime, told: Events) -> ClaimContext:
        """Take the notices: their channels are in turn, or rest until that is due. So are those whose time has come.

        `told`: what is to be heard besides. Returns the groups, what is paused, and the limits that channels share.
        """
        is_cut = hear(self, now, told)
        return self._surroundings(self.database.rows(SURROUNDINGS.format(ready="")))._replace(is_cut=is_cut)

    def _surroundings(self, rows: Iterable[tuple[Any, ...]]) -> ClaimContext:
        around = ClaimContext(set(), set(), [], {}, [], {}, set())
        for what, id_, name, text, number, moment in rows:
            match what:
                case "scope":
                    around.scopes[name] = ScopeState(text)
                case "bucket":
                    around.buckets[name] = TokenBucket(number, self.database.dialect.instant(moment))
                case "queue":
                    around.queues_paused.add(name)
                case "kind":
                    around.kinds_paused.add(name)
                case "share":
                    around.shares.append((name, text))
                case "named":
                    around.named.add(id_)
                case "cut":
                    around = around._replace(is_cut=True)
                case _:
                    around.groups.append(ServedGroup(id_, name, text, number, what == "ready"))
        return around

    def _moment(self, stored: object) -> datetime | None:
        return None if stored is None else self.database.dialect.instant(stored)

    def look(self, asked: ChannelQuery, now: datetime) -> list[ChannelView]:
        """The channels of a group that are in turn, in their order; and what is in each.

        Of the messages that are due, so many are named as the room divided by the channels gives.
        """
        return Places(self, now, expired=asked.expired).look(asked)

    def heads(self, most: Mapping[int, int], now: datetime) -> dict[int, list[int]]:
        """The ids of the first messages that are due in each of these channels, up to so many."""
        found: dict[int, list[int]] = {id_: [] for id_ in most}
        for channel, message in self.first_due(most, now):
            found[channel].append(message)
        return found

    @abstractmethod
    def first_due(self, most: Mapping[int, int], now: datetime) -> Iterable[tuple[int, int]]:
        """The ids of channels and messages: up to so many of each channel that are due, in their order."""

    def deal(self, asked: ChannelQuery, limit: Limit, request: ChannelRequest) -> Dealt | None:  # noqa: ARG002
        """All that a claim does in a group whose channels have this limit, if that is plain (`claims.is_plain`).

        None: this database leaves it to `look`, `heads` and `start`.
        """
        return None

    def start(self, start: Start, request: ChannelRequest) -> list[Claimed]:
        """Lease those of these messages that wait in limited lanes, are due, and are not locked; keep the channels."""
        claimed = self.claim_ids(start.ids, request) if start.ids else []
        self.take_places([one.id for one in claimed], request.token)
        self.keep(start)
        return claimed

    @abstractmethod
    def claim_ids(self, ids: Sequence[int], request: ChannelRequest) -> list[Claimed]:
        """Lease those of these messages that wait in limited lanes, are due, and are not locked."""

    def keep(self, start: Start) -> None:
        """Store the channels as they are left."""
        from delayedq.models import Channel, ChannelGroup

        alias, group = self.database.alias, start.group
        store_channels(self, [Channel(group_id=group.id, **one._asdict()) for one in start.channels])
        Channel.objects.using(alias).filter(id__in=start.gone).delete()
        ChannelGroup.objects.using(alias).filter(pk=group.id).update(turn=group.turn)

    def keep_tokens(self, scope: str, bucket: TokenBucket) -> None:
        """Store the token bucket of a limit that channels share."""
        from delayedq.models import LimitState

        LimitState.objects.using(self.database.alias).bulk_create(
            [LimitState(scope="", channel=bucket_name(scope), tokens=bucket.tokens, tokens_at=bucket.at)],
            update_conflicts=True,
            update_fields=["tokens", "tokens_at"],
            unique_fields=self.unique("scope", "channel"),
        )

    def held_among(self, ids: Sequence[int], now: datetime) -> dict[int, Lease]:
        """The leases of those of these messages whose leases hold."""
        from delayedq.models import Message, is_held

        held = Message.objects.using(self.database.alias).filter(is_held(now), id__in=ids)
        return {id_: Lease(token, until) for id_, token, until in held.values_list("id", "lease_token", "leased_until")}

    def leased_among(self, ids: Sequence[int]) -> dict[int, Lease]:
        """The leases of these messages, also those that ran out: until they are taken away, they can be renewed."""
        from delayedq.models import Message

        leased = Message.objects.using(self.database.alias).filter(lease_token__isnull=False, id__in=ids)
        return {
            id_: Lease(token, until) for id_, token, until in leased.values_list("id", "lease_token", "leased_until")
        }

    # What offers and settlements write. They only insert, and delete what is theirs.

    def line_up(self, lined: Mapping[int, ChannelAddress]) -> None:
        """Give these messages (ids) their places, or new places, and tell their channels; not those without a channel.

        Their due times and priorities are those of their rows.
        """
        from delayedq.models import ChannelMessage, Message

        alias = self.database.alias
        rows = Message.objects.using(alias).filter(id__in=lined, priority__lt=BOUNDARY)
        due = {id_: (-priority, at) for id_, priority, at in rows.values_list("id", "priority", "scheduled_at")}
        places: list[ChannelMessage] = []
        first: dict[ChannelAddress, datetime] = {}
        for id_, (urgency, at) in due.items():
            where = lined[id_]
            places.append(ChannelMessage(id_, where.id, where.group_id, urgency, at))
            first[where] = min(at, first.get(where, at))
        ChannelMessage.objects.using(alias).bulk_create(
            places,
            update_conflicts=True,
            update_fields=["channel_id", "group_id", "urgency", "due_at"],
            unique_fields=self.unique("message_id"),
            batch_size=1_000,
        )
        self.tell(Events([where.notice(at) for where, at in first.items()]))

    def tell(self, told: Events) -> None:
        """Have the next claim hear it."""
        from delayedq.models import ChannelNotice

        if told.ended:
            self.drop_places(told.ended)
        ChannelNotice.objects.using(self.database.alias).bulk_create(
            [ChannelNotice(**one._asdict()) for one in told.notices], batch_size=1_000
        )

    def tell_freed(self, ids: Collection[int]) -> set[int]:
        """The channels of those of these messages that have a place are to be looked at. Returns the ids of these."""
        from delayedq.models import Channel, ChannelGroup, ChannelMessage

        alias = self.database.alias
        places = ChannelMessage.objects.using(alias).filter(message_id__in=ids)
        known = dict(places.values_list("message_id", "channel_id"))
        if homes := set(known.values()):
            groups = {one.pk: one for one in ChannelGroup.objects.using(alias)}
            channels = Channel.objects.using(alias).filter(id__in=homes, group_id__in=groups)
            named = [(one, groups[one.group_id]) for one in channels]
            now = self.now()
            self.tell(Events([Notice(one.pk, of.pk, of.queue, of.kind, one.name, now) for one, of in named]))
        return set(known)

    def unique(self, *names: str) -> list[str] | None:
        """What `bulk_create` has to know of a conflict."""
        return self.database.conflict(*names)

    # By id, and in no other way: what another transaction has locked is not waited for.

    def forget_notices(self, ids: Collection[int]) -> None:
        from delayedq.models import ChannelNotice

        ChannelNotice.objects.using(self.database.alias).filter(id__in=ids).delete()

    def take_places(self, ids: Collection[int], token: int) -> None:
        """A claim with this token has taken these messages."""
        from delayedq.models import ChannelMessage

        ChannelMessage.objects.using(self.database.alias).filter(message_id__in=ids).update(lease_token=token)

    def drop_places(self, ids: Collection[int]) -> None:
        """These messages have no place any more."""
        from delayedq.models import ChannelMessage

        ChannelMessage.objects.using(self.database.alias).filter(message_id__in=ids).delete()


@cache
def _class_of(alias: str) -> type[Channels]:
    match connections[alias].vendor:
        case "postgresql":
            from delayedq.limits.postgresql import PostgreSQLChannels

            return PostgreSQLChannels
        case "sqlite":
            from delayedq.limits.sqlite import SQLiteChannels

            return SQLiteChannels
        case _:
            from delayedq.limits.mysql import MySQLChannels

            return MySQLChannels


# For who changes a limit, or ends a message by its key.


def tell_channel(store: Store, queue: str, kind: str, name: str) -> None:
    """Have the next claim look at this channel."""
    Channels.of(store).tell(Events([address(queue, kind, name).notice(store.now() - timedelta(seconds=1))]))


def unschedule_and_tell(store: Store, kind: str, key: str) -> bool:
    """`store.unschedule`, where the message may block its channel."""
    from delayedq.models import Message

    with store.database.atomic():
        ids = list(Message.objects.using(store.alias).filter(kind=kind, key=key).values_list("id", flat=True))
        ended = store.unschedule(kind, key)
        Channels.of(store).tell_freed(ids)
        store.notify_after_commit()
    return ended
