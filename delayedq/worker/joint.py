"""Exactly once: what a task writes into the queue's database and the end of its message commit together, or not at all.

The message is claimed and leased as ever, and no row of the queue is locked while its task runs: the keeper renews its
lease meanwhile. The last act of the transaction ends the message under that lease, so nothing commits without it.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import Error, connections, transaction

from delayedq.core.lifecycle import Ending
from delayedq.exceptions import LeaseLost
from delayedq.models import Message
from delayedq.store import default_store
from delayedq.store.protocol import Finish
from delayedq.worker.waiter import RECONNECTING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayedq.core.lifecycle import Returned
    from delayedq.models import MessageQuerySet
    from delayedq.store.protocol import Settled
    from delayedq.worker.attempt import Attempt

logger = logging.getLogger("delayedq")

#: What somebody's open transaction has locked is tried again after so many seconds.
BUSY_PAUSE = 0.02


@contextmanager
def jointly(attempt: Attempt) -> Iterator[Joint]:
    """A transaction whose last act is `Joint.end`. Once it has committed, nothing that happens afterwards is raised."""
    joint = Joint(attempt)
    try:
        with transaction.atomic(using=joint.alias):
            transaction.on_commit(joint.confirm, using=joint.alias)
            yield joint
    except BaseException:
        if not joint.committed():
            raise
        logger.exception("%r has succeeded, but what followed its commit failed.", attempt)


class Joint:
    """One attempt whose effects and end share a transaction. `settled` is None until its end is written."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._store = default_store()
        self._confirmed = False
        self.alias = self._store.alias
        self.settled: Settled | None = None

    def end(self, outcome: Returned, started: float) -> None:
        """End the message as succeeded; `started` is a moment of `time.monotonic()`.

        Waits for a transaction that has locked it, as long as the lease lasts. Raises LeaseLost. A message that was
        replaced meanwhile is given back: the replacement is a message of its own, and what this attempt did stands.
        """
        settled = self._settle(outcome, started)
        while settled.busy and self._leased():
            time.sleep(BUSY_PAUSE)
            settled = self._settle(outcome, started)
        if settled.lost or settled.busy:
            raise LeaseLost("Its lease ended before it did: what it wrote was rolled back.")
        self.settled = settled

    def _settle(self, outcome: Returned, started: float) -> Settled:
        age = time.monotonic() - started
        finish = Finish(self._attempt.claimed, Ending.SUCCEEDED, age, 0.0, outcome.result)
        return self._store.settle([finish], self._attempt.worker)

    def _leased(self) -> bool:
        return self._held().leased().exists()

    def _held(self) -> MessageQuerySet:
        claimed = self._attempt.claimed
        return Message.objects.using(self.alias).filter(id=claimed.id, lease_token=claimed.token)

    def _given_back(self) -> bool:
        """A message that was replaced has no history of its own: the commit has taken the lease from it."""
        return self.settled is not None and bool(self.settled.superseded) and not self._held().exists()

    def confirm(self) -> None:
        """The first thing to be called after the commit."""
        self._confirmed = True

    def committed(self) -> bool:
        """Did it commit, whatever went wrong since its end was written?"""
        return self._confirmed or (self.settled is not None and self._recorded())

    def _recorded(self) -> bool:
        """The connection was lost in the commit: ask a new one what became of the message, as soon as there is one.

        If the commit is still under way somewhere, the answer is no. That does no harm: the failure that follows is
        settled under the lease, which the commit takes away.
        """
        failures = 0
        while True:
            try:
                connections[self.alias].close()
                return bool(self._store.finished([self._attempt.id])) or self._given_back()
            except Error:
                failures += 1
                time.sleep(RECONNECTING(failures).total_seconds())
