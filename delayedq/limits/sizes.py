"""Offers to what is limited in its size: which of them are stored, and what becomes of the others.

A message that replaces a live one of its key is no new message. What comes to another channel by that is new there.
"""

from __future__ import annotations

import json
import logging
from collections import Counter as Tally
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from django.db.models import Count, Exists, F, OuterRef, Q

from delayedq.exceptions import QueueFull
from delayedq.limits.rules import OnFull, channel_id, channel_of, group_id, scope_id
from delayedq.signals import Floods
from delayedq.sql.priority import BOUNDARY
from delayedq.store.offers import check
from delayedq.store.protocol import Offered, OfferOutcome, OnConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from django.db.models import QuerySet

    from delayedq.limits.rules import Size
    from delayedq.models import ChannelMessage, ChannelSize, Message
    from delayedq.store.database import Database
    from delayedq.store.protocol import Offer

    Store = Callable[[Sequence[Offer]], list[Offered]]

# Counters of what is limited in its size: one row for each channel or scope, locked until the transaction ends.
#
# So offers to one limit come one after another, and none of them can exceed it. A counter says how many messages there
# are *at most*: it knows what was offered since it counted last, not what ended. So an end writes nothing here, and
# waits for no producer. Before an offer finds no room, what is there is counted again.


#: A counter that was not brought up to date for so long is counted again by the next offer, for the size it returns.
FRESH = timedelta(seconds=1)

#: What no offer has locked for so long is deleted.
UNUSED = timedelta(hours=1)

#: So many of them at once.
MOST_FORGOTTEN = 10_000

NEVER = datetime(2000, 1, 1, tzinfo=UTC)


class CountedPlace(Protocol):
    """Where a message waits, as counters see it."""

    @property
    def group_id(self) -> int: ...
    @property
    def channel_id(self) -> int: ...


class WaitingPlace(NamedTuple):
    """Where a message waits."""

    queue: str
    kind: str
    channel: str

    @classmethod
    def of(cls, offer: Offer) -> Self:
        return cls(offer.queue, offer.kind, offer.channel or "")

    @property
    def group_id(self) -> int:
        return group_id(self.queue, self.kind)

    @property
    def channel_id(self) -> int:
        return channel_id(self.queue, self.kind, self.channel)


class Counter:
    """Of one channel (scope ""), or of a scope with the groups in it. `most`: its size; None: it was lifted live."""

    def __init__(self, address: WaitingPlace, scope: str, most: int | None, on_full: OnFull) -> None:
        self.address, self.scope, self.most, self.on_full = address, scope, most, on_full
        self.id = scope_id(scope) if scope else address.channel_id
        self.groups = {address.group_id} if scope else set[int]()
        self.size = 0
        self.counted_at = NEVER
        #: Whether it was counted exactly in this transaction.
        self.is_exact = False

    def __str__(self) -> str:
        if self.scope:
            return f"The limit {self.scope}"
        return f"The channel {self.address.channel!r} of {self.address.kind} in {self.address.queue}"

    def lacks_room(self, freed: int = 0) -> bool:
        """Whether no message can be added, also after `freed` of them are gone."""
        return self.most is not None and self.size - freed >= self.most

    def has(self, place: CountedPlace | None) -> bool:
        """Whether it counts what waits there."""
        if place is None:
            return False
        return place.group_id in self.groups if self.scope else place.channel_id == self.id

    def read(self, row: ChannelSize) -> None:
        self.size, self.counted_at = row.size, row.counted_at
        self.groups |= set(json.loads(row.members or "[]"))

    def places(self, database: Database) -> QuerySet[ChannelMessage]:
        """Those of all messages that it counts, and of some that have ended."""
        from delayedq.models import ChannelMessage

        places = ChannelMessage.objects.using(database.alias)
        return places.filter(group_id__in=self.groups) if self.scope else places.filter(channel_id=self.id)

    def live_places(self, database: Database) -> QuerySet[ChannelMessage]:
        """Without those that have ended."""
        from delayedq.models import Message

        live = Message.objects.filter(id=OuterRef("message_id"), priority__lt=BOUNDARY)
        return self.places(database).filter(Exists(live))

    def count(self, database: Database) -> None:
        """Exactly, unless there is room anyway."""
        if self.scope:
            self.groups |= self._known_groups(database)
        self.size, self.counted_at = self.places(database)[: self.most].count(), database.now()
        self.is_exact = self.lacks_room()
        if self.is_exact:
            self.size = self.live_places(database).count()

    def _known_groups(self, database: Database) -> set[int]:
        """Those of the queue or the task; of a shared limit, those of its tasks: one may have been moved to a queue."""
        from delayedq.models import ChannelGroup

        groups = ChannelGroup.objects.using(database.alias)
        if self.scope in {self.address.queue, self.address.kind}:
            known = groups.filter(Q(queue=self.scope) | Q(kind=self.scope))
        else:
            kinds = groups.filter(id__in=self.groups).values("kind")
            known = groups.filter(Q(kind=self.address.kind) | Q(kind__in=kinds))
        return set(known.values_list("id", flat=True))


def of(database: Database, offers: Iterable[Offer]) -> list[list[Counter]]:
    """Those of each offer's sizes, as they were set live or else as defined. Offers to one limit share its counter."""
    live = _set_live(database, offers)
    found: dict[int, Counter] = {}
    return [[_counter(found, WaitingPlace.of(offer), size, live) for size in offer.sizes] for offer in offers]


def _counter(
    found: dict[int, Counter], address: WaitingPlace, size: Size, live: Mapping[tuple[str, str], int | None]
) -> Counter:
    most = next((live[name] for name in _names(size.scope, address) if name in live), size.most)
    new = Counter(address, size.scope, most, size.on_full)
    one = found.setdefault(new.id, new)
    one.groups |= new.groups
    return one


def _names(scope: str, address: WaitingPlace) -> list[tuple[str, str]]:
    """Under which names a limit may have been set live."""
    if scope:
        return [(scope, "")]
    return [(address.kind, address.channel), (address.queue, address.channel)] if address.channel else []


def _set_live(database: Database, offers: Iterable[Offer]) -> dict[tuple[str, str], int | None]:
    from delayedq.models import LimitState

    names = {name for offer in offers for size in offer.sizes for name in _names(size.scope, WaitingPlace.of(offer))}
    rows = LimitState.objects.using(database.alias).filter(
        definition__isnull=False, scope__in={scope for scope, _ in names}, channel__in={channel for _, channel in names}
    )
    stored = {(one.scope, one.channel): json.loads(one.definition or "{}") for one in rows}
    return {name: terms["size"] for name, terms in stored.items() if "size" in terms}


def lock(database: Database, counters: Collection[Counter]) -> None:
    """Lock their rows until the end of the transaction, and read them; those that are old are counted again."""
    from delayedq.models import ChannelSize

    by_id = {one.id: one for one in counters}
    rows = _locked(database, by_id)
    if missing := sorted(by_id.keys() - {row.pk for row in rows}):
        # An update where another transaction was first: it has to be counted then. It locks, and insists on no order.
        new = [ChannelSize(id=id_, size=0, counted_at=NEVER) for id_ in missing]
        _upsert(database, new, ["counted_at"])
        rows = _locked(database, by_id)
    for row in rows:
        by_id[row.pk].read(row)
    _count_old(database, counters)


def _locked(database: Database, ids: Iterable[int]) -> list[ChannelSize]:
    from delayedq.models import ChannelSize

    rows = ChannelSize.objects.using(database.alias).filter(id__in=sorted(ids))
    if not database.connection.features.has_select_for_update:
        rows.update(size=F("size"))  # the first write takes the lock of the whole file
    return list(rows.select_for_update().order_by("id"))


def _count_old(database: Database, counters: Iterable[Counter]) -> None:
    now = database.now()
    old = [one for one in counters if one.most is not None and not now - FRESH <= one.counted_at <= now]
    channels = {one.id: one for one in old if not one.scope}
    if len(channels) > 1:
        _count_channels(database, channels)
    for one in old:
        if one.scope or len(channels) == 1:
            one.count(database)


def _count_channels(database: Database, channels: dict[int, Counter]) -> None:
    """In one statement: at most so many, as places of messages that have ended count too."""
    from delayedq.models import ChannelMessage

    places = ChannelMessage.objects.using(database.alias).filter(channel_id__in=channels).values("channel_id")
    sizes = dict(places.annotate(size=Count("message_id")).values_list("channel_id", "size"))
    for id_, one in channels.items():
        one.size, one.counted_at = sizes.get(id_, 0), database.now()


def store(database: Database, counters: Iterable[Counter]) -> None:
    """What they count now."""
    from delayedq.models import ChannelSize

    rows = [
        ChannelSize(
            id=one.id,
            size=one.size,
            counted_at=NEVER if one.most is None else one.counted_at,
            members=json.dumps(sorted(one.groups)) if one.scope else "",
        )
        for one in counters
    ]
    _upsert(database, rows, ["size", "counted_at", "members"])


def _upsert(database: Database, rows: Iterable[ChannelSize], fields: list[str]) -> None:
    from delayedq.models import ChannelSize

    unique = database.conflict("id")
    ChannelSize.objects.using(database.alias).bulk_create(
        rows, update_conflicts=True, update_fields=fields, unique_fields=unique, batch_size=500
    )


def forget_unused(database: Database) -> None:
    """Delete the counters of channels to which nothing was offered lately; the next offer counts."""
    from delayedq.models import ChannelSize

    with database.atomic():
        rows = ChannelSize.objects.using(database.alias).filter(counted_at__lt=database.now() - UNUSED, members="")
        ids = list(database.unlocked(rows).values_list("id", flat=True)[:MOST_FORGOTTEN])
        if ids:
            rows.filter(id__in=ids).delete()


# What makes room for a newer message (`on_full="drop_oldest"`): the waiting one that has been due the longest.


#: So many more waiting messages are looked at than are needed, as others may have locked some.
LOOKED_AT = 100


class Cancellable(NamedTuple):
    """A message that may be cancelled, in the order of their due times. rank: its id, or of a new one, its position."""

    due_at: datetime
    is_new: bool
    rank: int
    #: Its kind and its key.
    name: tuple[str, str]
    channel_id: int
    group_id: int

    @property
    def number(self) -> int:
        """Its id, or -1 - its position."""
        return -1 - self.rank if self.is_new else self.rank


def read(database: Database, one: Counter, most: int) -> list[Cancellable]:
    """The first `most` that this counter counts, as a heap. They are locked, so that nobody claims them."""
    from delayedq.models import Message, is_free

    waiting = one.live_places(database).filter(lease_token=0).order_by("due_at", "message_id")
    places = {place.message_id: place for place in waiting[: most + LOOKED_AT]}
    ids, found = list(places), list[Cancellable]()
    for some in (ids[:most], ids[most:]):
        if some and len(found) < most:
            free = Message.objects.using(database.alias).filter(is_free(database.now()), id__in=some).order_by("id")
            for id_, kind, key in database.unlocked(free).values_list("id", "kind", "key"):
                place = places[id_]
                found.append(Cancellable(place.due_at, False, id_, (kind, key or ""), place.channel_id, place.group_id))
    heapify(found)
    return found


def cancel(database: Database, ids: Collection[int]) -> None:
    """Cancel these messages, which are locked."""
    from delayedq.models import ChannelMessage, Message
    from delayedq.store import operator_store
    from delayedq.store.operator import Seen

    rows = Message.objects.using(database.alias).in_bulk(ids)
    seen = [Seen._make(getattr(rows[id_], name) for name in Seen._fields) for id_ in ids if id_ in rows]
    operator_store(database.alias).at(database.moment).cancel(seen)
    # Or the next offer would read them, too.
    ChannelMessage.objects.using(database.alias).filter(message_id__in=ids).delete()


# Sizes


logger = logging.getLogger("delayedq")

_floods = Floods()

_TURNS = [OnFull.DROP_OLDEST, OnFull.RAISE, OnFull.DROP]


def offer_sized(database: Database, offers: Sequence[Offer], policy: OnConflict, store: Store) -> list[Offered]:
    """Store those that find room, by `store`; the outcomes are in the order of the offers.

    Raises QueueFull if a limit without room says so, and stores nothing then. It is called in a transaction.
    """
    for offer in offers:
        check(offer)
    return _Gate(database, offers, policy, store).pass_all()


class _Gate:
    """The offers of one chunk, while all counters of their limits are locked."""

    def __init__(self, database: Database, offers: Sequence[Offer], policy: OnConflict, store: Store) -> None:
        self._database, self._offers, self._policy, self._store = database, offers, policy, store
        self._limits = of(database, offers)
        self._counters = {one.id: one for limits in self._limits for one in limits}
        lock(database, self._counters.values())
        self._scopes = [one for one in self._counters.values() if one.scope]
        self._live = _live_of(database, offers)
        self._outcomes: dict[int, Offered] = {}
        #: The positions of those that are to be stored, and the size that each of them left.
        self._passed: dict[int, int | None] = {}
        #: By counter: how many offers are still to come, what waits and may be dropped, and whether that is all.
        self._to_come = Tally(one.id for limits in self._limits for one in limits)
        self._waiting: dict[int, list[Cancellable]] = {}
        self._complete: set[int] = set()
        #: What is to be cancelled, and for which limit; and the ids of all that was dropped.
        self._dropped: dict[int, Counter] = {}
        self._dropped_names: set[tuple[str, str]] = set()
        self._gone: set[int] = set()

    def pass_all(self) -> list[Offered]:
        for position, (offer, limits) in enumerate(zip(self._offers, self._limits, strict=True)):
            self._tell_apart(offer)
            known = self._known(offer)
            entered = [one for one in limits if not one.has(known)]
            if self._makes_room(offer, entered):
                self._enter(position, offer, known, entered)
                self._passed[position] = _least_room(limits)
            else:
                self._outcomes[position] = Offered(OfferOutcome.DROPPED, None, size=_least_room(limits))
            self._to_come.subtract(one.id for one in limits)
        self._flush()
        store(self._database, self._counters.values())
        return [self._outcomes[position] for position in range(len(self._offers))]

    def _tell_apart(self, offer: Offer) -> None:
        """From a message of its key that makes room: that is another one."""
        if offer.key is not None and (offer.kind, offer.key) in self._dropped_names:
            self._flush()

    def _known(self, offer: Offer) -> WaitingPlace | None:
        """Where the message waits that this offer replaces or keeps; None: it is a new one."""
        known = None if offer.key is None else self._live.get((offer.kind, offer.key))
        return WaitingPlace.of(offer) if known is not None and self._policy is OnConflict.KEEP else known

    # Room

    def _makes_room(self, offer: Offer, entered: Sequence[Counter]) -> bool:
        """Whether these limits have room, or make it. What makes room in one of them may do so in others, too.

        So narrow limits come before wide ones, and those that drop nothing come last; nothing is dropped in vain.
        """
        dropped: dict[Cancellable, Counter] = {}
        refusing: list[Counter] = []
        for one in sorted(filter(self._is_full, entered), key=_turn):
            freed = sum(map(one.has, dropped))
            if one.on_full is OnFull.DROP_OLDEST:
                first = None if freed else self._oldest(one)
                if first is not None:
                    dropped[first] = one
                elif not freed:
                    refusing.append(one)
            elif one.lacks_room(freed):
                _raise_if_asked(one, offer)
                refusing.append(one)
        if refusing:
            _tell(refusing[0], f"an offer of {offer.kind} was dropped")
            return False
        for message, one in dropped.items():
            self._drop(message, one)
        return True

    def _is_full(self, one: Counter) -> bool:
        if one.lacks_room() and not one.is_exact:
            self._flush()
            one.count(self._database)
        return one.lacks_room()

    def _oldest(self, one: Counter) -> Cancellable | None:
        """The waiting message that has been due the longest; None: all are in flight."""
        while True:
            if one.id not in self._waiting:
                self._read(one)
            waiting = self._waiting[one.id]
            while waiting and self._id(waiting[0].number) in self._gone:
                heappop(waiting)
            if waiting or one.id in self._complete:
                return waiting[0] if waiting else None
            del self._waiting[one.id]  # all that was read has made room in other limits, too

    def _read(self, one: Counter) -> None:
        """No more than may have to make room: what is read is locked until the transaction ends."""
        self._flush()
        most = self._to_come[one.id]
        self._waiting[one.id] = found = read(self._database, one, most)
        if len(found) < most:
            self._complete.add(one.id)

    def _drop(self, message: Cancellable, one: Counter) -> None:
        number = self._id(message.number)
        self._gone.add(number)
        self._dropped[number] = one
        self._dropped_names.add(message.name)
        self._live.pop(message.name, None)  # a later offer of its key is a new message
        for other in self._counting(message):
            other.size -= 1

    def _id(self, number: int) -> int:
        """That of the message of an offer, once it is stored."""
        stored = self._outcomes.get(-1 - number) if number < 0 else None
        return stored.id or number if stored else number

    def _counting(self, place: CountedPlace) -> Iterator[Counter]:
        """The counters that know of what waits there. The others count anew before they refuse anything."""
        of_channel = self._counters.get(place.channel_id)
        for one in self._scopes if of_channel is None else [of_channel, *self._scopes]:
            if one.is_exact and one.has(place):
                yield one

    # What passes

    def _enter(self, position: int, offer: Offer, known: WaitingPlace | None, entered: Sequence[Counter]) -> None:
        address = WaitingPlace.of(offer)
        if known is not None and known != address:  # it leaves another channel
            for one in self._counting(known):
                one.size -= not one.has(address)
        for one in entered:
            one.size += 1
        if offer.key is not None:
            self._live[offer.kind, offer.key] = address
        if known is None:
            self._waits_too(position, offer, entered)
        elif self._policy is not OnConflict.KEEP:  # where it waits, and when it is due, is read again
            self._waiting.clear()
            self._complete.clear()

    def _waits_too(self, position: int, offer: Offer, entered: Iterable[Counter]) -> None:
        """A later offer may drop it."""
        address, name = WaitingPlace.of(offer), (offer.kind, offer.key or "")
        due_at = offer.scheduled_at or self._database.now()
        for one in entered:
            if one.id in self._waiting:
                new = Cancellable(due_at, True, position, name, address.channel_id, address.group_id)
                heappush(self._waiting[one.id], new)

    def _flush(self) -> None:
        """Store what has passed, and cancel what was dropped for it, in a few statements."""
        self._store_passed()
        dropped = {self._id(number): one for number, one in self._dropped.items()}
        self._dropped.clear()
        self._dropped_names.clear()
        if dropped:
            self._gone |= dropped.keys()
            cancel(self._database, dropped)
            for id_, one in dropped.items():
                _tell(one, f"message {id_} was cancelled for a newer one")

    def _store_passed(self) -> None:
        positions = list(self._passed)
        stored = self._store([self._offers[position] for position in positions]) if positions else []
        for position, one in zip(positions, stored, strict=True):
            self._outcomes[position] = one._replace(size=self._passed[position])
        self._passed.clear()


def _raise_if_asked(one: Counter, offer: Offer) -> None:
    if one.on_full is OnFull.RAISE:
        raise QueueFull(
            f"{one} has {one.size:,} messages, and a size of {one.most:,}: {offer.kind} is not stored. There is room "
            "when some of them have ended; on_full of the Limit says what else may happen."
        )


def _turn(one: Counter) -> tuple[int, bool, int]:
    """Who makes room comes first; a channel before a scope, a scope of few groups before one of many."""
    return _TURNS.index(one.on_full), bool(one.scope), len(one.groups)


def _live_of(database: Database, offers: Sequence[Offer]) -> dict[tuple[str, str], WaitingPlace]:
    """Where the live messages of their keys wait, which stay as they are until the transaction ends."""
    from delayedq.models import Message

    names = sorted((offer.kind, offer.key) for offer in offers if offer.key is not None)
    wanted = Q()
    for kind, some in groupby(names, key=lambda name: name[0]):
        wanted |= Q(kind=kind, key__in=[key for _, key in some])
    if not names:
        return {}
    rows = Message.objects.using(database.alias).filter(wanted).order_by("kind", "key").select_for_update()
    return {(one.kind, one.key or ""): _address_of(one) for one in rows.only("kind", "key", "queue", "metadata")}


def _address_of(message: Message) -> WaitingPlace:
    """What has no channel is counted nowhere."""
    channel = channel_of(message.metadata)
    return WaitingPlace("", "", "") if channel is None else WaitingPlace(message.queue, message.kind, channel)


def _least_room(limits: Sequence[Counter]) -> int | None:
    rooms = [(one.most - one.size, one.size) for one in limits if one.most is not None]
    return min(rooms)[1] if rooms else None


def _tell(one: Counter, what: str) -> None:
    left_out = _floods.left_out("full", str(one.id))
    if left_out is not None:
        more = f" ({left_out} more like this were left out)" if left_out else ""
        logger.warning("%s has reached its size of %s: %s%s", one, f"{one.most:,}", what, more)
