"""What becomes of the messages that a dead worker process held."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from delayedq import results
from delayedq.core.backoff import Exponential
from delayedq.exceptions import WorkerHung
from delayedq.models import Message
from delayedq.store.protocol import Claimed, GiveBack

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import timedelta

    from delayedq.store.base import Store
    from delayedq.worker.shared_leases import Entry, SharedLeases

#: A claim that was under way when its worker died may commit later: seconds until the first search for what it leased.
#: The next ones wait twice as long each, until the lease is over.
FIRST_SEARCH = 1.0
#: How a message that had started in a process that hung waits for its next attempt.
BACKOFF = Exponential()


class _Claims(NamedTuple):
    """Claims of a dead worker: what they leased is released, except what had started."""

    tokens: list[int]
    started: frozenset[int]
    until: float
    search_at: float
    pause: float


class Releases:
    """Belongs to the lease keeper. Every verb raises django.db.Error, and may be repeated after that."""

    def __init__(self, store: Store, lease: timedelta) -> None:
        self._store = store
        self._lease = lease.total_seconds()
        self._late: list[_Claims] = []

    def release(self, entries: Collection[Entry]) -> None:
        """Give these back uncharged."""
        if entries:
            self._store.release([(entry.id, entry.token) for entry in entries])

    def release_all_of(self, leases: SharedLeases, *, all_of_it: bool, reason: str) -> None:
        """Release what a process held that has ended; its shared leases are cleared afterwards.

        Uncharged: what it had not started, and with `all_of_it` the rest. With a `reason` the rest is charged, and the
        reason goes into its errors. Otherwise it is left to its lease.
        """
        entries = leases.entries()
        self.release([entry for entry in entries if all_of_it or not entry.started])
        started = [entry for entry in entries if entry.started]
        if reason and not all_of_it:
            self._charge(started, reason, leases.pid)
        if tokens := leases.claims():
            moment, ids = time.monotonic(), frozenset(entry.id for entry in started)
            claims = _Claims(tokens, ids, moment + self._lease, moment + FIRST_SEARCH, FIRST_SEARCH)
            self._release_claims(claims)
            self._late.append(claims)

    def due_in(self) -> float:
        """Seconds until the next search."""
        return min((claims.search_at for claims in self._late), default=inf) - time.monotonic()

    def release_late(self) -> None:
        """Release what claims have leased that committed after their worker had died."""
        for claims in [claims for claims in self._late if claims.search_at <= time.monotonic()]:
            self._release_claims(claims)
            self._late.remove(claims)
            if claims.search_at < claims.until:
                pause = 2 * claims.pause
                self._late.append(claims._replace(search_at=time.monotonic() + pause, pause=pause))

    def _release_claims(self, claims: _Claims) -> None:
        """The shared leases may not have them yet. Reads the whole table: lease columns are in no index."""
        leased = Message.objects.using(self._store.alias).filter(lease_token__in=claims.tokens)
        found = leased.exclude(id__in=claims.started).values_list("id", "lease_token")
        if held := [(id_, token) for id_, token in found if token is not None]:
            self._store.release(held)

    def _charge(self, started: Sequence[Entry], reason: str, pid: int) -> None:
        tokens = {entry.id: entry.token for entry in started}
        rows = Message.objects.using(self._store.alias).filter(id__in=tokens)
        claims = [_claimed(row) for row in rows if row.lease_token == tokens[row.id]]
        worker = f"pid {pid}"
        returns = [
            GiveBack(
                claimed,
                charged=True,
                started=0.0,
                delay=BACKOFF(claimed.attempt).total_seconds(),
                errors=results.errors_with(claimed, WorkerHung(reason), worker, None),
            )
            for claimed in claims
        ]
        if returns:
            self._store.settle(returns, worker)


def _claimed(row: Message) -> Claimed:
    fields = {name: getattr(row, name) for name in Claimed._fields if name != "token"}
    assert row.lease_token is not None
    return Claimed(token=row.lease_token, **fields)
