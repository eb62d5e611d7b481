"""Release the messages that a dead worker process held."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

from delayedq import results
from delayedq.core.backoff import RELEASING, SEARCHING, Exponential
from delayedq.exceptions import WorkerHung
from delayedq.models import Message
from delayedq.store.protocol import Claimed, GiveBack

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import timedelta

    from delayedq.store.base import LeaseId, Store
    from delayedq.worker.shared_leases import Entry, SharedLeases, SharedReleases

#: Seconds between two searches, at least.
TURN = 1.0
#: How a message that had started in a process that hung waits for its next attempt.
BACKOFF = Exponential()


class Releases:
    """Belongs to the lease keeper. Every verb raises django.db.Error, and may be repeated after that.

    What a transaction has locked stays `held`, to be renewed, until it is free.
    """

    def __init__(self, store: Store, lease: timedelta, shared: SharedReleases) -> None:
        self._store = store
        self._lease = lease.total_seconds()
        self._unreleased = shared.unreleased
        self._claims = shared.claims
        #: By worker: what had started in a process that hung, to be charged.
        self._uncharged: dict[str, list[GiveBack]] = {}
        #: How often in a row some were busy, and how many searches there were since the last death.
        self._busy = self._searches = 0
        self._retry_at = self._search_at = 0.0

    def held(self) -> set[LeaseId]:
        """Messages (id, token) of dead workers that are not given back yet: no worker may claim them before."""
        uncharged = [back.claimed for returns in self._uncharged.values() for back in returns]
        return {*self._unreleased, *((claimed.id, claimed.token) for claimed in uncharged)}

    def lost(self, held: Collection[LeaseId]) -> None:
        """Others have ended these, or hold them."""
        self._unreleased.discard(held)

    def is_over(self, *, late: bool) -> bool:
        """True if nothing is left to give back; `late`: and no claim may commit any more."""
        return not (self._unreleased or self._uncharged or (late and self._claims))

    def due_in(self) -> float:
        """Seconds until the next try or search."""
        due = inf
        if self._unreleased or self._uncharged:
            due = self._retry_at
        if self._claims:
            due = min(due, self._search_at)
        return due - time.monotonic()

    def go_on(self) -> None:
        """Try again what was busy, and search for what claims have leased that committed late."""
        moment = time.monotonic()
        if (self._unreleased or self._uncharged) and moment >= self._retry_at:
            self._retry()
        if self._claims and moment >= self._search_at:
            self._search(moment)

    def release(self, entries: Iterable[Entry]) -> None:
        """Give these back uncharged; what is locked, as soon as it is free."""
        self._release({(entry.id, entry.token) for entry in entries})

    def release_all_of(self, leases: SharedLeases, *, all_of_it: bool, reason: str) -> bool:
        """Release what a process held that has ended; its shared leases may be cleared afterwards.

        Uncharged: what it had not started, and with `all_of_it` the rest. With a `reason` the rest is charged, and the
        reason goes into its errors. Otherwise it is left to its lease. Returns False if so much is locked that it can't
        be remembered elsewhere: call it again later.
        """
        entries, tokens = leases.entries(), leases.claims()
        started = {(entry.id, entry.token) for entry in entries if entry.started and not all_of_it}
        # A claim of which something was entered is over; of others, more may come.
        late = set(tokens).difference(entry.token for entry in entries)
        held = {(entry.id, entry.token) for entry in entries} | self._leased_by(tokens)
        released = self._release(held - started) and self.expect(late)
        if reason:
            self._charge(started, reason)
        return released

    def expect(self, tokens: Collection[int]) -> bool:
        """Search for what these claims may lease later; False if there is no room to remember them."""
        if not tokens:
            return True
        moment = time.monotonic()
        known = {token for token, _ in self._claims}
        until = int((moment + self._lease) * 1000)
        claims = [(token, until) for token in set(tokens) - known]
        if not self._claims.has_room_for(claims):
            return False
        if claims:
            soon = moment + SEARCHING(1).total_seconds()
            self._searches, self._search_at = 1, min(soon, self._search_at) if known else soon
            self._claims.add(claims)
        return True

    def _release(self, held: set[LeaseId]) -> bool:
        """False if some are locked and there is no room to remember them."""
        if not self._unreleased.has_room_for(held):
            return not self._give_back(held)
        if held:
            self._unreleased.add(held)  # before it is tried: neither an error nor the keeper's end loses them
            self._retry()
        return True

    def _retry(self) -> None:
        if held := set(self._unreleased):
            self._unreleased.discard(held - self._give_back(held))
        for worker, returns in list(self._uncharged.items()):
            busy = self._store.settle(returns, worker).busy
            self._uncharged[worker] = [back for back in returns if back.claimed.id in busy]
            if not busy:
                del self._uncharged[worker]
        self._busy = self._busy + 1 if self._unreleased or self._uncharged else 0
        self._retry_at = time.monotonic() + RELEASING(max(1, self._busy)).total_seconds()

    def _give_back(self, held: set[LeaseId]) -> frozenset[LeaseId]:
        """Wakes idle workers for what is due now; returns what is busy."""
        released = self._store.release(held)
        if held - released.lost - released.busy:
            self._store.notify()
        return released.busy

    def _search(self, moment: float) -> None:
        """Release what claims that were under way at a worker's end have leased since; last when their leases end."""
        if self._release(self._leased_by(token for token, _ in self._claims)):
            self._claims.discard([claim for claim in self._claims if claim[1] <= moment * 1000])
        self._searches += 1
        ends = min((until / 1000 for _, until in self._claims), default=inf)
        self._search_at = min(max(ends, moment + TURN), moment + SEARCHING(self._searches).total_seconds())

    def _leased_by(self, tokens: Iterable[int]) -> set[LeaseId]:
        """What these claims lease now. Reads the whole table of live messages: lease columns are in no index."""
        if not (wanted := list(tokens)):
            return set()
        rows = Message.objects.using(self._store.alias).filter(lease_token__in=wanted)
        return {(id_, token) for id_, token in rows.values_list("id", "lease_token") if token is not None}

    def _charge(self, started: set[LeaseId], reason: str) -> None:
        rows = Message.objects.using(self._store.alias).filter(id__in=[id_ for id_, _ in started])
        for row in rows:
            if (row.id, row.lease_token) in started - self.held():
                self._uncharged.setdefault(row.leased_by or "", []).append(_charged(row, reason))
        self._retry()


def _charged(row: Message, reason: str) -> GiveBack:
    fields = {name: getattr(row, name) for name in Claimed._fields if name != "token"}
    assert row.lease_token is not None
    claimed = Claimed(token=row.lease_token, **fields)
    errors = results.errors_with(claimed, WorkerHung(reason), row.leased_by or "", None)
    delay = BACKOFF(claimed.attempt).total_seconds()
    return GiveBack(claimed, charged=True, started=0.0, delay=delay, errors=errors)
