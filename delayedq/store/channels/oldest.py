"""What makes room for a newer message (`on_full="drop_oldest"`): the waiting one that has been due the longest."""

from __future__ import annotations

from heapq import heapify
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from delayedq.store.channels.counters import Counter
    from delayedq.store.database import Database

#: So many more waiting messages are looked at than are needed, as others may have locked some.
LOOKED_AT = 100


class Waiting(NamedTuple):
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


def read(database: Database, one: Counter, most: int) -> list[Waiting]:
    """The first `most` that this counter counts, as a heap. They are locked, so that nobody claims them."""
    from delayedq.models import Message, is_free

    waiting = one.live_places(database).filter(lease_token=0).order_by("due_at", "message_id")
    places = {place.message_id: place for place in waiting[: most + LOOKED_AT]}
    ids, found = list(places), list[Waiting]()
    for some in (ids[:most], ids[most:]):
        if some and len(found) < most:
            free = Message.objects.using(database.alias).filter(is_free(database.now()), id__in=some).order_by("id")
            for id_, kind, key in database.unlocked(free).values_list("id", "kind", "key"):
                place = places[id_]
                found.append(Waiting(place.due_at, False, id_, (kind, key or ""), place.channel_id, place.group_id))
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
