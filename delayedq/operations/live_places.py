"""How many messages wait in a channel, and since when: of its places, those that have a live message.

Where a message was cancelled, its place stays until a claim removes it: in a channel that is full or paused, that may
take long. Places are read in parts, in the order of an index, until enough live ones are found; of MOST_PARTS without
one, those behind are not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import Count, Exists, Min, OuterRef, Q

from delayedq.core.channels import BOUNDARY
from delayedq.models import Message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.models import ChannelMessage

MOST_PARTS = 5
#: To find out since when messages wait, so many places are read at once.
FIRST = 100


def count_live(places: QuerySet[ChannelMessage], most: int) -> int:
    """How many of these places, which are in the order of an index, have a live message; at most `most` + 1."""
    live = 0
    for part in _parts(places, most + 1, live=Count("pk", filter=Q(is_live=True))):
        live += part["live"]
        if live > most:
            return most + 1
    return live


def due_since(places: QuerySet[ChannelMessage]) -> datetime | None:
    """When the first message of these places became due; they are in the order of their due times."""
    parts = _parts(places, FIRST, first=Min("due_at", filter=Q(is_live=True)))
    return next((part["first"] for part in parts if part["first"] is not None), None)


def _parts(places: QuerySet[ChannelMessage], size: int, **asked: Any) -> Iterator[dict[str, Any]]:
    live = Message.objects.filter(id=OuterRef("message_id"), priority__lt=BOUNDARY)
    rows = places.annotate(is_live=Exists(live))
    for start in range(0, MOST_PARTS * size, size):
        part = rows[start : start + size].aggregate(number=Count("pk"), **asked)
        yield part
        if part["number"] < size:
            return
