"""The errors that a message stores: a JSON list with one record per failed attempt, the latest last."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from delayedq.core.limits import ERRORS_KEPT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


def with_error(
    stored: str | None,
    *,
    attempt: int,
    failed_at: datetime,
    seconds: float | None,
    worker: str | None,
    exception: str,
    message: str,
    traceback: str = "",
    chain: Sequence[str] = (),
) -> str:
    """Return the stored list with one more record, cut to the last ERRORS_KEPT.

    seconds: duration of the attempt; None if nothing ran. exception: the dotted path of its class.
    chain: what it was raised from, the nearest first.
    """
    record: dict[str, object] = {
        "attempt": attempt,
        "failed_at": failed_at.isoformat(),
        "seconds": None if seconds is None else round(seconds, 6),
        "worker": worker,
        "exception": exception,
        "message": message,
        "traceback": traceback,
    }
    if chain:
        record["chain"] = list(chain)
    return json.dumps([*known_errors(stored), record][-ERRORS_KEPT:])


def known_errors(stored: str | None) -> list[dict[str, Any]]:
    """The records of a stored list; none if other code has written something else into the column."""
    try:
        known = json.loads(stored) if stored else []
        return [record for record in known if isinstance(record["attempt"], int)]
    except (ValueError, RecursionError, TypeError, LookupError):
        return []
