"""The lease protocol as one bare queue uses it: claim, settle, renew, each only while the queue is open."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from delayedq import results, signals
from delayedq.conf import get_settings
from delayedq.core.lifecycle import CENTURY, Ending
from delayedq.core.limits import NAME_LENGTH
from delayedq.exceptions import InvalidQueue, QueueClosed
from delayedq.store import default_store, store_for
from delayedq.store.protocol import Discard, Finish, Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from delayedq.store.protocol import Claimed, Condition, Store, Transition

#: Seconds between two tries to settle a message that somebody's transaction has locked.
BUSY_PAUSE = 0.02


class History(StrEnum):
    """What becomes of the messages that end."""

    KEEP = "keep"  #: each leaves a row in the history
    FAILURES = "failures"  #: only those that failed do: the dead letters
    NONE = "none"  #: none does, except what had to be set aside: it can't be read, or was delivered too often


class Acknowledgement(StrEnum):
    """What a settled message says to whoever settled it."""

    ACKNOWLEDGED = "acknowledged"  #: done as asked
    SUPERSEDED = "superseded"  #: it was replaced meanwhile, and its replacement is delivered once more
    LEASE_LOST = "lease_lost"  #: it is somebody else's, or gone; nothing was changed


class End(NamedTuple):
    """How a delivery ends. `reason`: why the message has failed for good, to be told if that takes effect."""

    transition: Transition
    reason: Exception | None = None


@dataclass(slots=True, kw_only=True)
class Leases:
    """lease: how long a claim holds. clock: the queue's time; None is the database's."""

    queue: str
    using: str | None
    lease: timedelta | None
    history: History
    clock: Callable[[], datetime] | None
    expires_at: datetime | None = None
    #: Set by signal handlers too, so it has no lock.
    _closed: bool = field(init=False, default=False)

    @property
    def store(self) -> Store:
        """Raises QueueClosed after the end of the queue."""
        if self._closed:
            raise QueueClosed(f"The queue {self.queue!r} is closed.")
        store = self._store()
        if self.expires_at is not None and (self.now() or store.now()) >= self.expires_at:
            raise QueueClosed(f"The queue {self.queue!r} expired at {self.expires_at}.")
        return store

    def _store(self) -> Store:
        return default_store() if self.using is None else store_for(self.using)

    @property
    def alias(self) -> str:
        return self._store().alias

    def close(self) -> None:
        self._closed = True

    def now(self) -> datetime | None:
        return None if self.clock is None else self.clock()

    def duration(self) -> timedelta:
        return self.lease or get_settings().LEASE

    def claim(self, limit: int, conditions: Sequence[Condition]) -> list[Claimed]:
        lane, lease, now = Lane(self.queue, 0), self.duration(), self.now()
        if conditions:
            return self.store.claim_matching(lane, conditions, limit, lease, consumer(), now)
        return self.store.claim([lane], limit, lease, consumer(), now)

    def settle(self, ends: Sequence[End], until: float) -> dict[int, Acknowledgement]:
        """What became of each, by id. `until` is the moment of `time.monotonic()` at which their leases end.

        What somebody's transaction has locked is tried again until then; after that it counts as lost.
        """
        answers = self._settle([end.transition for end in ends], until)
        for transition, reason in ends:
            if reason is not None and answers[transition.claimed.id] is Acknowledgement.ACKNOWLEDGED:
                _announce_failed(transition.claimed, reason)
        return answers

    def _settle(self, rest: Sequence[Transition], until: float) -> dict[int, Acknowledgement]:
        answers: dict[int, Acknowledgement] = {}
        while rest:
            settled = self.store.settle(rest, consumer(), self.now())
            for transition in rest:
                id_ = transition.claimed.id
                lost = id_ in settled.lost or (id_ in settled.busy and time.monotonic() >= until)
                if lost or id_ not in settled.busy:
                    answers[id_] = _answer(lost=lost, superseded=id_ in settled.superseded)
            rest = [transition for transition in rest if transition.claimed.id not in answers]
            if rest:
                time.sleep(BUSY_PAUSE)
        return answers

    def renew(self, claimed: Claimed, lease: timedelta) -> bool:
        return not self.store.renew([(claimed.id, claimed.token)], lease, self.now())

    def succeeded(self, claimed: Claimed, started: float | None) -> End:
        """`started`: so many seconds ago; None if nobody was given the message."""
        recorded = self.history is History.KEEP
        return End(Finish(claimed, Ending.SUCCEEDED, started, 0.0) if recorded else Discard(claimed))

    def failed(self, claimed: Claimed, started: float | None, reason: Exception, *, kept: bool = True) -> End:
        """`kept`: it is in the history whatever that is."""
        recorded = kept or self.history is not History.NONE
        finish = Finish(claimed, Ending.FAILED, started, 0.0, errors=errors_with(claimed, reason, started))
        return End(finish if recorded else Discard(claimed), reason)

    def set_aside(self, refused: Mapping[Claimed, Exception]) -> None:
        """End as failed what was claimed but can't be delivered."""
        ends = [self.failed(claimed, None, reason) for claimed, reason in refused.items()]
        self.settle(ends, time.monotonic() + self.duration().total_seconds())


def consumer() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"[:NAME_LENGTH]


def _announce_failed(claimed: Claimed, reason: Exception) -> None:
    error = f"{type(reason).__name__}: {results.text_of(reason)}"
    signals.message_failed.send_robust(claimed.kind, claimed=claimed, error=error)


def errors_with(claimed: Claimed, reason: Exception, seconds: float | None) -> str:
    return results.errors_with(claimed, reason, consumer(), seconds)


def check_duration(what: str, duration: object) -> None:
    """Raises InvalidQueue for what is no timedelta over zero, or over a century."""
    if not isinstance(duration, timedelta) or not 0 < duration.total_seconds() <= CENTURY:
        raise InvalidQueue(f"The {what} of a queue is a timedelta over zero, up to a century, not {duration!r}.")


def seconds_of(delay: timedelta | None) -> float | None:
    """Raises TypeError for what is no timedelta, ValueError for one below zero. Nothing waits longer than a century."""
    if delay is None:
        return None
    if not isinstance(delay, timedelta):
        raise TypeError(f"A delay is a timedelta, not {delay!r}.")
    if delay < timedelta(0):
        raise ValueError(f"A delay can't be negative: {delay}.")
    return min(delay.total_seconds(), CENTURY)


def _answer(*, lost: bool, superseded: bool) -> Acknowledgement:
    if lost:
        return Acknowledgement.LEASE_LOST
    return Acknowledgement.SUPERSEDED if superseded else Acknowledgement.ACKNOWLEDGED
