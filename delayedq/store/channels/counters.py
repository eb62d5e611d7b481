"""Counters of what is limited in its size: one row for each channel or scope, locked until the transaction ends.

So offers to one limit come one after another, and none of them can exceed it. A counter says how many messages there
are *at most*: it knows what was offered since it counted last, not what ended. So an end writes nothing here, and
waits for no producer. Before an offer finds no room, what is there is counted again.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from django.db.models import Count, Exists, F, OuterRef, Q

from delayedq.core.channels import BOUNDARY, channel_id, group_id, scope_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from django.db.models import QuerySet

    from delayedq.core.sizes import OnFull, Size
    from delayedq.models import ChannelMessage, ChannelSize
    from delayedq.store.database import Database
    from delayedq.store.protocol import Offer

#: A counter that was not brought up to date for so long is counted again by the next offer, for the size it returns.
FRESH = timedelta(seconds=1)
#: What no offer has locked for so long is deleted.
UNUSED = timedelta(hours=1)
#: So many of them at once.
MOST_FORGOTTEN = 10_000

NEVER = datetime(2000, 1, 1, tzinfo=UTC)


class Place(Protocol):
    """Where a message waits, as counters see it."""

    @property
    def group_id(self) -> int: ...
    @property
    def channel_id(self) -> int: ...


class Address(NamedTuple):
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

    def __init__(self, address: Address, scope: str, most: int | None, on_full: OnFull) -> None:
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

    def has(self, place: Place | None) -> bool:
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
    return [[_counter(found, Address.of(offer), size, live) for size in offer.sizes] for offer in offers]


def _counter(
    found: dict[int, Counter], address: Address, size: Size, live: Mapping[tuple[str, str], int | None]
) -> Counter:
    most = next((live[name] for name in _names(size.scope, address) if name in live), size.most)
    new = Counter(address, size.scope, most, size.on_full)
    one = found.setdefault(new.id, new)
    one.groups |= new.groups
    return one


def _names(scope: str, address: Address) -> list[tuple[str, str]]:
    """Under which names a limit may have been set live."""
    if scope:
        return [(scope, "")]
    return [(address.kind, address.channel), (address.queue, address.channel)] if address.channel else []


def _set_live(database: Database, offers: Iterable[Offer]) -> dict[tuple[str, str], int | None]:
    from delayedq.models import LimitState

    names = {name for offer in offers for size in offer.sizes for name in _names(size.scope, Address.of(offer))}
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

    unique = None if database.connection.vendor == "mysql" else ["id"]
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
