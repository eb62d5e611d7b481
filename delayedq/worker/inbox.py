"""What a worker process holds, from the claim to the settled end; and who of it may run."""

from __future__ import annotations

import time
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from delayedq.core.lifecycle import AskedSnooze, Impossible, NotStarted
from delayedq.exceptions import UnknownTask, WorkerVanished
from delayedq.tasks import Task, task_at
from delayedq.worker.attempt import Attempt
from delayedq.worker.executor import Ended
from delayedq.worker.transitions import vanished

if TYPE_CHECKING:
    from delayedq.store.protocol import Claimed
    from delayedq.worker.ledger import Ledger
    from delayedq.worker.pool import Pool

#: A message whose worker vanished so often is suspected of it, and runs alone.
SUSPECT_AFTER = 2
#: It waits so many seconds for the process to be idle; then it is put off.
SUSPECTS_WAIT = 1.0
SUSPECTS_STAY_AWAY = timedelta(seconds=10)


class Inbox:
    def __init__(self, pool: Pool, ledger: Ledger, worker: str) -> None:
        self._pool = pool
        self._ledger = ledger
        self._worker = worker
        self.suspects: deque[Attempt] = deque()
        self._alone: Attempt | None = None
        self._suspected_since = 0.0
        #: How many messages this process has claimed and not yet settled.
        self.held = 0

    def beat(self) -> None:
        """Tell the lease keeper that the loop turns."""
        self._ledger.beat()

    def take(self, claimed: Claimed) -> Ended | None:
        """Hand a message to the pool; or refuse it at once, if no attempt could help."""
        slot = self.hold(claimed)
        try:
            attempt = Attempt(claimed, task_at(claimed.kind), self._worker, self._ledger, slot)
        except UnknownTask as error:
            nobody = cast("Task[..., Any]", None)
            return _refused(Attempt(claimed, nobody, self._worker, self._ledger, slot), error)
        return self._admit(attempt, vanished(claimed))

    def hold(self, claimed: Claimed) -> int:
        """It is ours from now on: the lease keeper renews it, or gives it back when this process is gone."""
        self.held += 1
        return self._ledger.hold(claimed.id, claimed.token)

    @property
    def suspecting(self) -> bool:
        """Is there a message that must run alone, or is one running?"""
        return bool(self.suspects) or self._alone is not None

    def _admit(self, attempt: Attempt, times_vanished: int) -> Ended | None:
        if attempt.attempt > attempt.max_attempts and times_vanished:
            return _refused(attempt, WorkerVanished(f"Its worker vanished in {times_vanished} of its attempts."))
        if times_vanished >= SUSPECT_AFTER:
            self.suspects.append(attempt)
            self._suspected_since = time.monotonic()
        else:
            self._pool.submit(attempt)
        return None

    def can_admit(self) -> bool:
        return bool(self.suspects) and self._pool.idle()

    def admit_suspect(self) -> None:
        """A message that may kill its process runs alone, so that it takes no others along."""
        if self.can_admit():
            self._alone = self.suspects.popleft()
            self._pool.submit(self._alone)

    def put_off_suspects(self) -> list[Ended]:
        """While tasks run for long, suspects come back later: claiming must not wait for them."""
        if not self.suspects or time.monotonic() - self._suspected_since < SUSPECTS_WAIT:
            return []
        later, moment = AskedSnooze(SUSPECTS_STAY_AWAY), time.monotonic()
        put_off = [Ended(attempt, later, None, moment) for attempt in self.suspects]
        self.suspects.clear()
        return put_off

    def take_back(self) -> list[Ended]:
        """What was claimed and not started, to be given back."""
        back = [*self._pool.take_back(), *self.suspects]
        self.suspects.clear()
        moment = time.monotonic()
        return [Ended(attempt, NotStarted(), None, moment) for attempt in back]

    def drop(self, attempt: Attempt) -> None:
        """Its end is settled."""
        self._ledger.drop(attempt.slot)
        self.held -= 1
        if attempt is self._alone:
            self._alone = None


def _refused(attempt: Attempt, error: Exception) -> Ended:
    return Ended(attempt, Impossible(), None, time.monotonic(), error)
