"""Names that other task frameworks use, and what does the same here. They are in errors only: nothing is renamed."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from dis import opname
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TO_SCHEDULE = "task.schedule_at(when, ...) and task.schedule_in(timedelta(...), ...)"
_TO_USE = "task.using(...).enqueue(...)"
_TO_REPEAT = "DELAYEDQ['CRON'] in the settings, or delayedq.schedules.create(...)"
#: Such an option is not needed.
_NOTHING = "nothing in its place: "

#: Options of decorators.
OPTIONS = {
    "acks_late": f"{_NOTHING}a message always ends after its task has run",
    "autoretry_for": "retry_on=",
    "concurrency": "limit=Limit(concurrency=...)",
    "context": "takes_context=True",
    "cron": _TO_REPEAT,
    "crontab": _TO_REPEAT,
    "bind": "takes_context=True, or current_message()",
    "default_retry_delay": "backoff=",
    "dont_autoretry_for": "give_up_on=",
    "every": _TO_REPEAT,
    "expire": "expires=",
    "ignore_result": f"{_NOTHING}a result is a part of the history; result_retention= removes it earlier",
    "job_timeout": "timeout=",
    "lock": "limit=Limit(concurrency=1), with channel= for one lock per value",
    "lock_task": "limit=Limit(concurrency=1)",
    "max_age": "expires= or deadline=",
    "max_backoff": "backoff=delayedq.core.backoff.Exponential(...)",
    "max_retries": "max_attempts=, which counts the first attempt too",
    "min_backoff": "backoff=delayedq.core.backoff.Exponential(...)",
    "name": "aliases=, for messages stored under another path",
    "pass_context": "takes_context=True",
    "periodic": _TO_REPEAT,
    "queue": "queue_name=",
    "queueing_lock": "key= of schedule_at",
    "rate_limit": "limit=Limit(rate=...)",
    "result_ttl": "result_retention=",
    "retry": "max_attempts=, which counts the first attempt too, and backoff=",
    "retries": "max_attempts=, which counts the first attempt too",
    "retry_backoff": "backoff=",
    "retry_delay": "backoff=",
    "run_every": _TO_REPEAT,
    "schedule": _TO_REPEAT,
    "serializer": f"{_NOTHING}arguments are stored as JSON with types of Python's",
    "soft_time_limit": "timeout=",
    "store_results": f"{_NOTHING}a result is a part of the history",
    "throws": "give_up_on=",
    "time_limit": "timeout=",
    "track_started": f"{_NOTHING}a message that runs has the status RUNNING",
    "ttl": "expires=",
    "unique": "key= of schedule_at",
}

#: Keyword arguments of calls that are no arguments of the task.
CALLS = {
    "args": "the arguments themselves, as in task.enqueue(7)",
    "at": _TO_SCHEDULE,
    "channel": _TO_USE,
    "countdown": _TO_SCHEDULE,
    "delay": _TO_SCHEDULE,
    "deadline": _TO_USE,
    "eta": _TO_SCHEDULE,
    "expires": _TO_USE,
    "job_id": "key= of task.schedule_at(when, ...); the id is that of the result",
    "key": _TO_SCHEDULE,
    "kwargs": "the arguments themselves, as in task.enqueue(flight_id=7)",
    "max_attempts": _TO_USE,
    "metadata": _TO_USE,
    "on_conflict": _TO_SCHEDULE,
    "run_after": _TO_USE,
    "run_at": _TO_SCHEDULE,
    "priority": _TO_USE,
    "queue": _TO_USE,
    "queue_name": _TO_USE,
    "replace": "on_conflict= of task.schedule_at(when, ..., key=...)",
    "retries": "max_attempts= of @task or task.using(...)",
    "retry": "max_attempts= of @task or task.using(...)",
    "schedule_at": _TO_SCHEDULE,
    "task_id": "key= of task.schedule_at(when, ...); the id is that of the result",
    "timeout": "timeout= of @task",
    "when": _TO_SCHEDULE,
}

#: Names under which calls give the time, which is the first argument of `schedule_at` and `schedule_in`.
TIMES = {"at", "countdown", "delay", "eta", "run_after", "run_at", "schedule_at", "when"}

#: What is imported from other frameworks under these names. No module of delayedq has one of them.
NAMES = {
    "abortable_task": "task",
    "actor": "task",
    "assert_scheduled": "delayedq.testing.assert_scheduled",
    "async_task": "task, whose calls are task.enqueue(...)",
    "chord": "chain(group(...), task.s())",
    "crontab": _TO_REPEAT,
    "db_periodic_task": f"task, and {_TO_REPEAT}",
    "db_task": "task",
    "enqueue": "task.enqueue(...)",
    "job": "task",
    "periodic_task": f"task, and {_TO_REPEAT}",
    "Queue": "DelayedQueue for messages without code, or @task(queue_name=...)",
    "run_due": "delayedq.testing.run_due",
    "schedule": _TO_REPEAT,
    "shared_task": "task, or delayedq.contrib.celery.shared_task",
}

#: Attributes of bare queues.
QUEUES = {
    "ack": "envelope.acknowledge()",
    "enqueue": "queue.offer_or_update(key, payload, when), or @task for a function",
    "get": "queue.poll() or queue.try_poll()",
    "offer": "queue.offer_or_update(key, payload, when)",
    "pop": "queue.poll() or queue.try_poll()",
    "publish": "queue.offer_or_update(key, payload, when), or a Topic",
    "push": "queue.offer_or_update(key, payload, when)",
    "put": "queue.offer_or_update(key, payload, when)",
    "receive": "queue.poll() or queue.try_poll()",
    "send": "queue.offer_or_update(key, payload, when)",
}

#: Attributes of tasks.
VERBS = {
    "apply": "task(...), which calls the function here",
    "apply_async": f"{_TO_USE}, {_TO_SCHEDULE}",
    "bulk_enqueue": "task.enqueue_many(...) or task.enqueue_bulk(...)",
    "call_local": "task(...), which calls the function here",
    "cancel": "task.unschedule(key=...) or result.cancel()",
    "configure": _TO_USE,
    "cron": _TO_REPEAT,
    "defer": "task.enqueue(...)",
    "delay": "task.enqueue(...)",
    "delay_on_commit": "task.enqueue(...), which is a part of the transaction",
    "delete": "task.unschedule(key=...) or result.cancel()",
    "enqueue_at": _TO_SCHEDULE,
    "enqueue_in": _TO_SCHEDULE,
    "enqueue_on_commit": "task.enqueue(...), which is a part of the transaction",
    "map": "task.enqueue_many(...) or map_(task, ...)",
    "reschedule": "task.schedule_at(when, ..., key=...) with the same key",
    "retry": "raise Retry(..., delay=timedelta(...))",
    "revoke": "task.unschedule(key=...) or result.cancel()",
    "schedule": _TO_SCHEDULE,
    "send": "task.enqueue(...)",
    "send_with_options": f"{_TO_USE}, {_TO_SCHEDULE}",
    "signature": "task.s(...)",
    "starmap": "task.enqueue_many(...)",
    "subtask": "task.s(...)",
}

#: Attributes of calls that are parts of a flow, and of chains and groups.
PARTS = {
    "apply_async": "chain(...).enqueue() or task.enqueue(...)",
    "delay": "chain(...).enqueue() or task.enqueue(...)",
    "enqueue": "chain(...).enqueue() or task.enqueue(...)",
    "link": "chain(...), which runs one part after the other",
    "on_error": "on_failure= of @task",
    "run": "chain(...).enqueue() or task.enqueue(...)",
    "set": "task.using(...).s(...)",
}

#: Attributes of results.
RESULTS = {
    "failed": "result.is_finished and result.outcome",
    "get": "result.wait(timeout).return_value",
    "get_result": "result.wait(timeout).return_value",
    "ready": "result.is_finished, after result.refresh()",
    "result": "result.return_value",
    "revoke": "result.cancel()",
    "state": "result.status and result.outcome",
    "successful": "result.outcome == 'succeeded'",
    "traceback": "result.errors",
}

#: Attributes of stored flows.
FLOWS = {
    "children": "flow.steps()",
    "get": "flow.wait(timeout).result()",
    "is_finished": "flow.state, which is 'running' until the flow has ended",
    "join": "flow.wait(timeout).result()",
    "ready": "flow.state, which is 'running' until the flow has ended",
    "refresh": f"{_NOTHING}flow.state and flow.result() read the database",
    "return_value": "flow.result()",
    "revoke": "flow.cancel()",
    "status": "flow.state",
    "successful": "flow.state == 'succeeded'",
}

#: Flags of commands that run workers.
FLAGS = {
    "-A": f"{_NOTHING}manage.py knows the project",
    "-B": f"{_NOTHING}all workers place the ticks of schedules; --no-cron leaves them to others",
    "-P": "--threads N; async tasks share one event loop",
    "-Q": "--queues A,B",
    "-c": "--threads N, and --processes N",
    "-l": "LOGGING in the settings, or --lines",
    "-n": "--name NAME",
    "-w": "--threads N, and --processes N",
    "--app": f"{_NOTHING}manage.py knows the project",
    "--autoscale": "--processes MIN-MAX --scale-on latency=30s",
    "--batch": "--drain",
    "--beat": f"{_NOTHING}all workers place the ticks of schedules; --no-cron leaves them to others",
    "--burst": "--drain",
    "--concurrency": "--threads N, and --processes N",
    "--hostname": "--name NAME",
    "--interval": "DELAYEDQ['POLL_INTERVAL']",
    "--loglevel": "LOGGING in the settings, or --lines",
    "--max-jobs": "--max-tasks N",
    "--max-tasks-per-child": "--max-tasks N",
    "--pool": "--threads N; async tasks share one event loop",
    "--prefetch-multiplier": f"{_NOTHING}workers measure how much they prefetch",
    "--queue-name": "--queues A,B",
    "--run-once": "--drain",
    "--time-limit": "timeout= of @task",
    "--with-scheduler": f"{_NOTHING}all workers place the ticks of schedules; --no-cron leaves them to others",
    "--worker-id": "--name NAME",
    "--workers": "--threads N, and --processes N",
}


class NoOperators:
    """A part of a flow: it is neither called nor joined by `|` as in Celery, and says what to write."""

    __slots__ = ()

    if not TYPE_CHECKING:  # to a type checker, all parts would have them

        def __or__(self, other):
            raise TypeError("Parts of a flow are not joined by |. Use chain(first, second).")

        __ror__ = __or__

        def __call__(self, *_args, **_kwargs):
            raise TypeError("A part of a flow is not called. Use chain(...).enqueue(), or task(...) to run it here.")


def hint(name: str, others: dict[str, str], known: Iterable[str] = ()) -> str:
    """The end of a sentence about a name that is not known: what to use for it, or what it may mean; or ""."""
    if name in others:
        return f" Use {others[name]}."
    close = get_close_matches(name, list(known), 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def no_attribute(one: object, name: str, others: dict[str, str]) -> AttributeError:
    """The error of an object that lacks an attribute: it names what to use for that of another framework.

    An AttributeError within a property of its own is raised as it is.
    """
    if hasattr(type(one), name):
        object.__getattribute__(one, name)
    return AttributeError(f"{type(one).__name__!r} object has no attribute {name!r}.{hint(name, others)}")


def unknown_name(problem: str) -> ImportError | AttributeError:
    """What `__getattr__` of a module raises for a name that it knows not to be its own.

    `from module import name` replaces the text of an AttributeError, so it gets an ImportError. All others get an
    AttributeError, as hasattr() and pickle ask any module for any name.
    """
    importing = sys._getframe(2)  # noqa: SLF001 - whoever made Python call `__getattr__`
    is_import = opname[importing.f_code.co_code[importing.f_lasti]] == "IMPORT_FROM"
    return ImportError(problem) if is_import else AttributeError(problem)
