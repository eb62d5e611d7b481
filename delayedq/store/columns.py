"""The columns of both tables: each list stands here, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayedq.limits.rules import BOUNDARY, LIMITED, METADATA_KEY
from delayedq.store.protocol import Claimed

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What an offer brings, but for its time.
OFFER = ("queue", "kind", "key", "priority", "max_attempts", "payload", "metadata")

#: What an offer writes.
MESSAGE = (*OFFER, "scheduled_at", "scheduled_at_initially", "created_at", "attempt", "generation")

#: What a claim reads, in the order of `Claimed`.
CLAIMED = tuple("lease_token" if name == "token" else name for name in Claimed._fields)

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


def given_priority(priority: str = "priority") -> str:
    """The priority that a live message was given, whether it has a channel or not (`limits.rules`)."""
    return f"CASE WHEN {priority} < {BOUNDARY} THEN {priority} + {LIMITED} ELSE {priority} END"


def moved_priority(new: str, priority: str = "priority") -> str:
    """What is stored of a new priority."""
    return f"{new} - CASE WHEN {priority} < {BOUNDARY} THEN {LIMITED} ELSE 0 END"


def revived_priority(table: str = "") -> str:
    """What is stored of the priority of an ended message that lives again; `table`: with a full stop."""
    has_channel = f"""{table}metadata LIKE '%%"{METADATA_KEY}":%%'"""
    return f"{table}priority - CASE WHEN {has_channel} THEN {LIMITED} ELSE 0 END"


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


def listed(columns: Iterable[str], **expressions: str) -> str:
    """The columns with commas between, each by its name or by the expression given for it.

    >>> listed(("id", "key"), key="lower(key)")
    'id, lower(key)'
    """
    return ", ".join(expressions.get(column, column) for column in columns)


def history(**expressions: str) -> str:
    """A history row made of a live message, which counts as cancelled where no expression says otherwise."""
    return listed(HISTORY, **_CANCELLED | expressions)
