"""Offers to what is limited in its size: which of them are stored, and what becomes of the others.

A message that replaces a live one of its key is no new message. What comes to another channel by that is new there.
"""

from __future__ import annotations

import json
import logging
from itertools import groupby
from typing import TYPE_CHECKING

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
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from delayedq.models import Message
    from delayedq.store.database import Database
    from delayedq.store.protocol import Offer

    Store = Callable[[Sequence[Offer]], list[Offered]]

logger = logging.getLogger("delayedq")
_floods = Floods()

#: To make room, so many waiting messages are looked at in one go.
LOOKED_AT = 100


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
        self._counters = _counters(database, offers)
        counters.lock(database, self._counters.values())
        self._live = _live_of(database, offers)
        self._outcomes: dict[int, Offered] = {}
        #: The positions of those that are to be stored, and the size that each of them left.
        self._passed: dict[int, int | None] = {}

    def pass_all(self) -> list[Offered]:
        for position, offer in enumerate(self._offers):
            limits = [self._counters[id_] for id_ in _ids(offer)]
            entered = [one for one in limits if not one.has(self._known(offer))]
            if self._makes_room(offer, entered):
                for one in entered:
                    one.size += 1
                if offer.key is not None:
                    self._live[offer.kind, offer.key] = _address(offer)
                self._passed[position] = _least_room(limits)
            else:
                self._outcomes[position] = Offered(OfferOutcome.DROPPED, None, size=_least_room(limits))
        self._store_passed()
        counters.store(self._database, self._counters.values())
        return [self._outcomes[position] for position in range(len(self._offers))]

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
            self._store_passed()
            one.count(self._database)
        return one.is_full

    def _drops_oldest(self, one: Counter) -> bool:
        """Cancel the waiting message that has been due the longest; False: all are in flight."""
        self._store_passed()
        dropped = next((message for message in self._oldest(one) if self._cancelled(message)), None)
        if dropped is None:
            return False
        one.places(self._database).filter(message_id=dropped.pk).delete()  # or the next offer would read it, too
        one.size -= 1
        self._live.pop((dropped.kind, dropped.key or ""), None)  # a later offer of its key is a new message
        _tell(one, f"message {dropped.pk} was cancelled for a newer one")
        return True

    def _oldest(self, one: Counter) -> Iterator[Message]:
        """Messages that wait, first the one that is due first."""
        from delayedq.models import Message

        places = one.live_places(self._database).filter(lease_token=0).order_by("due_at", "message_id")
        ids = list(places.values_list("message_id", flat=True)[: (one.most or 0) + LOOKED_AT])
        for start in range(0, len(ids), LOOKED_AT):
            some = ids[start : start + LOOKED_AT]
            found = Message.objects.using(self._database.alias).in_bulk(some)
            yield from (found[id_] for id_ in some if id_ in found)

    def _cancelled(self, message: Message) -> set[int]:
        """End it, unless it is held by now."""
        from delayedq.store import operator_store
        from delayedq.store.operator import Seen

        seen = Seen._make(getattr(message, name) for name in Seen._fields)
        return operator_store(self._database.alias).at(self._database.moment).cancel([seen])

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
