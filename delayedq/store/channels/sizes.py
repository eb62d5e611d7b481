"""Offers to what is limited in its size: which of them are stored, and what becomes of the others.

A message that replaces a live one of its key is no new message. What comes to another channel by that is new there.
"""

from __future__ import annotations

import json
import logging
from heapq import heapify, heappop, heappush
from itertools import batched, groupby
from typing import TYPE_CHECKING, NamedTuple

from django.db.models import Q

from delayedq.core.channels import channel_of
from delayedq.core.sizes import OnFull
from delayedq.exceptions import QueueFull
from delayedq.signals import Floods
from delayedq.store.channels import counters
from delayedq.store.channels.counters import Address, Counter
from delayedq.store.offers import check
from delayedq.store.protocol import Offered, OfferOutcome, OnConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from delayedq.models import Message
    from delayedq.store.database import Database
    from delayedq.store.protocol import Offer

    Store = Callable[[Sequence[Offer]], list[Offered]]

logger = logging.getLogger("delayedq")
_floods = Floods()

#: To make room, so many more waiting messages are looked at than are needed, as others may have locked some.
LOOKED_AT = 100


def offer_sized(database: Database, offers: Sequence[Offer], policy: OnConflict, store: Store) -> list[Offered]:
    """Store those that find room, by `store`; the outcomes are in the order of the offers.

    Raises QueueFull if a limit without room says so, and stores nothing then. It is called in a transaction.
    """
    for offer in offers:
        check(offer)
    return _Gate(database, offers, policy, store).pass_all()


class _Waiting(NamedTuple):
    """A message that may be dropped, in the order of their due times. rank: its id, or of a new one, its position."""

    due_at: datetime
    is_new: bool
    rank: int
    name: tuple[str, str]

    @property
    def number(self) -> int:
        """Its id, or -1 - its position."""
        return -1 - self.rank if self.is_new else self.rank


class _Gate:
    """The offers of one chunk, while all counters of their limits are locked."""

    def __init__(self, database: Database, offers: Sequence[Offer], policy: OnConflict, store: Store) -> None:
        self._database, self._offers, self._policy, self._store = database, offers, policy, store
        self._counters = _counters(database, offers)
        counters.lock(database, self._counters.values())
        self._live = _live_of(database, offers)
        self._outcomes: dict[int, Offered] = {}
        #: The positions of those that are to be stored, and the size that each of them left.
        self._passed: dict[int, int | None] = {}
        #: By counter, what waits and may be dropped; and what is to be cancelled, or was.
        self._waiting: dict[int, list[_Waiting]] = {}
        self._dropped: dict[int, Counter] = {}
        self._dropped_names: set[tuple[str, str]] = set()
        self._gone: set[int] = set()

    def pass_all(self) -> list[Offered]:
        for position, offer in enumerate(self._offers):
            self._tell_apart(offer)
            limits = [self._counters[id_] for id_ in _ids(offer)]
            known = self._known(offer)
            entered = [one for one in limits if not one.has(known)]
            if self._makes_room(offer, entered):
                for one in entered:
                    one.size += 1
                self._waits_too(position, offer, entered, is_new=known is None)
                if offer.key is not None:
                    self._live[offer.kind, offer.key] = _address(offer)
                self._passed[position] = _least_room(limits)
            else:
                self._outcomes[position] = Offered(OfferOutcome.DROPPED, None, size=_least_room(limits))
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
        return _address(offer) if known is not None and self._policy is OnConflict.KEEP else known

    def _makes_room(self, offer: Offer, entered: Sequence[Counter]) -> bool:
        full = [one for one in entered if self._is_full(one)]
        for one in full:
            if one.on_full is OnFull.RAISE:
                raise QueueFull(
                    f"{one} has {one.size:,} messages, and a size of {one.most:,}: {offer.kind} is not stored. There "
                    "is room when some of them have ended; on_full of the Limit says what else may happen."
                )
        made = all(one.on_full is OnFull.DROP_OLDEST for one in full) and all(map(self._drops_oldest, full))
        if not made:
            _tell(full[0], f"an offer of {offer.kind} was dropped")
        return made

    def _is_full(self, one: Counter) -> bool:
        if one.is_full and not one.is_exact:
            self._flush()
            one.count(self._database)
        return one.is_full

    def _drops_oldest(self, one: Counter) -> bool:
        """The waiting message that has been due the longest is to be cancelled; False: all are in flight."""
        if one.id not in self._waiting:
            self._flush()
            self._waiting[one.id] = self._oldest(one)
        waiting = self._waiting[one.id]
        while waiting:
            oldest = heappop(waiting)
            if self._id(oldest.number) not in self._gone:
                self._drop(oldest, one)
                return True
        return False

    def _drop(self, oldest: _Waiting, one: Counter) -> None:
        number = self._id(oldest.number)
        self._gone.add(number)
        self._dropped[number] = one
        one.size -= 1
        self._dropped_names.add(oldest.name)
        self._live.pop(oldest.name, None)  # a later offer of its key is a new message

    def _id(self, number: int) -> int:
        """That of the message of an offer, once it is stored."""
        stored = self._outcomes.get(-1 - number) if number < 0 else None
        return stored.id or number if stored else number

    def _oldest(self, one: Counter) -> list[_Waiting]:
        """Messages that wait, as many as there are offers: they are locked, so that nobody claims them."""
        from delayedq.models import Message, is_free

        most, alias = len(self._offers), self._database.alias
        places = one.live_places(self._database).filter(lease_token=0).order_by("due_at", "message_id")
        due = dict(places.values_list("message_id", "due_at")[: most + LOOKED_AT])
        found: list[_Waiting] = []
        for some in batched(due, most):
            free = Message.objects.using(alias).filter(is_free(self._database.now()), id__in=some).order_by("id")
            rows = self._database.unlocked(free).values_list("id", "kind", "key")
            found += [_Waiting(due[id_], False, id_, (kind, key or "")) for id_, kind, key in rows]
            if len(found) >= most:
                break
        heapify(found)
        return found

    def _waits_too(self, position: int, offer: Offer, entered: Iterable[Counter], *, is_new: bool) -> None:
        """A later offer may drop it."""
        if is_new:
            due_at, name = offer.scheduled_at or self._database.now(), (offer.kind, offer.key or "")
            for one in (one for one in entered if one.id in self._waiting):
                heappush(self._waiting[one.id], _Waiting(due_at, True, position, name))
        elif self._policy is not OnConflict.KEEP:  # where it waits, and when it is due, is read again
            self._waiting.clear()

    def _flush(self) -> None:
        """Store what has passed, and cancel what was dropped for it, in a few statements."""
        from delayedq.models import ChannelMessage, Message
        from delayedq.store import operator_store
        from delayedq.store.operator import Seen

        self._store_passed()
        dropped = {self._id(number): one for number, one in self._dropped.items()}
        self._dropped.clear()
        self._dropped_names.clear()
        if not dropped:
            return
        self._gone |= dropped.keys()
        rows = Message.objects.using(self._database.alias).in_bulk(dropped)
        seen = [Seen._make(getattr(rows[id_], name) for name in Seen._fields) for id_ in dropped if id_ in rows]
        operator_store(self._database.alias).at(self._database.moment).cancel(seen)
        places = ChannelMessage.objects.using(self._database.alias)
        places.filter(message_id__in=dropped).delete()  # or the next offer would read them, too
        for id_, one in dropped.items():
            _tell(one, f"message {id_} was cancelled for a newer one")

    def _store_passed(self) -> None:
        positions = list(self._passed)
        stored = self._store([self._offers[position] for position in positions]) if positions else []
        for position, one in zip(positions, stored, strict=True):
            self._outcomes[position] = one._replace(size=self._passed[position])
        self._passed.clear()


def _address(offer: Offer) -> Address:
    return Address(offer.queue, offer.kind, offer.channel or "")


def _counters(database: Database, offers: Iterable[Offer]) -> dict[int, Counter]:
    """Of all limits of these offers that have a size, as it was set live or else as defined."""
    live = _set_live(database, offers)
    found: dict[int, Counter] = {}
    for offer in offers:
        address = _address(offer)
        for size in offer.sizes:
            most = next((live[name] for name in _names(size.scope, address) if name in live), size.most)
            counter = Counter(address, size.scope, most, size.on_full)
            found.setdefault(counter.id, counter).groups |= counter.groups
    return found


def _names(scope: str, address: Address) -> list[tuple[str, str]]:
    """Under which names a limit may have been set live."""
    if scope:
        return [(scope, "")]
    return [(address.kind, address.channel), (address.queue, address.channel)] if address.channel else []


def _set_live(database: Database, offers: Iterable[Offer]) -> dict[tuple[str, str], int | None]:
    from delayedq.models import LimitState

    names = {name for offer in offers for size in offer.sizes for name in _names(size.scope, _address(offer))}
    rows = LimitState.objects.using(database.alias).filter(
        definition__isnull=False, scope__in={scope for scope, _ in names}, channel__in={channel for _, channel in names}
    )
    stored = {(one.scope, one.channel): json.loads(one.definition or "{}") for one in rows}
    return {name: terms["size"] for name, terms in stored.items() if "size" in terms}


def _ids(offer: Offer) -> list[int]:
    address = _address(offer)
    return [Counter(address, size.scope, size.most, size.on_full).id for size in offer.sizes]


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
