"""What `delayedq.contrib.celery` refuses, and what does the same here; docs/moving.md has the same names in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_ON_END = "on_success= and on_failure= of delayedq.task, or delayedq.chain(...)"
_CHAIN = "delayedq.chain(...) and delayedq.group(...), whose parts are task.s(...)"
_DATABASE = "nothing in its place: there is no broker, and a message is a row of the database"
_JSON = "nothing in its place: arguments are stored as JSON"
_TIMEOUT = "time_limit= of shared_task, or timeout= of delayedq.task"

#: Options of `shared_task`.
TASKS = {
    **dict.fromkeys(["acks_on_failure", "acks_on_failure_or_timeout", "acks_on_timeout"], "autoretry_for="),
    **dict.fromkeys(["after_return", "before_start"], "DELAYEDQ['AROUND_ATTEMPTS'] in the settings"),
    **dict.fromkeys(["compression", "serializer"], _JSON),
    **dict.fromkeys(["exchange", "routing_key"], "queue="),
    **dict.fromkeys(["on_failure", "on_retry", "on_success"], "delayedq.task, which has this option"),
    "base": "bind=True, on a function, and DELAYEDQ['AROUND_ATTEMPTS'] for what all tasks do",
    "pydantic": "nothing in its place: make the model of the arguments in the function",
    "retry_kwargs": "max_retries= and default_retry_delay=",
    "retry_on_worker_lost": "nothing in its place: a message whose worker was killed runs again",
    "throws": "nothing in its place: each error is logged, whatever its class",
}
#: Arguments of `apply_async`.
CALLS = {
    **dict.fromkeys(["link", "link_error"], _ON_END),
    **dict.fromkeys(["chain", "chord", "group_id", "group_index", "parent_id", "root_id", "add_to_parent"], _CHAIN),
    **dict.fromkeys(["connection", "producer", "publisher", "router", "reply_to", "retry", "retry_policy"], _DATABASE),
    **dict.fromkeys(["exchange", "route_name", "routing_key"], "queue="),
    **dict.fromkeys(["compression", "serializer"], _JSON),
    **dict.fromkeys(["soft_time_limit", "time_limit"], _TIMEOUT),
    "headers": "task.using(metadata={...}), which current_message().metadata returns",
    "retries": "max_retries= of shared_task",
    "shadow": "task.using(metadata={...})",
    "task_id": "task.schedule_at(when, ..., key=...); the id is that of the result",
}
#: Arguments of `self.retry`.
RETRIES = {
    "args": "the arguments of the message, which it keeps; or enqueue another one and return",
    "kwargs": "the arguments of the message, which it keeps; or enqueue another one and return",
    "max_retries": "max_retries= of shared_task",
    "throw": "self.retry() without it, which always raises",
    "queue": "the queue of the message, which it keeps; or enqueue another one and return",
    "priority": "the priority of the message, which it keeps; or enqueue another one and return",
    "expires": "expires= of shared_task",
}
#: Attributes of results, and arguments of their methods.
RESULTS = {
    "app": "nothing in its place: manage.py knows the project",
    "args": "delayedq.models.Message and FinishedMessage, whose rows have args",
    "children": "delayedq.get_flow(id).steps()",
    "collect": "delayedq.as_completed(...)",
    "date_done": "task.get_result(id).finished_at",
    "info": "result.result",
    "interval": "get(timeout), which knows how often to ask",
    "iterdeps": "delayedq.get_flow(id).steps()",
    "kwargs": "delayedq.models.Message and FinishedMessage, whose rows have kwargs",
    "name": "task.get_result(id).task.name",
    "on_message": "delayedq.signals",
    "parent": "delayedq.get_flow(id).steps()",
    "queue": "task.get_result(id).task.queue_name",
    "retries": "task.get_result(id).attempts - 1",
    "signal": "result.revoke() without it: a task that runs is told, and its process is not killed",
    "terminate": "result.revoke() without it: a task that runs is told, and its process is not killed",
    "then": _ON_END,
    "throw": "result.get()",
    "traceback": "task.get_result(id).errors",
    "wait": "result.get()",
    "worker": "task.get_result(id).worker_ids",
}
#: What is imported from Celery under these names.
NAMES = {
    "Celery": "nothing in its place: manage.py knows the project",
    "GroupResult": "delayedq.group(...).enqueue(), whose result has wait() and result()",
    "Task": "shared_task(bind=True), on a function",
    "chain": "delayedq.chain(first.s(...), second.s())",
    "chord": "delayedq.chain(delayedq.group(...), callback.s())",
    "chunks": "delayedq.map_(task, rows, chunk=500)",
    "crontab": "DELAYEDQ['CRON'] in the settings, or delayedq.schedules.create(...)",
    "current_task": "delayedq.current_message()",
    "group": "delayedq.group(task.s(...), ...)",
    "signature": "task.s(...)",
    "task": "shared_task",
}


def refused(of: str, names: Iterable[str], cures: dict[str, str]) -> str:
    """The sentence about names that `of` does not have here, with what to use for the first one that has an equal."""
    known = sorted(names)
    cure = next((f" Use {cures[name]}." for name in known if name in cures), "")
    return f"{of} knows no {', '.join(known)}; see docs/moving.md.{cure}"
