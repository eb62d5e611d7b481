"""Exactly once: what a task writes into the queue's database and the end of its message commit together.

The message is claimed and leased like any other, and no row of the queue is locked while its task runs: the keeper
renews its lease. The last statement of the transaction ends the message under that lease: nothing commits without
it.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

from django.db import Error, connections, transaction

from delayedq.core.backoff import RECONNECTING
from delayedq.core.lifecycle import (
    Decision,
    FinalOutcome,
    Returned,
)
from delayedq.exceptions import (
    LeaseLost,
)
from delayedq.models import Message
from delayedq.store import served_store
from delayedq.store.protocol import Finish, Settled
from delayedq.worker.reporting import write_last

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from delayedq.models import MessageQuerySet
    from delayedq.store.protocol import Claimed
    from delayedq.worker.attempt import Attempt
from delayedq.worker.transitions import follow_ups

logger = logging.getLogger("delayedq")


@contextmanager
def exactly_once(attempt: Attempt) -> Iterator[ExactlyOnceCommit]:
    """A transaction whose last statement is that of `ExactlyOnceCommit.end`. Errors after its commit are logged."""
    commit = ExactlyOnceCommit(attempt)
    try:
        with watched_transaction(attempt.asking, commit.alias):
            transaction.on_commit(commit.confirm, using=commit.alias)
            yield commit
    except BaseException as error:
        if not commit.committed():
            attempt.written = None  # that was rolled back
            if isinstance(error, LeaseLost):
                with attempt.asking:
                    refuse_own_end(attempt.claimed, commit.alias)
            raise
        logger.exception("%r has succeeded, but what followed its commit failed.", attempt)


@contextmanager
def watched_transaction(asking: AbstractContextManager[None], alias: str, *, durable: bool = False) -> Iterator[None]:
    """`transaction.atomic()`. `asking` is entered around its BEGIN, and around its COMMIT or ROLLBACK, but not around
    its body and what follows the commit, which may take their time.
    """
    leave = partial(asking.__exit__, None, None, None)
    with ExitStack() as stack:
        stack.callback(leave)
        with asking:
            stack.enter_context(transaction.atomic(using=alias, durable=durable))
        if not isinstance(asking, nullcontext):  # tests of users capture callbacks, and count their own
            transaction.on_commit(leave, using=alias)
        stack.callback(asking.__enter__)
        yield


def refuse_own_end(claimed: Claimed, alias: str) -> None:
    """Raise a LeaseLost that names the cure if the lease holds again, since the transaction that ended was rolled back.

    Then it was this transaction that had cancelled or deleted the message, and nobody else.
    """
    held = False
    with suppress(Error):
        held = _under_lease(claimed, alias).leased().exists()
    if held:
        raise LeaseLost(
            f"What {claimed.kind} did has ended its own message {claimed.id} in the transaction that shall end it, so "
            "all of that was rolled back. A task ends its own message by raising delayedq.Cancel()."
        ) from None


def _under_lease(claimed: Claimed, alias: str) -> MessageQuerySet:
    """The message, unless another attempt holds it, or it has ended."""
    return Message.objects.using(alias).filter(id=claimed.id, lease_token=claimed.token)


class ExactlyOnceCommit:
    """One attempt whose effects and end share a transaction. `settled` is None until its end is sent or written."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._store = served_store()
        self._confirmed = False
        self.alias = self._store.alias
        self.settled: Settled | None = None

    def end(self, outcome: Returned, started: float) -> None:
        """End the message as succeeded, and commit where both are one round trip.

        `started` is a moment of `time.monotonic()`. Waits for a transaction that has locked it, as long as the lease
        lasts. Raises LeaseLost. A message that was replaced meanwhile is given back: the replacement is one of its own,
        and what this attempt did stands.
        """
        age = time.monotonic() - started
        then = follow_ups(self._attempt, Decision(FinalOutcome.SUCCEEDED))
        kept = self._attempt.task.result_retention
        self._write_progress()
        finish = Finish(self._attempt.claimed, FinalOutcome.SUCCEEDED, age, 0.0, outcome.result, None, then, kept)
        with self._attempt.asking:
            if self._ends_with_commit(finish):
                return
            settled = self._store.settle_waiting([finish], self._attempt.worker, self._may_wait)
        if settled.lost or settled.busy:
            raise LeaseLost("The lease ended before the task did: what the task wrote was rolled back.")
        self.settled = settled

    def _ends_with_commit(self, finish: Finish) -> bool:
        """Whether one round trip has ended it and committed; meanwhile nobody knows."""
        self.settled = Settled()
        if self._store.finish_and_commit(finish):
            return True
        self.settled = None
        return False

    def _may_wait(self) -> bool:
        """Whether the lock of another is waited for; the wait for an answer begins anew."""
        held = self._held().leased().exists()
        self._attempt.asking.__enter__()
        return held

    def _write_progress(self) -> None:
        """The worker's thread may wait for this transaction with an older report: nobody waits for that."""
        if not self._attempt.is_written:
            with transaction.atomic(using=self.alias):
                write_last([self._attempt], patience=0.0)

    def _held(self) -> MessageQuerySet:
        return _under_lease(self._attempt.claimed, self.alias)

    def _given_back(self) -> bool:
        """True if a message that was replaced has been given back: it has no history row, but its lease is gone."""
        return self.settled is not None and bool(self.settled.superseded) and not self._held().exists()

    def confirm(self) -> None:
        """Called first of all that follows the commit."""
        self._confirmed = True
        with suppress(Error), self._attempt.asking:
            self._store.tell_ends()

    def committed(self) -> bool:
        """True if the transaction has committed, also if the answer to its COMMIT was lost. Asks the database then."""
        return self._confirmed or (self.settled is not None and self._recorded())

    def _recorded(self) -> bool:
        """The connection was lost in the commit: ask how the message ended, as soon as the database answers.

        If the server has not finished the commit yet, the answer is no. That does no harm: the failure that follows
        is settled under the lease, which the commit takes away.
        """
        failures = 0
        while True:
            try:
                with self._attempt.asking:
                    connections[self.alias].close()
                    return bool(self._store.in_history([self._attempt.id])) or self._given_back()
            except Error:
                failures += 1
                time.sleep(RECONNECTING(failures).total_seconds())
