"""Payloads as people read them. They come from the database, so nothing in them is trusted, imported or run."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from delayedq.admin.base import cut
from delayedq.tasks import parameters_of, registered

#: A value beside the name of its argument takes at most so many characters.
VALUE_LENGTH = 2_000


class Argument(NamedTuple):
    name: str
    value: str


class Call(NamedTuple):
    """The payload of a task: its arguments by name, or what is wrong with it."""

    arguments: list[Argument]
    problem: str = ""


def pretty(text: str | None) -> str:
    """JSON with indents; whatever else it is, as it stands."""
    if text is None:
        return ""
    try:
        return cut(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        return cut(text)


def call_of(kind: str, payload: str) -> Call:
    """The arguments bound to the signature of the task, if it is registered here."""
    task = registered.get(kind)
    if task is None:
        return Call([], "Its task is not registered here.")
    try:
        call = json.loads(payload)
        bound = parameters_of(task).bind(*call.get("args", []), **call.get("kwargs", {}))
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        return Call([], f"It does not fit the signature of its task: {cut(str(error), VALUE_LENGTH)}")
    return Call([Argument(name, _value(value)) for name, value in bound.arguments.items()])


def _value(value: Any) -> str:
    return cut(json.dumps(value, ensure_ascii=False), VALUE_LENGTH)
