"""Times on their way into the statements of SQLite, and out of its rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def text(moment: datetime) -> str:
    """A time as Django stores it in SQLite: UTC without an offset, so that texts sort as times do."""
    return str(moment.astimezone(UTC).replace(tzinfo=None))


def instant(stored: Any) -> datetime:
    """The reverse of `text`; columns with a declared type arrive parsed."""
    moment: datetime = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return moment.replace(tzinfo=moment.tzinfo or UTC)
