"""The `django.tasks` backend: `TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend"}}`."""

from __future__ import annotations

import logging
from abc import abstractmethod
from functools import wraps
from itertools import batched
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.checks import Error
from django.core.exceptions import SynchronousOnlyOperation
from django.db import OperationalError, transaction

from delayedq import results
from delayedq.compat import (
    DEFAULT_TASK_QUEUE_NAME,
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from delayedq.core.other_names import hint
from delayedq.limits.channels import unschedule_and_tell
from delayedq.limits.declared import is_strict
from delayedq.signals import wanted
from delayedq.store import default_store, store_for
from delayedq.store.protocol import OfferOutcome
from delayedq.tasks import Task
from delayedq.tasks.options import read_options, read_queues
from delayedq.tasks.scheduling import Scheduled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from django.core.checks import CheckMessage

    from delayedq.store.base import Store
    from delayedq.store.protocol import Offer, Offered, OnConflict
    from delayedq.tasks.scheduling import AnyCall

    AnyResult = TaskResult[..., Any]
    AnyTask = Task[..., Any]
else:
    AnyResult = TaskResult


#: `calls` can't be read again here, and are sorted within a chunk only.
_UNDONE = (
    "enqueue_bulk() stored nothing, as another transaction wrote the same keys in another order. Call it again. If all "
    "of these transactions write their keys in sorted order (that of Python), none is undone."
)


def _in_async_code[**P, R](use: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Django's error for sync code on an event loop does not know that each verb has an async version."""

    def decorated(verb: Callable[P, R]) -> Callable[P, R]:
        @wraps(verb)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return verb(*args, **kwargs)
            except SynchronousOnlyOperation as error:
                raise SynchronousOnlyOperation(f"{error} In async code: await task.{use}(...).") from None

        return called

    return decorated


class OfferingBackend(BaseTaskBackend):
    """The ways in: each is checked alike, and becomes offers. Where these go is up to the subclass."""

    task_class = Task
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        queues, problems = read_queues(alias, params.get("QUEUES", [DEFAULT_TASK_QUEUE_NAME]))
        super().__init__(alias, {**params, "QUEUES": queues})
        self.defaults, wrong = read_options(alias, self.options)
        self._problems = problems + wrong

    def validate_task(self, task: Any) -> None:
        """Raises InvalidTask, which names the queues that there are."""
        if self.queues and task.queue_name not in self.queues:
            raise InvalidTask(
                f"Queue {task.queue_name!r} is not valid for backend {self.alias!r}."
                f"{hint(str(task.queue_name), {}, map(str, self.queues))} Its queues are "
                f"{', '.join(sorted(map(str, self.queues)))}: add it to TASKS[{self.alias!r}]['QUEUES']."
            )
        if not isinstance(task.priority, int | float):
            raise InvalidTask(f"{task.name}: priority is a whole number from -100 to 100, not {task.priority!r}.")
        super().validate_task(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """See `Task.enqueue`."""
        self.validate_task(task)
        result = self._enqueue(task, task.offer(args, kwargs, when=task.run_after), args, kwargs)
        if result.id and wanted(task_enqueued, logging.DEBUG):
            task_enqueued.send(type(self), task_result=result)
        return result

    def schedule(
        self,
        task: AnyTask,
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
        when: datetime,
        key: str | None,
        on_conflict: OnConflict,
    ) -> Scheduled:
        """See `Task.schedule_at`."""
        self.validate_task(task)
        return self._offer(task, task.offer(args, kwargs, when=when, key=key), on_conflict)

    def enqueue_many(self, task: AnyTask, calls: Iterable[AnyCall]) -> list[Scheduled]:
        """See `Task.enqueue_many`."""
        self.validate_task(task)
        return self._offer_many(task, task.offers(calls, task.run_after))

    def enqueue_bulk(self, task: AnyTask, calls: Iterable[AnyCall], chunk_size: int) -> int:
        """See `Task.enqueue_bulk`. Raises ValueError for a chunk size below 1."""
        self.validate_task(task)
        if not isinstance(chunk_size, int) or chunk_size < 1:
            raise ValueError(f"enqueue_bulk() takes a chunk_size of at least 1, not {chunk_size!r}.")
        return self._offer_bulk(task, task.offers(calls, task.run_after), chunk_size)

    def unschedule(self, task: AnyTask, key: str) -> bool:
        """See `Task.unschedule`."""
        self.validate_task(task)
        return self._unschedule(task, key)

    # What a subclass does with them

    @abstractmethod
    def _enqueue(self, task: AnyTask, offer: Offer, args: Any, kwargs: Any) -> AnyResult:
        """Store an offer without a key; its result, with the time of its creation as it is stored."""

    @abstractmethod
    def _offer(self, task: AnyTask, offer: Offer, on_conflict: OnConflict) -> Scheduled: ...

    @abstractmethod
    def _offer_many(self, task: AnyTask, offers: Iterable[Offer]) -> list[Scheduled]:
        """All or none."""

    @abstractmethod
    def _offer_bulk(self, task: AnyTask, offers: Iterable[Offer], chunk_size: int) -> int:
        """All or none, in constant memory."""

    @abstractmethod
    def _unschedule(self, task: AnyTask, key: str) -> bool: ...


class DelayedQBackend(OfferingBackend):
    """A `django.tasks` backend that stores tasks in the project's database.

    OPTIONS: DATABASE (an alias; default: the database routers decide), and defaults for tasks that do not set them:
    MAX_ATTEMPTS (int), BACKOFF (timedelta or callable), TIMEOUT (timedelta). `manage.py check` reports wrong ones.

        TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend", "OPTIONS": {"MAX_ATTEMPTS": 3}}}
    """

    @property
    def store(self) -> Store:
        """The store that has the messages of this backend."""
        database = self.defaults.DATABASE
        return default_store() if database is None else store_for(database)

    def check(self, **_: Any) -> list[CheckMessage]:
        found: list[CheckMessage] = [Error(problem, id="delayedq.E005") for problem in self._problems]
        if not apps.is_installed("delayedq"):
            problem = f"TASKS[{self.alias!r}] uses delayedq, which is not in INSTALLED_APPS."
            found.append(Error(problem, hint='Add "delayedq" to INSTALLED_APPS and run migrate.', id="delayedq.E006"))
        return found

    # Ways in

    @_in_async_code("aenqueue")
    def _enqueue(self, task: AnyTask, offer: Offer, args: Any, kwargs: Any) -> AnyResult:
        store = self.store
        offered = store.offer(offer)
        if offered.outcome is OfferOutcome.DROPPED:
            return results.dropped(task, args, kwargs, self.alias)
        created_at = self._created_at(store, offered)
        return results.make(task, offered.id, TaskResultStatus.READY, args, kwargs, self.alias, enqueued_at=created_at)

    @staticmethod
    def _created_at(store: Store, offered: Offered) -> datetime:
        """As it is stored. MySQL does not return it, nor do offers with a channel: it is read there.

        By then a worker may have ended the message.
        """
        from delayedq.models import FinishedMessage, Message

        if offered.created_at is not None:
            return offered.created_at
        for stored in (Message.objects, FinishedMessage.objects):
            found = stored.using(store.alias).filter(pk__in=[offered.id]).values_list("created_at", flat=True)
            if created_at := found.first():
                return created_at
        return store.now()  # it has ended, and somebody has deleted or redriven it

    @_in_async_code("aschedule_at")
    def _offer(self, task: AnyTask, offer: Offer, on_conflict: OnConflict) -> Scheduled:  # noqa: ARG002
        return Scheduled.of(self.store.offer(offer, on_conflict))

    @_in_async_code("aenqueue_many")
    def _offer_many(self, task: AnyTask, offers: Iterable[Offer]) -> list[Scheduled]:  # noqa: ARG002
        return [Scheduled.of(offered) for offered in self.store.offer_many(offers)]

    @_in_async_code("aenqueue_bulk")
    def _offer_bulk(self, task: AnyTask, offers: Iterable[Offer], chunk_size: int) -> int:  # noqa: ARG002
        store = self.store
        try:
            with transaction.atomic(using=store.alias):
                return sum(store.offer_counted(chunk) for chunk in batched(offers, chunk_size))
        except OperationalError as error:
            if store.database.is_deadlock(error):
                error.add_note(_UNDONE)
            raise

    @_in_async_code("aunschedule")
    def _unschedule(self, task: AnyTask, key: str) -> bool:
        if is_strict(task):
            return unschedule_and_tell(self.store, task.module_path, key)
        return self.store.unschedule(task.module_path, key)

    # Results

    def get_result(self, result_id: str) -> AnyResult:
        """Raises TaskResultDoesNotExist. Reads from the database that has the queue, never from a replica."""
        from delayedq.models import FinishedMessage, Message

        try:
            id_ = int(result_id)
        except (ValueError, TypeError):
            problem = f"{result_id!r} is not the id of a message, which is a number: it is result.id of enqueue()."
            raise TaskResultDoesNotExist(problem) from None
        alias = self.store.alias
        messages = Message.objects.using(alias)
        if live := messages.filter(id=id_).annotate(is_leased=messages.is_leased()).first():
            return results.of_live(live, self.alias, leased=live.is_leased)  # type: ignore[attr-defined]  # annotated
        if ended := FinishedMessage.objects.using(alias).filter(id=id_).first():
            return results.of_ended(ended, self.alias)
        raise TaskResultDoesNotExist(
            f"No message has the id {result_id} in the database {alias!r}: its history was pruned, it was never "
            "committed, or it is in the database of another backend."
        )


def somewhere() -> dict[str, Any]:
    """A backend of delayedq and a queue that it has, for tasks of delayedq itself: a project may have no "default"."""
    for backend in filter(None, map(_ours, task_backends)):
        queues = {str(name) for name in backend.queues}
        has_default = not queues or DEFAULT_TASK_QUEUE_NAME in queues
        return {"backend": backend.alias, "queue_name": DEFAULT_TASK_QUEUE_NAME if has_default else min(queues)}
    return {}  # as in tests of a project, where a backend of Django calls tasks at once


def _ours(alias: str) -> OfferingBackend | None:
    try:
        backend = task_backends[alias]
    except InvalidTaskBackend:  # of which `task` tells more
        return None
    return backend if isinstance(backend, OfferingBackend) else None
