"""The desk: messages that people decide, until a machine can. See docs/desk.md.

Start with `decorator.py` (`desk_task`); `visits.py` is what a worker does with a message of it, `verbs.py` what
people do with the item that it opens, and `agreement.py` how much of it a machine may decide.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from delayedq.desk.decorator import DeskTask, desk_task
from delayedq.desk.errors import DeskError, InvalidDecision, NotAllowed, NotOpen, Taken
from delayedq.desk.options import NeedsPerson, Proposal, Share

if TYPE_CHECKING:
    from delayedq.desk.models import ItemQuerySet

__all__ = [
    "DeskError",
    "DeskTask",
    "InvalidDecision",
    "NeedsPerson",
    "NotAllowed",
    "NotOpen",
    "Proposal",
    "Share",
    "Taken",
    "desk_task",
    "distribute",
    "items",
    "plant",
    "status_of",
    "take_next",
]

#: What needs the tables, and is imported when it is asked for: tasks are defined before the models are loaded.
_LATER = {
    "take_next": "delayedq.desk.assignment",
    "distribute": "delayedq.desk.assignment",
    "plant": "delayedq.desk.known_answers",
    "status_of": "delayedq.desk.status",
}


def items(queue: str | None = None) -> ItemQuerySet:
    """The desk items of a queue (None: of all), as a QuerySet to be joined with a project's own models.

    items("refunds").unassigned().count()
    """
    from delayedq.desk.models import Item

    return Item.objects.all() if queue is None else Item.objects.filter(queue=queue)


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
