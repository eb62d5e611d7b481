"""How many messages wait in channels, and since when: of the places of a channel, those that have a live message.

Where a message was cancelled, its place stays until a claim removes it: in a channel that is full or paused, that may
take long. Places are read in the order of an index until there are enough live ones; of a bounded number without one,
those behind are not looked at.
"""

from __future__ import annotations

from datetime import datetime
from itertools import batched
from typing import TYPE_CHECKING, Any

from delayedq.sql.priority import BOUNDARY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from delayedq.models import Message
    from delayedq.store.base import Store

#: To find so many live places, at most so many times as many are looked at.
MOST_DEAD = 5

#: To find out since when messages wait, at most so many places are looked at.
FIRST = 500

#: So many channels are asked for in one statement.
AT_ONCE = 100

#: Whether a place has a live message is asked for each by itself: a join might read all messages.
LIVE = """
SELECT due_at FROM (
    SELECT message_id, due_at FROM delayedq_channelmessage
    WHERE channel_id = %(channel_{place})s AND lease_token = 0 AND due_at <= %(now)s{more}
    ORDER BY {order} LIMIT %(looked_at)s
) AS places_{place}
WHERE (SELECT 1 FROM delayedq_message AS live WHERE live.id = message_id AND live.priority < %(boundary)s) IS NOT NULL
"""
NUMBER = "SELECT {place} AS place, COUNT(*) AS answer FROM ({live} LIMIT %(most)s) AS live_{place}"
SINCE = "SELECT {place} AS place, MIN(due_at) AS answer FROM ({live} ORDER BY due_at LIMIT 1) AS live_{place}"
#: A comparison of rows would be no range of an index on MySQL.
BEFORE = """
        AND urgency <= %(urgency)s
        AND (urgency < %(urgency)s OR due_at < %(at)s OR due_at = %(at)s AND message_id < %(message)s)
"""


def waiting_in(store: Store, channels: Collection[int], now: datetime, most: int) -> dict[int, int]:
    """By channel, how many of its messages are due; at most `most` + 1."""
    return _each(store, NUMBER, channels, _up_to(now, most))


def due_since(store: Store, channels: Collection[int], now: datetime) -> dict[int, datetime]:
    """By channel, when its first message became due; only those in which one waits."""
    instant = store.database.dialect.instant
    found = _each(store, SINCE, channels, {"now": now, "looked_at": FIRST})
    return {channel: instant(at) for channel, at in found.items() if at is not None}


def waiting_before(store: Store, channel: int, message: Message, now: datetime, most: int) -> int:
    """How many messages of a channel are due and come before this one of it; at most `most` + 1."""
    given = {"urgency": -message.priority, "at": message.scheduled_at, "message": message.pk}
    order = "urgency, due_at, message_id"
    return int(_each(store, NUMBER, [channel], _up_to(now, most) | given, BEFORE, order)[channel])


def _up_to(now: datetime, most: int) -> dict[str, Any]:
    return {"now": now, "most": most + 1, "looked_at": MOST_DEAD * (most + 1)}


def _each(
    store: Store, asked: str, channels: Collection[int], given: Mapping[str, Any], more: str = "", order: str = "due_at"
) -> dict[int, Any]:
    """By channel, what is asked of its live places."""
    stored = store.database.dialect.stored
    given = {name: stored(value) if isinstance(value, datetime) else value for name, value in given.items()}
    found: dict[int, Any] = {}
    for some in batched(channels, AT_ONCE):
        lives = (LIVE.format(place=place, more=more, order=order) for place, _ in enumerate(some))
        parts = (asked.format(place=place, live=live) for place, live in enumerate(lives))
        ids = {f"channel_{place}": id_ for place, id_ in enumerate(some)}
        # Thousands of rows to count look dear enough to PostgreSQL to compile the statement first.
        ask = store.database.counted if asked is NUMBER else store.database.rows
        rows = ask(" UNION ALL ".join(parts), {**given, "boundary": BOUNDARY, **ids})
        found.update((some[place], answer) for place, answer in rows)
    return found
