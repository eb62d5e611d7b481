"""Labels of metrics: how many there may be is bounded."""

from __future__ import annotations

from datetime import UTC, datetime

# Limits of what is stored, the same for all databases.


#: Largest key, in characters.
KEY_LENGTH = 200

#: Largest name of a queue, kind, worker and so on, in characters.
NAME_LENGTH = 200

#: Default of DELAYEDQ["MAX_PAYLOAD_BYTES"].
MAX_PAYLOAD_BYTES = 1_000_000

#: A message keeps its last errors, at most this many.
ERRORS_KEPT = 20

#: The earliest time that all databases can store (MySQL's limit).
EARLIEST = datetime(1000, 1, 1, tzinfo=UTC)


def is_storable(text: str) -> bool:
    """False for a text with a NUL, which PostgreSQL refuses, or with a lone surrogate, which has no UTF-8 form."""
    if text.isascii():
        return "\0" not in text
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def check_channel(name: object) -> None:
    """Raises ValueError for what is no name of a channel."""
    if not isinstance(name, str) or len(name) > NAME_LENGTH or not is_storable(name):
        raise ValueError(f"a channel is a text of at most {NAME_LENGTH} characters, not {str(name)[:80]!r}")


# Labels


#: The label of all names beyond those that are told apart.
OTHERS = "(others)"
