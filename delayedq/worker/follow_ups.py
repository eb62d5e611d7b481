"""What a task has enqueued where one of its messages ends or is given back: `on_success`, `on_failure`, `on_retry`.

The messages are made here, and stored by `Store.settle`, in the transaction that ends the message: both or neither.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from delayedq.core.lifecycle import FinalOutcome
from delayedq.store.channels.offers import as_stored
from delayedq.store.offers import check
from delayedq.tasks import current_attempt

if TYPE_CHECKING:
    from delayedq.core.lifecycle import Decision
    from delayedq.store.protocol import Offer
    from delayedq.tasks import Task
    from delayedq.worker.attempt import Attempt

logger = logging.getLogger("delayedq")


def follow_up_of(attempt: Attempt, decided: Decision) -> Task[..., Any] | None:
    """The task that follows this decision; None if there is none."""
    if not attempt.is_known:
        return None
    match decided.outcome:
        case FinalOutcome.SUCCEEDED:
            return cast("Task[..., Any] | None", attempt.task.on_success)
        case FinalOutcome.FAILED:
            return cast("Task[..., Any] | None", attempt.task.on_failure)
        case None if decided.charged:
            return cast("Task[..., Any] | None", attempt.task.on_retry)
    return None


def follow_ups(attempt: Attempt, decided: Decision) -> tuple[Offer, ...]:
    """The messages to store with this decision."""
    task = follow_up_of(attempt, decided)
    return () if task is None else _messages(attempt, task)


def _messages(attempt: Attempt, task: Task[..., Any]) -> tuple[Offer, ...]:
    context = current_attempt.set(attempt)  # they are the attempt's, as what its task enqueues
    try:
        # An end waits for no producer and is not refused: a follow-up is stored also where its limit is full.
        offer = task.offer([str(attempt.id)], {}, when=task.run_after)._replace(sizes=())
        check(as_stored(offer))  # in the transaction of the end it would be too late
    except Exception:
        logger.exception("%r ends without what follows: no message of %s can be made.", attempt, task.name)
        return ()
    else:
        return (offer,)
    finally:
        current_attempt.reset(context)
