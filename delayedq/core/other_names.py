"""Names that other task frameworks use, and what does the same here. They are in errors only: nothing is renamed."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TO_SCHEDULE = "task.schedule_at(when, ...) and task.schedule_in(timedelta(...), ...)"
_TO_USE = "task.using(...).enqueue(...)"
#: Such an option is not needed.
_NOTHING = "nothing in its place: "

#: Options of decorators.
OPTIONS = {
    "acks_late": f"{_NOTHING}a message always ends after its task has run",
    "autoretry_for": "retry_on=",
    "bind": "takes_context=True, or current_message()",
    "default_retry_delay": "backoff=",
    "dont_autoretry_for": "give_up_on=",
    "expire": "expires=",
    "ignore_result": f"{_NOTHING}a result is a part of the history; result_retention= removes it earlier",
    "max_retries": "max_attempts=, which counts the first attempt too",
    "name": "aliases=, for messages stored under another path",
    "queue": "queue_name=",
    "rate_limit": "limit=Limit(rate=...)",
    "retries": "max_attempts=, which counts the first attempt too",
    "retry_backoff": "backoff=",
    "retry_delay": "backoff=",
    "soft_time_limit": "timeout=",
    "throws": "give_up_on=",
    "time_limit": "timeout=",
    "unique": "key= of schedule_at",
}

#: Keyword arguments of calls that are no arguments of the task.
CALLS = {
    "countdown": _TO_SCHEDULE,
    "delay": _TO_SCHEDULE,
    "eta": _TO_SCHEDULE,
    "key": _TO_SCHEDULE,
    "on_conflict": _TO_SCHEDULE,
    "run_after": _TO_USE,
    "run_at": _TO_SCHEDULE,
    "priority": _TO_USE,
    "queue": _TO_USE,
    "queue_name": _TO_USE,
    "schedule_at": _TO_SCHEDULE,
    "when": _TO_SCHEDULE,
}

#: Attributes of tasks.
VERBS = {
    "apply": "task(...), which calls the function here",
    "apply_async": f"{_TO_USE}, {_TO_SCHEDULE}",
    "call_local": "task(...), which calls the function here",
    "configure": _TO_USE,
    "defer": "task.enqueue(...)",
    "delay": "task.enqueue(...)",
    "map": "task.enqueue_many(...) or map_(task, ...)",
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
    "run": "chain(...).enqueue() or task.enqueue(...)",
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


def hint(name: str, others: dict[str, str], known: Iterable[str] = ()) -> str:
    """The end of a sentence about a name that is not known: what to use for it, or what it may mean; or ""."""
    if name in others:
        return f" Use {others[name]}."
    close = get_close_matches(name, list(known), 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def no_attribute(one: object, name: str, others: dict[str, str]) -> AttributeError:
    """The error of an object that lacks an attribute: it names what to use for that of another framework."""
    return AttributeError(f"{type(one).__name__!r} object has no attribute {name!r}.{hint(name, others)}")
