"""Show an item on a page: its state at this moment, and its arguments. What is sensitive is masked."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.core.serialization import load_call
from delayedq.desk.ends import deadline_of
from delayedq.desk.models import ENDING, State
from delayedq.exceptions import CannotRun
from delayedq.masking import shown
from delayedq.models import FinishedMessage, Message
from delayedq.operations.wording import printable
from delayedq.tasks import parameters_of, registered

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, timedelta

    from delayedq.desk.models import Item, ItemChange

logger = logging.getLogger("delayedq")

#: A list shows at most this many characters of the arguments, and a page of a value.
PREVIEW_LENGTH, VALUE_LENGTH = 120, 10_000

#: The history of an item shows so many lines.
HISTORY = 100

#: What was done, by its verb.
DONE = {
    "assign": gettext_lazy("%(by)s assigned it to %(holder)s"),
    "unassign": gettext_lazy("%(by)s gave it back"),
    "postpone": gettext_lazy("%(by)s postponed it"),
    "finish": gettext_lazy("%(by)s decided it"),
    "approve": gettext_lazy("%(by)s approved the decision"),
    "send_back": gettext_lazy("%(by)s sent it back"),
    "withdraw": gettext_lazy("closed: its message has ended"),
    "replace": gettext_lazy("opened anew: its message was changed"),
}


class ItemRow(NamedTuple):
    """An item in a list. `name`: its key, or the number of its message. `about`: its arguments in one line. `left`: of
    its clock, if that is paused.
    """

    item: Item
    name: str
    state: State
    is_late: bool
    about: str
    left: timedelta | None


class ItemCall(NamedTuple):
    """The arguments of an item by name: as they are, and as texts; or why they cannot be shown. `deadline_at`: when its
    message ends, if nobody decides it before.
    """

    given: dict[str, Any]
    texts: list[tuple[str, str, str]]
    problem: str = ""
    deadline_at: datetime | None = None


def state_at(item: Item, now: datetime) -> State:
    """What has run out waits again."""
    is_over = item.state in ENDING and item.until is not None and item.until <= now
    return State.WAITING if is_over else State(item.state)


def rows_of(items: Iterable[Item], now: datetime) -> list[ItemRow]:
    """The items as a list shows them: two statements for the arguments of all."""
    found = list(items)
    about = _abouts({item.message_id for item in found})
    return [
        ItemRow(
            item,
            name_of(item),
            state_at(item, now),
            item.is_open and item.due_at is not None and item.due_at <= now,
            about.get(item.message_id, ""),
            item.clock_left(now),
        )
        for item in found
    ]


class ItemStep(NamedTuple):
    """A line of the history of an item. `what`: a sentence; `until`, `why` and whether the clock is paused: of a
    postponement, or a rejection.
    """

    at: datetime
    what: str
    until: datetime | None
    why: str
    is_clock_paused: bool


def history_of(item: Item) -> list[ItemStep]:
    """What was done with it, the oldest first: the latest HISTORY lines."""
    rows = list(item.changes.select_related("by", "holder").order_by("-at", "-id")[:HISTORY])
    return [
        ItemStep(row.at, _sentence(row), row.until, text_of(row.why), row.is_clock_paused) for row in reversed(rows)
    ]


def _sentence(change: ItemChange) -> str:
    somebody = _("code") if change.is_by_code else _("somebody who was deleted")
    given = {"by": change.by or somebody, "holder": change.holder or _("somebody who was deleted")}
    if change.verb == "assign" and change.by is not None and change.by == change.holder:
        return _("%(by)s took it") % given
    return str(DONE.get(change.verb, change.verb)) % given


def name_of(item: Item) -> str:
    """Its key, with control characters as escapes; without one the number of its message."""
    return printable(item.key) if item.key else f"#{item.message_id}"


def call_of(item: Item) -> ItemCall:
    """The arguments; model instances are those of their rows now."""
    message: Any = Message.objects.filter(pk=item.message_id).first()
    message = message or FinishedMessage.objects.filter(pk=item.message_id).first()
    if message is None:
        return ItemCall({}, [], _("Its message is not in the database any more."))
    try:
        given = _named(item.kind, *load_call(shown(message).payload))
    except CannotRun as error:
        return ItemCall({}, [], text_of(str(error)))
    texts = [(name, text_of(value), _address(value)) for name, value in given.items()]
    return ItemCall(given, texts, deadline_at=deadline_of(message, registered.get(item.kind)))


def text_of(value: Any) -> str:
    """A value as a text to read: lists and dicts as JSON, control characters as escapes."""
    if isinstance(value, dict | list | tuple):
        value = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    return "\n".join(printable(line) for line in str(value)[:VALUE_LENGTH].split("\n"))


def _abouts(ids: set[int]) -> dict[int, str]:
    """By id of the message: its arguments in one line, without loading the rows to which they refer."""
    texts: dict[int, str] = {}
    for model in (Message, FinishedMessage):
        missing = ids - texts.keys()
        messages: Any = model.objects.filter(pk__in=missing) if missing else ()
        texts |= {message.pk: _about(message) for message in messages}
    return texts


def _about(message: Message | FinishedMessage) -> str:
    try:
        call = json.loads(shown(message).payload)
        given = _named(message.kind, call.get("args", []), call.get("kwargs", {}))
    except (ValueError, RecursionError, AttributeError, TypeError):
        return ""
    line = " · ".join(f"{name}: {_brief(value)}" for name, value in given.items())
    return printable(line.replace("\n", " "))[:PREVIEW_LENGTH]


def _brief(value: Any) -> str:
    """A stored value: of one that JSON lacks what is in its tag, of a row its model and key."""
    if isinstance(value, dict) and "$" in value:
        value = value.get("v", value)
        if isinstance(value, dict) and "model" in value:
            return f"{str(value['model']).rpartition('.')[2]} {value.get('pk')}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _named(kind: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the task's parameters; by their numbers if they do not fit them."""
    task = registered.get(kind)
    try:
        if task is not None:
            return dict(parameters_of(task).bind(*args, **kwargs).arguments)
    except TypeError:
        pass
    return {str(number): value for number, value in enumerate(args, 1)} | kwargs


def _address(value: Any) -> str:
    """Where a model instance has a page; an empty text: it has none, or its project's code fails."""
    address = getattr(value, "get_absolute_url", None)
    try:
        return str(address()) if callable(address) else ""
    except Exception:
        logger.exception("The address of %r was not found.", type(value).__name__)
        return ""
