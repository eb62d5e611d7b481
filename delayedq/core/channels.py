"""Channels: sub-queues of the messages of one task, and how a message says which one it is in.

A message with a channel waits in a *limited lane*: its stored priority is LIMITED lower than the one it was given, so
no claim of an ordinary lane can meet it, whatever happens to it: retries, expired leases, edits. Its channel travels in
its metadata, also into the history.
"""

from __future__ import annotations

import json
from hashlib import blake2b

from delayedq.core.limits import NAME_LENGTH, is_storable
from delayedq.core.metadata import PREFIX, own, with_own

#: How much lower the stored priority of a message with a channel is. Priorities are from -100 to 100.
LIMITED = 1_000
#: Stored priorities below this are those of limited lanes.
BOUNDARY = -LIMITED // 2

#: The urgency (negated priority) of a message that was claimed and has not ended, if its channel has a strict order.
HEAD = -10_000

METADATA_KEY = f"{PREFIX}channel"
#: How metadata begin that name a channel and nothing else.
_ALONE, _QUOTES = '{"' + METADATA_KEY + '":"', 4


def is_limited(priority: int) -> bool:
    """Whether a stored priority is that of a limited lane."""
    return priority < BOUNDARY


def shown_priority(stored: int) -> int:
    """The priority that the message was given.

    >>> shown_priority(5 - LIMITED), shown_priority(5)
    (5, 5)
    """
    return stored + LIMITED if stored < BOUNDARY else stored


def check_channel(name: object) -> None:
    """Raises ValueError for what is no name of a channel."""
    if not isinstance(name, str) or len(name) > NAME_LENGTH or not is_storable(name):
        raise ValueError(f"a channel is a text of at most {NAME_LENGTH} characters, not {str(name)[:80]!r}")


def with_channel(metadata: str | None, channel: str) -> str:
    """The metadata (JSON) of a message in this channel."""
    return str(with_own(metadata, {METADATA_KEY: channel}))


def has_channel_only(metadata: str) -> bool:
    """Whether it names a channel and says nothing else; False where only a parser can tell.

    >>> has_channel_only(with_channel(None, "acme")), has_channel_only(with_channel('{"a":1}', "acme"))
    (True, False)
    """
    return metadata.startswith(_ALONE) and metadata.count('"') == _QUOTES and "\\" not in metadata


def channel_of(metadata: str | None) -> str | None:
    """The channel in the metadata of a message; None if it has none."""
    if metadata and has_channel_only(metadata):
        return metadata[len(_ALONE) : -2]
    channel = own(metadata, METADATA_KEY)
    return None if channel is None else str(channel)


def group_id(queue: str, kind: str) -> int:
    """The id of the channels of one task in one queue."""
    return _digest(queue, kind)


def channel_id(queue: str, kind: str, channel: str) -> int:
    """The id of a channel, which every process finds out alike without asking the database."""
    return _digest(queue, kind, channel)


def scope_id(scope: str) -> int:
    """The id of a queue, a task or a shared limit, in which the messages of several channels are counted."""
    return _digest(scope)


def bucket_name(scope: str) -> str:
    """Under which name the token bucket of a scope is stored: in a row that is not the one of what is set live.

    So no claim waits for a transaction that sets a limit.
    """
    return str(scope_id(scope))


def _digest(*names: str) -> int:
    """63 bits: among a million channels, two share an id with a probability of 0.00000005."""
    texts = json.dumps(names).encode()
    return int.from_bytes(blake2b(texts, digest_size=8).digest()) >> 1
