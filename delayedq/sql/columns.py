"""The columns of both tables: each list stands here, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayedq.sql.priority import given_priority

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What an offer brings, but for its time.
OFFER = ("queue", "kind", "key", "priority", "max_attempts", "payload", "metadata")

#: What an offer writes.
MESSAGE = (*OFFER, "scheduled_at", "scheduled_at_initially", "created_at", "attempt", "generation")

#: What a claim reads, in the order of `store.protocol.Claimed`.
CLAIMED = (
    *("id", "lease_token", "generation", "queue", "kind", "key", "priority", "attempt", "max_attempts"),
    *("scheduled_at", "scheduled_at_initially", "created_at", "payload", "metadata", "errors"),
)

#: The times among them, which each store reads in a way of its own.
CLAIMED_TIMES = ("scheduled_at", "scheduled_at_initially", "created_at")

#: What a dead letter or a cancelled message takes back into the queue.
REVIVED = (
    *("id", "scheduled_at", "scheduled_at_initially", "created_at", "generation", "priority", "attempt"),
    *("max_attempts", "queue", "kind", "key", "payload", "metadata", "errors"),
)

HISTORY = (
    *("id", "finished_at", "started_at", "scheduled_at", "scheduled_at_initially", "created_at", "priority"),
    *("attempts", "max_attempts", "outcome", "queue", "kind", "key", "worker", "payload", "metadata", "result"),
    *("errors", "error", "fingerprint"),
)


#: What only success has, and what only a dead letter has.
NO_RESULT = {"result": "NULL", "error": "NULL", "fingerprint": "NULL"}

#: The history of a live message that was cancelled before it started.
_CANCELLED = {
    "started_at": "NULL",
    "attempts": "attempt",
    "priority": given_priority(),
    "outcome": "'cancelled'",
    "worker": "leased_by",
    **NO_RESULT,
}


def one_more(attempt: str = "attempt", least: str = "least") -> str:
    """The number of the next attempt, up to the end of its column: an error there would take the whole claim back."""
    return f"{least}({attempt}, 32766) + 1"


def listed(columns: Iterable[str], **expressions: str) -> str:
    """The columns with commas between, each by its name or by the expression given for it.

    >>> listed(("id", "key"), key="lower(key)")
    'id, lower(key)'
    """
    return ", ".join(expressions.get(column, column) for column in columns)


def history(**expressions: str) -> str:
    """A history row made of a live message, which counts as cancelled where no expression says otherwise."""
    return listed(HISTORY, **_CANCELLED | expressions)
