"""The messages that a worker process has claimed and not settled yet; quarantined ones (poison) run alone."""

from __future__ import annotations

import time
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING

from delayedq.core.lifecycle import AskedSnooze, Impossible, NotStarted
from delayedq.exceptions import UnknownTask
from delayedq.tasks import task_at
from delayedq.worker.attempt import Attempt
from delayedq.worker.transitions import AttemptResult, is_spent, vanished, vanished_error

if TYPE_CHECKING:
    from collections.abc import Collection

    from delayedq.store.protocol import Claimed
    from delayedq.worker.pool import Pool
    from delayedq.worker.shared_leases import ClaimTimes, SharedLeases


#: A message whose worker vanished in 2 of its attempts may be poison (it kills its process): it runs alone.
QUARANTINE_AFTER = 2

#: It waits 1 s for the process to be idle; then it is snoozed for 10 s.
QUARANTINE_WAIT = 1.0

QUARANTINE_SNOOZE = timedelta(seconds=10)


class InFlight:
    """Belongs to the loop's thread. Each message has a slot in the shared leases, from `hold` to `drop`."""

    def __init__(self, pool: Pool, leases: SharedLeases, worker: str) -> None:
        self._pool = pool
        self._leases = leases
        self._worker = worker
        self.quarantined: deque[Attempt] = deque()
        self._alone: Attempt | None = None
        self._quarantined_since = 0.0
        #: How many messages this process has claimed and not yet settled.
        self.held = 0

    def take(self, claimed: Claimed, claim: ClaimTimes | None = None) -> AttemptResult | None:
        """Hand a message to the pool, or to the quarantine; returns a result if it can't run at all.

        claim: when it was claimed.
        """
        slot = self.hold(claimed)
        try:
            attempt = Attempt(claimed, task_at(claimed.kind), self._worker, self._leases, slot)
        except UnknownTask as error:
            return _refused(Attempt(claimed, None, self._worker, self._leases, slot), error)
        attempt.claim = claim
        if is_spent(claimed, attempt.task.spare_attempts):
            return _refused(attempt, vanished_error(claimed))
        if vanished(claimed) >= QUARANTINE_AFTER:
            self.quarantined.append(attempt)
            self._quarantined_since = time.monotonic()
        else:
            self._pool.submit(attempt)
        return None

    def hold(self, claimed: Claimed) -> int:
        """From now on the lease keeper renews it, or gives it back when this process has died."""
        self.held += 1
        return self._leases.hold(claimed.id, claimed.token)

    @property
    def quarantining(self) -> bool:
        """True if a message must run alone, or does so now."""
        return bool(self.quarantined) or self._alone is not None

    def is_alone(self, attempts: Collection[Attempt]) -> bool:
        """True if one of these is the quarantined message that runs alone: nothing is claimed until it ends."""
        return self._alone in attempts

    def can_admit(self) -> bool:
        """True if a quarantined message waits and the process is idle."""
        return bool(self.quarantined) and self._pool.idle()

    def admit_quarantined(self) -> None:
        """Start one quarantined message if the process is idle: if it kills the process, no other attempt is lost."""
        if self.can_admit():
            self._alone = self.quarantined.popleft()
            self._pool.submit(self._alone)

    def put_off_quarantined(self) -> list[AttemptResult]:
        """Snooze quarantined messages that waited too long for an idle process: nothing is claimed while they wait."""
        if not self.quarantined or time.monotonic() - self._quarantined_since < QUARANTINE_WAIT:
            return []
        later, moment = AskedSnooze(QUARANTINE_SNOOZE), time.monotonic()
        put_off = [AttemptResult(attempt, later, None, moment) for attempt in self.quarantined]
        self.quarantined.clear()
        return put_off

    def take_back(self) -> list[AttemptResult]:
        """Results, to be given back uncharged, for what was claimed and not started."""
        back = [*self._pool.take_back(), *self.quarantined]
        self.quarantined.clear()
        moment = time.monotonic()
        return [AttemptResult(attempt, NotStarted(), None, moment) for attempt in back]

    def drop(self, attempt: Attempt) -> None:
        """It is settled: free its slot."""
        self._leases.drop(attempt.slot)
        self.held -= 1
        if attempt is self._alone:
            self._alone = None


def _refused(attempt: Attempt, error: Exception) -> AttemptResult:
    return AttemptResult(attempt, Impossible(), None, time.monotonic(), error)
