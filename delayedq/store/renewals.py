"""Renewing and releasing leases, also of messages whose rows somebody's open transaction has locked.

A renewal never waits for a row. The lease of a row that is locked is written beside it, into `LockedRenewal`, and every
claim of an expired lease looks there. That holds only if the renewal was committed before the lease ran out: a claim
that takes place later finds it then, as it reads its clock before it looks. What came too late is taken back.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from delayedq.store.channels.places_held import hold_longer, let_go
from delayedq.store.database import retry_on_deadlock
from delayedq.store.protocol import Released, Renewed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import timedelta

    from delayedq.store.database import Database

type Held = tuple[int, int]


class Renewals(ABC):
    database: Database

    def __init__(self) -> None:
        #: From when on there may be renewals beside locked rows to delete, by `time.monotonic()`; infinity: there are
        #: none. In a list, which all moments of this store share.
        self._sweep_at = [float("inf")]

    @retry_on_deadlock
    def renew(self, held: Sequence[Held], lease: timedelta) -> Renewed:
        """Extend the leases of (id, token) pairs, never shortening one.

        It waits for no lock of a row. Raises django.db.Error.
        """
        began = time.monotonic()
        skipped = self._renew(held, lease)
        self._sweep(began)
        left = {pair: seconds for pair, seconds in skipped.items() if seconds is not None}
        kept = self._renew_locked(left, lease, began) if left else set()
        lost = frozenset(skipped.keys() - left.keys())
        if lost:
            hold_longer(self, lost, lease)  # type: ignore[arg-type]  # this is the store
        return Renewed(lost, frozenset(left.keys() - kept))

    @retry_on_deadlock
    def release(self, held: Collection[Held]) -> Released:
        """Give back messages (id, token) that were never started, without charge: they are due again at once.

        It waits for no lock of a row: what is locked is in the answer's `busy`. Raises django.db.Error.
        """
        skipped = self._release(held) if held else {}
        busy = frozenset(pair for pair, is_held in skipped.items() if is_held)
        if lost := skipped.keys() - busy:
            let_go(self, lost)  # type: ignore[arg-type]  # this is the store
        return Released(frozenset(skipped) - busy, busy)

    @abstractmethod
    def _release(self, held: Collection[Held]) -> dict[Held, bool]:
        """Those of these pairs that were not released, and whether they still hold their message."""

    def _renew_locked(self, left: dict[Held, float], lease: timedelta, began: float) -> set[Held]:
        """Those of these pairs whose leases were renewed beside their locked rows; `left` says how long they held."""
        alive = sorted(pair for pair, seconds in left.items() if seconds > 0)
        if not alive or self.database.in_transaction:  # before its commit, nobody would see it
            return set()
        if self._sweep_at[0] == float("inf"):
            self.sweep()  # what another process has left
        self._keep_locked(alive, lease)
        took = time.monotonic() - began
        self._sweep_at[0] = began + took + lease.total_seconds()
        if late := [pair for pair in alive if left[pair] <= took]:
            self._forget_locked(late)
        return set(alive).difference(late)

    def _sweep(self, moment: float) -> None:
        if moment >= self._sweep_at[0]:
            self._sweep_at[0] = float("inf")
            self.sweep()

    def sweep(self) -> None:
        """Delete what has run out beside the rows, whoever wrote it: also what a process left that was killed.

        Lease keepers do so from time to time. Raises django.db.Error.
        """
        self._forget_expired()

    @abstractmethod
    def _renew(self, held: Sequence[Held], lease: timedelta) -> dict[Held, float | None]:
        """Renew those whose rows nobody has locked. Of the others: the seconds that are left; None if it is lost."""

    @abstractmethod
    def _keep_locked(self, held: Collection[Held], lease: timedelta) -> None:
        """Write these leases beside the rows."""

    @abstractmethod
    def _forget_locked(self, held: Collection[Held]) -> None:
        """Undo that."""

    @abstractmethod
    def _forget_expired(self) -> None:
        """Delete what has run out there."""
