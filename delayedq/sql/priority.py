"""The stored priority: a message with a channel waits in a *limited lane*, whose priority is LIMITED lower.

So no claim of an ordinary lane can meet it, whatever happens to it: retries, expired leases, edits. Its channel travels
in its metadata, also into the history, which has the priority that was given.
"""

from __future__ import annotations

from delayedq.core.metadata import PREFIX

#: How much lower the stored priority of a message with a channel is. Priorities are from -100 to 100.
LIMITED = 1_000

#: Stored priorities below this are those of limited lanes.
BOUNDARY = -LIMITED // 2

#: The channel, in the metadata of a message.
METADATA_KEY = f"{PREFIX}channel"


def is_limited(priority: int) -> bool:
    """Whether a stored priority is that of a limited lane."""
    return priority < BOUNDARY


def shown_priority(stored: int) -> int:
    """The priority that the message was given.

    >>> shown_priority(5 - LIMITED), shown_priority(5)
    (5, 5)
    """
    return stored + LIMITED if stored < BOUNDARY else stored


# The same as expressions.


def given_priority(priority: str = "priority") -> str:
    """The priority that a live message was given, whether it has a channel or not."""
    return f"CASE WHEN {priority} < {BOUNDARY} THEN {priority} + {LIMITED} ELSE {priority} END"


def moved_priority(new: str, priority: str = "priority") -> str:
    """What is stored of a new priority."""
    return f"{new} - CASE WHEN {priority} < {BOUNDARY} THEN {LIMITED} ELSE 0 END"


def revived_priority(table: str = "") -> str:
    """What is stored of the priority of an ended message that lives again; `table`: with a full stop."""
    has_channel = f"""{table}metadata LIKE '%%"{METADATA_KEY}":%%'"""
    return f"{table}priority - CASE WHEN {has_channel} THEN {LIMITED} ELSE 0 END"
