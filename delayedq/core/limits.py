"""What can be stored, in any of the databases."""

from __future__ import annotations

from datetime import UTC, datetime

#: Characters.
KEY_LENGTH = 200
#: Characters of the names of queues, kinds and all else.
NAME_LENGTH = 200

#: MySQL stores no time before.
EARLIEST = datetime(1000, 1, 1, tzinfo=UTC)


def is_storable(text: str) -> bool:
    """Not with a NUL, which PostgreSQL refuses, nor with a lone surrogate, which UTF-8 does not have."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
