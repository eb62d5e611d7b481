"""Times on their way into the statements of SQLite, and out of its rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from delayedq.store.claims import new_token
from delayedq.store.protocol import Claimed

#: A lease that ran out 10 minutes ago is claimed although its worker lives: nothing renews it any more.
UNRENEWED = timedelta(minutes=10)


def text(moment: datetime) -> str:
    """A time as Django stores it in SQLite: UTC without an offset, so that texts sort as times do."""
    return str(moment.astimezone(UTC).replace(tzinfo=None))


def instant(stored: Any) -> datetime:
    """The reverse of `text`; columns with a declared type arrive parsed."""
    moment: datetime = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return moment.replace(tzinfo=moment.tzinfo or UTC)


def leased(moment: datetime, lease: timedelta, worker: str, token: int | None = None) -> dict[str, Any]:
    """The parameters of `sql.LEASE`."""
    parameters = {"token": token or new_token(), "worker": worker, "now": text(moment), "until": text(moment + lease)}
    return {**parameters, **unrenewed(moment)}


def claimed_from(row: tuple[Any, ...]) -> Claimed:
    """What `sql.LEASE` returns."""
    return Claimed._make([*row[:9], *map(instant, row[9:12]), *row[12:]])


def unrenewed(moment: datetime) -> dict[str, str]:
    """The parameter of `sql.free`: leases that had run out by then are nobody's, even if their worker lives."""
    return {"unrenewed": text(moment - UNRENEWED)}
