"""Offers to what is limited in its size: which of them are stored, and what becomes of the others.

A message that replaces a live one of its key is no new message. What comes to another channel by that is new there.
"""

from __future__ import annotations

import logging
from collections import Counter as Tally
from heapq import heappop, heappush
from itertools import groupby
from typing import TYPE_CHECKING

from django.db.models import Q

from delayedq.core.channels import channel_of
from delayedq.core.sizes import OnFull
from delayedq.exceptions import QueueFull
from delayedq.signals import Floods
from delayedq.store.channels import counters, oldest
from delayedq.store.channels.counters import Address, Counter
from delayedq.store.channels.oldest import Waiting
from delayedq.store.offers import check
from delayedq.store.protocol import Offered, OfferOutcome, OnConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from delayedq.models import Message
    from delayedq.store.channels.counters import Place
    from delayedq.store.database import Database
    from delayedq.store.protocol import Offer

    Store = Callable[[Sequence[Offer]], list[Offered]]

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
        self._limits = counters.of(database, offers)
        self._counters = {one.id: one for limits in self._limits for one in limits}
        counters.lock(database, self._counters.values())
        self._scopes = [one for one in self._counters.values() if one.scope]
        self._live = _live_of(database, offers)
        self._outcomes: dict[int, Offered] = {}
        #: The positions of those that are to be stored, and the size that each of them left.
        self._passed: dict[int, int | None] = {}
        #: By counter: how many offers are still to come, what waits and may be dropped, and whether that is all.
        self._to_come = Tally(one.id for limits in self._limits for one in limits)
        self._waiting: dict[int, list[Waiting]] = {}
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
        counters.store(self._database, self._counters.values())
        return [self._outcomes[position] for position in range(len(self._offers))]

    def _tell_apart(self, offer: Offer) -> None:
        """From a message of its key that makes room: that is another one."""
        if offer.key is not None and (offer.kind, offer.key) in self._dropped_names:
            self._flush()

    def _known(self, offer: Offer) -> Address | None:
        """Where the message waits that this offer replaces or keeps; None: it is a new one."""
        known = None if offer.key is None else self._live.get((offer.kind, offer.key))
        return Address.of(offer) if known is not None and self._policy is OnConflict.KEEP else known

    # Room

    def _makes_room(self, offer: Offer, entered: Sequence[Counter]) -> bool:
        """Whether these limits have room, or make it. What makes room in one of them may do so in others, too.

        So narrow limits come before wide ones, and those that drop nothing come last; nothing is dropped in vain.
        """
        dropped: dict[Waiting, Counter] = {}
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

    def _oldest(self, one: Counter) -> Waiting | None:
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
        self._waiting[one.id] = found = oldest.read(self._database, one, most)
        if len(found) < most:
            self._complete.add(one.id)

    def _drop(self, message: Waiting, one: Counter) -> None:
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

    def _counting(self, place: Place) -> Iterator[Counter]:
        """The counters that know of what waits there. The others count anew before they refuse anything."""
        of_channel = self._counters.get(place.channel_id)
        for one in self._scopes if of_channel is None else [of_channel, *self._scopes]:
            if one.is_exact and one.has(place):
                yield one

    # What passes

    def _enter(self, position: int, offer: Offer, known: Address | None, entered: Sequence[Counter]) -> None:
        address = Address.of(offer)
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
        address, name = Address.of(offer), (offer.kind, offer.key or "")
        due_at = offer.scheduled_at or self._database.now()
        for one in entered:
            if one.id in self._waiting:
                new = Waiting(due_at, True, position, name, address.channel_id, address.group_id)
                heappush(self._waiting[one.id], new)

    def _flush(self) -> None:
        """Store what has passed, and cancel what was dropped for it, in a few statements."""
        self._store_passed()
        dropped = {self._id(number): one for number, one in self._dropped.items()}
        self._dropped.clear()
        self._dropped_names.clear()
        if dropped:
            self._gone |= dropped.keys()
            oldest.cancel(self._database, dropped)
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


def _live_of(database: Database, offers: Sequence[Offer]) -> dict[tuple[str, str], Address]:
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


def _address_of(message: Message) -> Address:
    """What has no channel is counted nowhere."""
    channel = channel_of(message.metadata)
    return Address("", "", "") if channel is None else Address(message.queue, message.kind, channel)


def _least_room(limits: Sequence[Counter]) -> int | None:
    rooms = [(one.most - one.size, one.size) for one in limits if one.most is not None]
    return min(rooms)[1] if rooms else None


def _tell(one: Counter, what: str) -> None:
    left_out = _floods.left_out("full", str(one.id))
    if left_out is not None:
        more = f" ({left_out} more like this were left out)" if left_out else ""
        logger.warning("%s has reached its size of %s: %s%s", one, f"{one.most:,}", what, more)
