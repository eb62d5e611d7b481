"""Rolling deploys: a message that this version of the code can't run is left to workers of the other version."""

from __future__ import annotations

import logging
import os
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from django.utils import timezone

from delayedq.core.lifecycle import Impossible, NotStarted
from delayedq.exceptions import ArgumentsMismatch, UnknownTask
from delayedq.tasks.registry import unknown_task

if TYPE_CHECKING:
    from delayedq.worker.executor import AttemptResult
    from delayedq.worker.lanes import Lanes

logger = logging.getLogger("delayedq")

#: Seconds until a message is offered again that this worker can't run: as long as it is due by now, in these bounds.
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 60.0


class _Refused(NamedTuple):
    """When this worker first refused a message of this kind (moments of `time.monotonic()`), and when last."""

    first: float
    last: float


class DeployGrace:
    """Belongs to the loop. A message is set aside if it has been due, and its kind been refused here, for `grace`."""

    def __init__(self, grace: timedelta, lanes: Lanes) -> None:
        self._grace = grace.total_seconds()
        #: Refusals that are this far apart are not of the same deploy.
        self._forget = max(self._grace, 2 * LONGEST_PAUSE)
        self._lanes = lanes
        self._kinds: dict[str, _Refused] = {}
        self._left_alone: set[str] = set()

    def judge(self, result: AttemptResult) -> AttemptResult:
        """The result, or within the grace period one that gives the message back, uncharged and after a pause."""
        if not (isinstance(result.outcome, Impossible) and isinstance(result.error, UnknownTask | ArgumentsMismatch)):
            return result
        attempt = result.attempt
        refused_for, due_for = self._refused_for(attempt.kind), _age(attempt.scheduled_at_initially)
        if min(refused_for, due_for) >= self._grace:
            return result
        if refused_for == 0:
            logger.warning(
                "This worker can't run %s; it gives its messages back for %.0f s, as another version may. %s",
                attempt.kind, self._grace, result.error,
                extra={"pid": os.getpid(), "queue": attempt.queue, "message_id": attempt.id},
            )  # fmt: skip
        pause = min(LONGEST_PAUSE, max(SHORTEST_PAUSE, min(refused_for, due_for)))
        self._lanes.yield_to_others(attempt.queue, attempt.claimed.priority, pause)
        return result._replace(outcome=NotStarted(timedelta(seconds=pause)), started=None)

    def leave_alone(self, queue: str, kind: str) -> None:
        """Say once of a task with a channel or a limit that it is not known here: its messages are not claimed."""
        if kind in self._left_alone:
            return
        self._left_alone.add(kind)
        logger.warning(
            "This worker leaves messages of %s alone, which are due and have a channel or a limit. %s",
            kind, unknown_task(kind),
            extra={"pid": os.getpid(), "queue": queue},
        )  # fmt: skip

    def _refused_for(self, kind: str) -> float:
        """Seconds since the first refusal of this deploy."""
        moment = time.monotonic()
        refused = self._kinds.get(kind)
        first = moment if refused is None or moment - refused.last > self._forget else refused.first
        self._kinds[kind] = _Refused(first, moment)
        return moment - first


def _age(due_at: datetime) -> float:
    now = timezone.now() if due_at.tzinfo is None else datetime.now(UTC)  # a store without time zones has naive times
    return (now - due_at).total_seconds()
