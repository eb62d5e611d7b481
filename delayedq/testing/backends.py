"""Test backends that need no database: they take all options, schedule by key, and check as production does."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from asgiref.sync import async_to_sync
from django.db import transaction

from delayedq import clock, results
from delayedq.backend import OfferingBackend
from delayedq.compat import TaskResult, TaskResultDoesNotExist, TaskResultStatus
from delayedq.core.lifecycle import AskedSnooze, Returned
from delayedq.core.serialization import load_call, loads
from delayedq.steps.running import RecordsInMemory
from delayedq.store.offers import check, check_key
from delayedq.store.protocol import Claimed, OfferOutcome, OnConflict
from delayedq.tasks.scheduling import Scheduled
from delayedq.testing.assertions import ScheduledMessage
from delayedq.worker.attempt import Attempt
from delayedq.worker.executor import aexecute, execute
from delayedq.worker.shared_leases import SharedLeases
from delayedq.worker.transitions import decision, follow_up_of, follow_ups

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from delayedq.store.protocol import Offer
    from delayedq.tasks import Task
    from delayedq.worker.transitions import AttemptResult

    AnyTask = Task[..., Any]
    AnyResult = TaskResult[..., Any]


class _Kept(NamedTuple):
    """A message that waits in memory."""

    task: AnyTask
    offer: Offer
    at: datetime
    result: AnyResult


class DummyBackend(OfferingBackend):
    """Keeps messages in memory and runs none. `results` lists them in the order of their creation.

    Keys, policies and refusals are those of production, so `scheduled()` and `assert_scheduled()` work with it.

        TASKS = {"default": {"BACKEND": "delayedq.testing.DummyBackend"}}
    """

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.clear()

    def clear(self) -> None:
        """Forget all messages."""
        self._ids = count(1)
        self._waiting: dict[str, _Kept] = {}
        self.results: list[AnyResult] = []

    def messages(self, task: AnyTask) -> list[ScheduledMessage]:
        """The messages of a task that wait."""
        return [
            ScheduledMessage(
                kept.at, kept.offer.key, kept.offer.queue, kept.offer.priority, 0, *load_call(kept.offer.payload)
            )
            for kept in self._waiting.values()
            if kept.task.func is task.func
        ]

    # Ways in

    def _enqueue(self, task: AnyTask, offer: Offer, args: Any, kwargs: Any) -> AnyResult:  # noqa: ARG002
        check(offer)
        return self._keep(task, offer)

    def _offer(self, task: AnyTask, offer: Offer, on_conflict: OnConflict) -> Scheduled:
        check(offer)
        for id_, kept in self._waiting.items():
            if offer.key is not None and (kept.offer.kind, kept.offer.key) == (offer.kind, offer.key):
                return Scheduled(self._replace(id_, kept, task, offer, on_conflict), id_)
        return Scheduled(OfferOutcome.CREATED, self._keep(task, offer).id)

    def _offer_many(self, task: AnyTask, offers: Iterable[Offer]) -> list[Scheduled]:
        checked = list(offers)
        for offer in checked:
            check(offer)
        return [DummyBackend._offer(self, task, offer, OnConflict.REPLACE) for offer in checked]

    def _offer_bulk(self, task: AnyTask, offers: Iterable[Offer], chunk_size: int) -> int:  # noqa: ARG002 - all at once
        return len(self._offer_many(task, offers))

    def _unschedule(self, task: AnyTask, key: str) -> bool:
        check_key(key)
        for id_, kept in self._waiting.items():
            if (kept.offer.kind, kept.offer.key) == (task.module_path, key):
                del self._waiting[id_]
                object.__setattr__(kept.result, "status", TaskResultStatus.FAILED)
                object.__setattr__(kept.result, "outcome", "cancelled")
                return True
        return False

    def get_result(self, result_id: str) -> AnyResult:
        """The result with this id. Raises TaskResultDoesNotExist."""
        for result in self.results:
            if result.id == result_id:
                return result
        raise TaskResultDoesNotExist(result_id)

    def _keep(self, task: AnyTask, offer: Offer) -> AnyResult:
        now = clock.now()
        result = self._result(task, next(self._ids), offer, now)
        self.results.append(result)
        self._waiting[result.id] = _Kept(task, offer, offer.scheduled_at or now, result)
        return result

    def _result(self, task: AnyTask, id_: int, offer: Offer, enqueued_at: datetime | None) -> AnyResult:
        ready = TaskResultStatus.READY
        return results.make(task, id_, ready, *load_call(offer.payload), self.alias, enqueued_at=enqueued_at)

    def _replace(self, id_: str, kept: _Kept, task: AnyTask, offer: Offer, policy: OnConflict) -> OfferOutcome:
        new, old = offer.scheduled_at or clock.now(), kept.at
        times = {
            OnConflict.REPLACE: new,
            OnConflict.KEEP: old,
            OnConflict.PRESERVE_TIME: old,
            OnConflict.EARLIEST: min(old, new),
            OnConflict.LATEST: max(old, new),
        }
        at = times[policy]
        if policy is OnConflict.KEEP or (
            at == old and offer._replace(scheduled_at=None) == kept.offer._replace(scheduled_at=None)
        ):
            return OfferOutcome.IGNORED
        result = self._result(task, int(id_), offer, kept.result.enqueued_at)
        self.results[self.results.index(kept.result)] = result
        self._waiting[id_] = _Kept(task, offer, at, result)
        return OfferOutcome.UPDATED


class ImmediateBackend(DummyBackend):
    """Runs what is due at once, in the calling thread, with production's executor; what is due later waits.

    Failed attempts are repeated at once, up to `max_attempts`, whatever the backoff. A task that snoozes waits.

        TASKS = {"default": {"BACKEND": "delayedq.testing.ImmediateBackend"}}
    """

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._shared_leases = SharedLeases(64)
        self._records: dict[str, RecordsInMemory] = {}

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Run the task, unless it is due later; returns its result, which has then ended."""
        result = super().enqueue(task, args, kwargs)
        self._run_if_due(result.id)
        return result

    def _offer(self, task: AnyTask, offer: Offer, on_conflict: OnConflict) -> Scheduled:
        scheduled = super()._offer(task, offer, on_conflict)
        if scheduled.outcome is not OfferOutcome.IGNORED:
            self._run_if_due(cast("str", scheduled.id))
        return scheduled

    def _offer_many(self, task: AnyTask, offers: Iterable[Offer]) -> list[Scheduled]:
        many = super()._offer_many(task, offers)
        for scheduled in many:
            self._run_if_due(cast("str", scheduled.id))
        return many

    def _run_if_due(self, id_: str) -> None:
        kept = self._waiting.get(id_)  # None: an earlier call of the batch had its key, or has unscheduled it
        if kept is None or kept.at > clock.now():
            return
        del self._waiting[id_]
        for attempt in range(1, kept.offer.max_attempts + 1):
            ended = self._attempt(kept, attempt)
            _record(kept.result, ended)
            if isinstance(ended.error, KeyboardInterrupt):  # somebody stops the test
                raise ended.error
            if isinstance(ended.outcome, AskedSnooze):
                snoozed = ended.outcome.until or clock.now() + cast("Any", ended.outcome.delay)
                self._waiting[id_] = kept._replace(at=snoozed)
                return
            decided = decision(ended)
            if decided.outcome is not None:
                results.end(kept.result, ended.outcome, None, None)
                _set_value(kept.result, ended)
            if (follow_up := follow_up_of(ended.attempt, decided)) is not None:
                self._offer_many(follow_up, follow_ups(ended.attempt, decided))
            if decided.outcome is not None:
                return

    def _attempt(self, kept: _Kept, number: int) -> AttemptResult:
        offer, created_at = kept.offer, cast("datetime", kept.result.enqueued_at)
        initially = offer.scheduled_at or created_at
        claimed = Claimed(
            int(kept.result.id), number, 0, offer.queue, offer.kind, offer.key, offer.priority, number,
            offer.max_attempts, kept.at, initially, created_at, offer.payload, offer.metadata, None,
        )  # fmt: skip
        slot = self._shared_leases.hold(claimed.id, claimed.token)
        attempt = Attempt(claimed, kept.task, "immediate", self._shared_leases, slot)
        attempt.records = self._records.setdefault(kept.result.id, RecordsInMemory())
        try:
            if not attempt.threaded:
                return async_to_sync(aexecute)(attempt)
            return _together(attempt) if attempt.task.exactly_once else execute(attempt)
        finally:
            self._shared_leases.drop(slot)


def _together(attempt: Attempt) -> AttemptResult:
    """In one transaction, which is rolled back if the task fails."""
    with transaction.atomic():
        ended = execute(attempt)
        if not isinstance(ended.outcome, Returned):
            transaction.set_rollback(True)
    return ended


def _record(result: AnyResult, ended: AttemptResult) -> None:
    now = clock.now()
    if result.started_at is None:
        object.__setattr__(result, "started_at", now)
    object.__setattr__(result, "last_attempted_at", now)
    result.worker_ids.append(ended.attempt.worker)
    if ended.error is not None:
        result.errors.append(results.task_error(ended.error))


def _set_value(result: AnyResult, ended: AttemptResult) -> None:
    if isinstance(ended.outcome, Returned) and ended.outcome.result is not None:
        object.__setattr__(result, "_return_value", loads(ended.outcome.result))
