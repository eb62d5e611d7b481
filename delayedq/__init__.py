"""Delayed messages and background tasks in the project's own database."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from delayedq.exceptions import Cancel, Fail, Retry, Snooze

if TYPE_CHECKING:
    from delayedq.flows.graph import Flow, chain, group, map_
    from delayedq.flows.result import FlowResult, get_flow
    from delayedq.limits.rules import Limit, Rate
    from delayedq.queue import Acknowledgement, BatchedMessage, DelayedQueue, Envelope, History, Topic
    from delayedq.results.cancelling import Cancellation
    from delayedq.results.message import cancel_all
    from delayedq.results.waiting import as_completed, as_completed_async, await_all, wait_all
    from delayedq.store.protocol import OfferOutcome
    from delayedq.tasks import Task, current_message, task
    from delayedq.tasks.current import track
    from delayedq.tasks.scheduling import Call, Scheduled

__all__ = [
    "Acknowledgement",
    "BatchedMessage",
    "Call",
    "Cancel",
    "Cancellation",
    "DelayedQueue",
    "Envelope",
    "Fail",
    "Flow",
    "FlowResult",
    "History",
    "Limit",
    "OfferOutcome",
    "Rate",
    "Retry",
    "Scheduled",
    "Snooze",
    "Task",
    "Topic",
    "as_completed",
    "as_completed_async",
    "await_all",
    "cancel_all",
    "chain",
    "current_message",
    "get_flow",
    "group",
    "map_",
    "task",
    "track",
    "wait_all",
]
__version__ = "0.1.0"

_HOMES = {
    "delayedq.results.cancelling": {"Cancellation"},
    "delayedq.flows.graph": {"Flow", "chain", "group", "map_"},
    "delayedq.flows.result": {"FlowResult", "get_flow"},
    "delayedq.limits.rules": {"Limit", "Rate"},
    "delayedq.results.message": {"cancel_all"},
    "delayedq.queue": {"Acknowledgement", "BatchedMessage", "DelayedQueue", "Envelope", "History", "Topic"},
    "delayedq.tasks.scheduling": {"Call", "Scheduled"},
    "delayedq.store.protocol": {"OfferOutcome"},
    "delayedq.tasks": {"Task", "current_message", "task"},
    "delayedq.tasks.current": {"track"},
    "delayedq.results.waiting": {"as_completed", "as_completed_async", "await_all", "wait_all"},
}


def __getattr__(name: str) -> Any:
    """Tasks and queues are imported on first use, so that `delayedq.core` can be imported without Django."""
    from delayedq.core.other_names import NAMES, hint, unknown_name

    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    if name in NAMES:
        raise unknown_name(f"delayedq has no {name!r}.{hint(name, NAMES)}")
    raise AttributeError(f"module 'delayedq' has no attribute {name!r}")
