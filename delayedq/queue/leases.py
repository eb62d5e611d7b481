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
from delayedq.core.bounds import NAME_LENGTH
from delayedq.core.lifecycle import CENTURY, FinalOutcome
from delayedq.exceptions import InvalidQueue, QueueClosed
from delayedq.limits.channels import Channels
from delayedq.masking import error_text
from delayedq.sql.priority import LIMITED
from delayedq.store import default_store, store_for
from delayedq.store.claim_tokens import BUSY_PAUSE
from delayedq.store.protocol import ClaimRequest, Discard, Finish, Lane, Renewed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from delayedq.limits.of_queues import QueueChannels
    from delayedq.limits.requests import Rules
    from delayedq.queue.filters import Filter
    from delayedq.store.base import Store
    from delayedq.store.protocol import Claimed, Settled, Transition


class History(StrEnum):
    """Which messages leave a row in the history when they end."""

    KEEP = "keep"  #: all
    FAILURES = "failures"  #: only those that failed: the dead letters
    NONE = "none"  #: only those that the queue had to set aside: unreadable, or delivered max_attempts times


class Acknowledgement(StrEnum):
    """The result of settling a message."""

    ACKNOWLEDGED = "acknowledged"  #: it took effect
    SUPERSEDED = "superseded"  #: the message was replaced while leased; its replacement is delivered once more
    LEASE_LOST = "lease_lost"  #: another consumer has the message, or it ended; nothing was changed
    #: Another transaction kept it locked until the lease ran out; nothing was changed: the verb may be called again.
    BUSY = "busy"


class Settlement(NamedTuple):
    """How a delivery ends. `reason`: why the message failed, for `signals.message_failed` if this takes effect."""

    transition: Transition
    reason: Exception | None = None


@dataclass(slots=True, kw_only=True)
class Leases:
    """The leases of one queue.

    priorities: those of its lanes, the most urgent first. lease: how long a claim holds. clock: the queue's time; None
    is the database's. channels: those that its messages wait in.
    """

    queue: str
    priorities: tuple[int, ...]
    using: str | None
    lease: timedelta | None
    history: History
    clock: Callable[[], datetime] | None
    channels: QueueChannels
    #: In how many seconds the channels may have something, as the last claim found; None: when something is offered.
    channels_due_in: float | None = field(init=False, default=None)
    expires_at: datetime | None = None
    #: Also set by signal handlers, hence without a lock.
    _closed: bool = field(init=False, default=False)

    @property
    def store(self) -> Store:
        """The store, at this moment of the queue's clock. Raises QueueClosed after it was closed or has expired."""
        if self._closed:
            raise QueueClosed(f"The queue {self.queue!r} is closed.")
        store = self._store().at(self.now())
        if self.expires_at is not None and store.now() >= self.expires_at:
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

    def lanes(self, watermark: datetime | None = None) -> list[Lane]:
        return [Lane(self.queue, priority, watermark) for priority in self.priorities]

    @property
    def has_channels(self) -> bool:
        return self.channels.rules(self.queue) is not None

    def all_lanes(self) -> list[Lane]:
        """Also those in which messages with a channel wait, which no ordinary claim may read."""
        return [*self.lanes(), *(Lane(self.queue, priority - LIMITED) for priority in self.priorities)]

    def claim(self, limit: int, chosen: Filter, lease: timedelta) -> list[Claimed]:
        if not self.has_channels:
            return self._claim(limit, chosen, lease)
        if chosen:
            raise InvalidQueue(f"{self.queue!r} has channels, which take turns: browse it with a filter, poll without.")
        asked = Channels.of(self.store).claim_at_last(self._rules, limit, lease, consumer())
        self.channels_due_in = asked.due_in
        room = limit - len(asked.claimed)  # for what was offered before there were channels
        return [*asked.claimed, *self._claim(room, chosen, lease)] if room else asked.claimed

    def _rules(self, queue: str, kind: str) -> Rules | None:
        return self.channels.rules(queue) if queue == kind == self.queue else None

    def _claim(self, limit: int, chosen: Filter, lease: timedelta) -> list[Claimed]:
        if not chosen:
            return self.store.claim(ClaimRequest(self.lanes(), limit, lease, consumer()))
        claimed: list[Claimed] = []
        for lane in self.lanes():
            if len(claimed) < limit:
                room, (conditions, keys) = limit - len(claimed), (chosen.conditions, chosen.keys)
                claimed += self.store.claim_matching(lane, conditions, room, lease, consumer(), keys)
        return claimed

    def settle(self, ends: Sequence[Settlement], until: float) -> dict[int, Acknowledgement]:
        """Settle messages and return their answers by id. `until`: when their leases end, in `time.monotonic()`.

        Messages that another transaction has locked are tried again until then; afterwards they are BUSY.
        """
        answers = self._settle([end.transition for end in ends], until)
        for transition, reason in ends:
            if reason is not None and answers[transition.claimed.id] is Acknowledgement.ACKNOWLEDGED:
                _signal_failure(transition.claimed, reason)
        return answers

    def _settle(self, rest: Sequence[Transition], until: float) -> dict[int, Acknowledgement]:
        settled = self.store.settle_waiting(rest, consumer(), lambda: time.monotonic() < until)
        return {transition.claimed.id: _answer(transition.claimed.id, settled) for transition in rest}

    def renew(self, claimed: Claimed, lease: timedelta, until: float) -> bool:
        """Returns whether it was extended. A locked row is tried again until this moment of `time.monotonic()`."""
        pair = [(claimed.id, claimed.token)]
        renewed = self.store.renew(pair, lease)
        while renewed.busy and time.monotonic() < until:
            time.sleep(BUSY_PAUSE)
            renewed = self.store.renew(pair, lease)
        return renewed == Renewed()

    def succeeded(self, claimed: Claimed, started: float | None) -> Settlement:
        """`started`: seconds since the poll; None if the message was not handed out."""
        recorded = self.history is History.KEEP
        return Settlement(Finish(claimed, FinalOutcome.SUCCEEDED, started, 0.0) if recorded else Discard(claimed))

    def failed(self, claimed: Claimed, started: float | None, reason: Exception, *, kept: bool = True) -> Settlement:
        """`kept`: recorded even with History.NONE."""
        recorded = kept or self.history is not History.NONE
        finish = Finish(claimed, FinalOutcome.FAILED, started, 0.0, errors=errors_with(claimed, reason, started))
        return Settlement(finish if recorded else Discard(claimed), reason)

    def set_aside(self, refused: Mapping[Claimed, Exception]) -> None:
        """End messages as failed that were claimed but can't be delivered."""
        ends = [self.failed(claimed, None, reason) for claimed, reason in refused.items()]
        self.settle(ends, time.monotonic() + self.duration().total_seconds())


def consumer() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"[:NAME_LENGTH]


def _signal_failure(claimed: Claimed, reason: Exception) -> None:
    error = f"{type(reason).__name__}: {results.text_of(reason, error_text(claimed.kind, claimed.payload))}"
    signals.tell(signals.message_failed, claimed.kind, claimed=claimed, error=error)


def errors_with(claimed: Claimed, reason: Exception, seconds: float | None) -> str:
    return results.errors_with(claimed, reason, consumer(), seconds)


def check_duration(what: str, duration: object) -> None:
    """Raises InvalidQueue unless it is a timedelta above zero, at most a century."""
    if not isinstance(duration, timedelta) or not 0 < duration.total_seconds() <= CENTURY:
        raise InvalidQueue(f"The {what} of a queue is a timedelta over zero, up to a century, not {duration!r}.")


def seconds_of(delay: timedelta | None) -> float | None:
    """The delay in seconds, at most a century. Raises TypeError for no timedelta, ValueError for one below zero."""
    if delay is None:
        return None
    if not isinstance(delay, timedelta):
        raise TypeError(f"A delay is a timedelta, not {delay!r}.")
    if delay < timedelta(0):
        raise ValueError(f"A delay can't be negative: {delay}.")
    return min(delay.total_seconds(), CENTURY)


def _answer(id_: int, settled: Settled) -> Acknowledgement:
    if id_ in settled.lost:
        return Acknowledgement.LEASE_LOST
    if id_ in settled.busy:
        return Acknowledgement.BUSY
    return Acknowledgement.SUPERSEDED if id_ in settled.superseded else Acknowledgement.ACKNOWLEDGED
