"""Waiting messages of another framework become messages here: each is stored here and deleted there in one transaction.

So none runs twice, whatever stops the import; it may be run again, and while workers of both sides run. What workers
there hold is left to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import MAXYEAR
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from django.apps import apps
from django.db import Error, router, transaction

from delayedq import clock
from delayedq.compat import InvalidTask
from delayedq.core.edits import HIGHEST_PRIORITY, LOWEST_PRIORITY
from delayedq.exceptions import DelayedQError, InvalidMessage
from delayedq.operations.sending import is_sendable
from delayedq.store import default_store
from delayedq.store.protocol import OfferOutcome, OnConflict
from delayedq.tasks import task_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.store.base import Store

# The tables of another framework, read through its models.


def rows_of(app: str, name: str) -> QuerySet[Any]:
    """The rows of a model of that app. Raises InvalidMessage if it is not installed, or in another database."""
    if not apps.is_installed(app):
        raise InvalidMessage(f"{app!r} is not in INSTALLED_APPS; its tables are read through its models.")
    (config,) = (config for config in apps.get_app_configs() if config.name == app)
    model: Any = config.get_model(name)
    alias, own = router.db_for_write(model), default_store().alias
    if alias != own:
        raise InvalidMessage(
            f"The tables of {app!r} are in the database {alias!r}, and those of delayedq in {own!r}: nothing can be "
            "moved between them in one transaction."
        )
    rows: QuerySet[Any] = model.objects.using(own)
    return rows


# Waiting


#: At most this many messages are moved in one transaction.
CHUNK = 500

MOVED, REFUSED = "moved", "refused"

#: The key of metadata that says where a message came from.
ORIGIN = "imported_from"


class ForeignMessage(NamedTuple):
    """A message as it waits there. `options` are those of `Task.using`; `problem` says why it can't be moved."""

    id: Any
    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    at: datetime | None = None
    key: str | None = None
    options: Mapping[str, Any] = {}
    problem: str = ""


class Origin(Protocol):
    """Where messages wait: a framework whose tables are read through its models."""

    #: The label of its app, and its model of what waits.
    app: str
    model: str

    def waiting(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Those rows that no worker there holds."""

    def as_waiting(self, row: Any) -> ForeignMessage: ...


class Moved(NamedTuple):
    """What became of so many `messages`. `said`: the reason, if they were refused."""

    task: str
    outcome: str
    said: str
    messages: int


def move(origin: Origin, tasks: Mapping[str, str], *, dry_run: bool = False) -> list[Moved]:
    """Move what waits there, in the order of its ids; with `dry_run`, roll each transaction back.

    `tasks` names the task here for the name that a task has there. Messages of unknown tasks, and those whose arguments
    do not fit, stay there. Raises InvalidMessage if the app is not installed, or its tables are in another database.
    """
    store, rows = default_store(), _rows(origin)
    counts: Counter[tuple[str, str, str]] = Counter()
    last = None
    while True:
        with transaction.atomic(using=store.alias):
            # Locked against the workers there, where the database has row locks; otherwise the deletion finds out.
            after = rows if last is None else rows.filter(pk__gt=last)
            chunk = list(after.select_for_update(skip_locked=True)[:CHUNK])
            if not chunk:
                return [Moved(*what, count) for what, count in sorted(counts.items())]
            counts.update(_moved(origin, rows, chunk, tasks, store))
            if dry_run:
                transaction.set_rollback(True, using=store.alias)
        last = chunk[-1].pk


def _rows(origin: Origin) -> QuerySet[Any]:
    """What waits there."""
    return origin.waiting(rows_of(origin.app, origin.model).order_by("pk"))


def _moved(
    origin: Origin, rows: QuerySet[Any], chunk: Iterable[Any], tasks: Mapping[str, str], store: Store
) -> Iterator[tuple[str, str, str]]:
    """What became of each, as it is counted. Raises InvalidMessage if somebody there took one meanwhile."""
    stored = []
    for one in (_read(origin, row) for row in chunk):
        problem = _problem(origin, one, tasks, store)
        if not problem:
            stored.append(one.id)
        yield tasks.get(one.task, one.task), REFUSED if problem else MOVED, problem
    _, deleted = rows.filter(pk__in=stored).delete()
    if sum(count for label, count in deleted.items() if label.endswith(f".{origin.model}")) != len(stored):
        raise InvalidMessage(
            f"{origin.app!r} took a message meanwhile. The messages after it were not moved: run the command again."
        )


def _read(origin: Origin, row: Any) -> ForeignMessage:
    """The message of a row. Nothing there checks what stands in its columns, so anything may."""
    try:
        one = origin.as_waiting(row)
    except Error:
        raise
    except Exception as error:  # noqa: BLE001
        return ForeignMessage(row.pk, "?", problem=f"It can't be read: {type(error).__name__}: {error}.")
    if not isinstance(one.args, list | tuple) or not isinstance(one.kwargs, Mapping):
        return one._replace(
            problem=f"Its arguments are not a list and a dict of names: {one.args!r:.100}, {one.kwargs!r:.100}."
        )
    return one


def _problem(origin: Origin, one: ForeignMessage, tasks: Mapping[str, str], store: Store) -> str:
    """Store the message; or why that can't be."""
    if one.problem:
        return one.problem
    try:
        found = task_at(tasks.get(one.task, one.task))
        if not is_sendable(found, store):
            return f"The messages of {found.name} are not in the database {store.alias!r}."
        if "channel" in one.options and found.channel is None:
            return f"It may not overlap with others of its lock: give {found.name} a channel, and Limit(concurrency=1)."
        task = found.using(metadata={ORIGIN: f"{origin.app} {one.id}"}, **one.options)
        scheduled = task.schedule_at(
            one.at or store.now(), *one.args, key=one.key, on_conflict=OnConflict.KEEP, **one.kwargs
        )
    except (DelayedQError, InvalidTask, TypeError, ValueError) as error:
        return str(error)
    if scheduled.outcome is OfferOutcome.CREATED:
        return ""
    dropped = scheduled.outcome is OfferOutcome.DROPPED
    return "A limit of the task has reached its size." if dropped else f"A live message has the key {one.key!r}."


# The frameworks whose waiting messages can be moved here, each read through its own models.


class DjangoTasksDb:
    """django-tasks-db."""

    app = "django_tasks_db"
    model = "DBTaskResult"

    def waiting(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(status="READY")

    def as_waiting(self, row: Any) -> ForeignMessage:
        given = row.args_kwargs
        at = None if row.run_after.year == MAXYEAR else row.run_after  # its sign of "at once"
        options = {"priority": row.priority, "queue_name": row.queue_name}
        return ForeignMessage(
            row.pk, row.task_path, given["args"], given["kwargs"], at or row.enqueued_at, options=options
        )


class DjangoOx:
    """django-ox. A message that failed there before keeps the attempts that are left."""

    app = "django_ox"
    model = "OxTask"

    def waiting(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(status="READY")

    def as_waiting(self, row: Any) -> ForeignMessage:
        options = {
            "priority": row.priority,
            "queue_name": row.queue_name,
            "max_attempts": max(1, row.max_attempts - row.attempts),
        }
        at = row.run_after or row.enqueued_at
        return ForeignMessage(row.pk, row.task_path, row.args, row.kwargs, at, options=options)


class Procrastinate:
    """procrastinate, by its Django app. A queueing lock becomes the key, and a lock the channel."""

    app = "procrastinate.contrib.django"
    model = "ProcrastinateJob"

    def waiting(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(status="todo")

    def as_waiting(self, row: Any) -> ForeignMessage:
        priority = min(max(row.priority, LOWEST_PRIORITY), HIGHEST_PRIORITY)
        options: dict[str, Any] = {"priority": priority, "queue_name": row.queue_name}
        if row.lock is not None:
            options["channel"] = row.lock
        return ForeignMessage(
            row.pk, row.task_name, (), row.args, row.scheduled_at, row.queueing_lock or None, options=options
        )


class DjangoQ:
    """django-q2 with its ORM broker. What it stores is signed, and is read by its own function."""

    app = "django_q"
    model = "OrmQ"
    #: What has no equal here, and changes what happens.
    _WITHOUT_EQUAL = ("hook", "chain", "iter_count", "iter_cached")

    def waiting(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(lock__lte=clock.now())

    def as_waiting(self, row: Any) -> ForeignMessage:
        given: Mapping[str, Any] = row.task
        function = given.get("func")
        if function is None:
            return ForeignMessage(row.pk, "?", problem=f"Its payload can't be read: {given['id']}.")
        path = function if isinstance(function, str) else f"{function.__module__}.{function.__qualname__}"
        lost = [name for name in self._WITHOUT_EQUAL if given.get(name)]
        problem = f"It has {', '.join(lost)}, which has no equal here." if lost else ""
        return ForeignMessage(row.pk, path, given["args"], given["kwargs"], row.lock, problem=problem)
