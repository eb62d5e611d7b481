"""What a live message does, as far as its own row tells: each state is said once, and judged in three ways.

`condition` is for statements, `operations.browsing` makes the queries of Django of the same terms, and `states_of`
judges a row that was read.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from delayedq.sql.leases import free, held, run_out

#: What a message is for the pipeline before it has ended; one whose lease ran out waits again.
LIVE_STATES = ("waiting", "leased")

#: What it is when it has ended: the outcomes of the history.
FINAL_STATES = ("succeeded", "failed", "cancelled", "expired", "superseded")


class MessageState(StrEnum):
    """What a live message does."""

    DUE = "due"  #: it could start now
    SCHEDULED = "scheduled"  #: it waits for its time, and has not been tried yet
    RETRYING = "retrying"  #: it was tried, and waits for its next attempt
    RUNNING = "running"  #: a worker holds it
    LOST = "lost"  #: its worker died or froze, and it was not claimed since
    PAUSED = "paused"  #: it is due, but its queue or its task is paused


class Terms(NamedTuple):
    """lease: "free", "held" or "run out". The others: whether that has to be so; None: it may be."""

    lease: str
    is_due: bool | None = None
    was_tried: bool | None = None
    is_paused: bool | None = None


TERMS = {
    MessageState.DUE: Terms("free", is_due=True),
    MessageState.SCHEDULED: Terms("free", is_due=False, was_tried=False),
    MessageState.RETRYING: Terms("free", was_tried=True),
    MessageState.RUNNING: Terms("held"),
    MessageState.LOST: Terms("run out"),
    MessageState.PAUSED: Terms("free", is_due=True, is_paused=True),
}

_LEASES = {"free": free, "held": held, "run out": run_out}

_PAUSED = "(queue IN (SELECT queue FROM delayedq_pausedqueue) OR kind IN (SELECT kind FROM delayedq_pausedtask))"


def condition(state: MessageState, message: str, now: str = "%(now)s") -> str:
    """The state as a condition on `delayedq_message`, which the statement calls `message`."""
    lease, is_due, was_tried, is_paused = TERMS[state]
    terms = [] if was_tried is None else ["attempt > 0" if was_tried else "attempt = 0"]
    if is_due is not None:
        terms.append(f"scheduled_at {'<=' if is_due else '>'} {now}")
    terms.append(_LEASES[lease](message, now))
    if is_paused:
        terms.append(_PAUSED)
    return " AND ".join(terms)


def states_of(lease: str, *, is_due: bool, was_tried: bool, is_paused: bool) -> set[MessageState]:
    """All states of one message of which this is known.

    >>> sorted(states_of("free", is_due=True, was_tried=True, is_paused=False))
    [<MessageState.DUE: 'due'>, <MessageState.RETRYING: 'retrying'>]
    """
    known = Terms(lease, is_due, was_tried, is_paused)
    return {
        state
        for state, terms in TERMS.items()
        if all(asked in {None, found} for asked, found in zip(terms, known, strict=True))
    }
