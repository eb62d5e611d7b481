"""Payloads as readable text. They come from the database, so nothing in them is trusted, imported or run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils.translation import gettext as _

from delayedq.admin.base import cut
from delayedq.admin.spans import spans_of
from delayedq.masking import hidden, masking_of, shown
from delayedq.operations.browsing import PAYLOAD_START
from delayedq.operations.explain import explain
from delayedq.operations.timeline import attempts_in, timeline
from delayedq.operations.wording import grouped, span, visible
from delayedq.steps.store import recorded_steps
from delayedq.store.progress import read_progress
from delayedq.store.protocol import BARE
from delayedq.tasks import parameters_of, registered

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.core.progress import Progress
    from delayedq.models import FinishedMessage, Message
    from delayedq.store.base import Store

#: At most this many characters of an argument's value are shown.
VALUE_LENGTH = 2_000
#: A list shows at most this many characters of the arguments.
PREVIEW_LENGTH = 160


class Argument(NamedTuple):
    name: str
    value: str


class ShownCall(NamedTuple):
    """The payload of a task: its arguments by name, or why they cannot be shown."""

    arguments: list[Argument]
    problem: str = ""


def pretty(text: str | None) -> str:
    """JSON with indents; a text that is not JSON unchanged."""
    if text is None:
        return ""
    try:
        return cut(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        return cut(text)


def call_of(kind: str, payload: str) -> ShownCall:
    """The arguments bound to the signature of the task, if it is registered here."""
    task = registered.get(kind)
    if task is None:
        return ShownCall([], _("Its task is not registered here."))
    try:
        call = json.loads(payload)
        bound = parameters_of(task).bind(*call.get("args", []), **call.get("kwargs", {}))
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        return ShownCall(
            [], _("It does not fit the signature of its task: %(error)s") % {"error": cut(str(error), VALUE_LENGTH)}
        )
    return ShownCall([Argument(name, _value(value)) for name, value in bound.arguments.items()])


def preview_of(message: Message | FinishedMessage) -> str:
    """The arguments in one line; a list has read only the beginning of the payload."""
    message = shown(message)
    start = getattr(message, "payload_start", None)
    return payload_preview(message.kind, message.payload[:PAYLOAD_START] if start is None else start)


def payload_preview(kind: str, start: str) -> str:
    """The arguments in one line, such as `flight_id=1545, gate="B7"`, from the beginning of a payload.

    A payload that is longer, or none of a task, is shown as it is stored. What is sensitive is masked.
    """
    if (masking := masking_of(kind)) is not None:
        start = masking.payload(start)
    bound = call_of(kind, start).arguments if len(start) < PAYLOAD_START else []
    text = ", ".join(f"{argument.name}={argument.value}" for argument in bound) or _unbound(start)
    return visible(text.replace("\n", " "))[:PREVIEW_LENGTH]


def _unbound(start: str) -> str:
    """The arguments of a task that is not registered here, without the names of those by position."""
    try:
        call = json.loads(start)
        values = [*map(_value, call.get("args", [])), *(f"{name}={_value(v)}" for name, v in call["kwargs"].items())]
    except (ValueError, RecursionError, AttributeError, TypeError, LookupError):
        return "" if start == "{}" else start
    return ", ".join(values)


def _value(value: Any) -> str:
    return cut(json.dumps(value, ensure_ascii=False), VALUE_LENGTH)


def schedule_of(metadata: str | None) -> str:
    """The name of the schedule whose tick created the message; "" if none did."""
    try:
        name = json.loads(metadata or "null")["cron"]["schedule"]
    except (ValueError, RecursionError, TypeError, LookupError):
        return ""
    return visible(name) if isinstance(name, str) else ""


def progress_text(progress: Progress) -> str:
    """How far a message has come, and how long the rest will take."""
    numbers = {"done": grouped(progress.done), "total": grouped(progress.total or 0)}
    text = _("%(done)s of %(total)s done") % numbers if progress.total else _("%(done)s done") % numbers
    if progress.left:
        text += ", " + _("about %(span)s left") % {"span": span(progress.left)}
    return f"{text}: {visible(progress.note)}" if progress.note else text


def steps_of(store: Store, message: Message | FinishedMessage, *, payload: bool) -> list[dict[str, Any]]:
    """The recorded steps of a message as they are shown. `payload` False: the reader may not see their results."""
    masking = masking_of(message.kind) if payload else hidden(message.kind)
    return [
        {
            "name": visible(step.name),
            "at": step.recorded_at,
            "result": visible(cut(masking.result(step.result) if masking else step.result, VALUE_LENGTH)),
        }
        for step in recorded_steps(store, message.pk)
    ]


def about(store: Store, message: Message | FinishedMessage, now: datetime, *, payload: bool) -> dict[str, Any]:
    """The context that the pages of live and ended messages share. `payload` False: the reader may not see it."""
    events = timeline(store, message, now, payload=payload)
    progress = read_progress(store, message.pk)
    steps = steps_of(store, message, payload=payload)
    message = shown(message, payload=payload)
    return {
        "message": message,
        "progress": progress and progress_text(progress),
        "steps": steps,
        "call": call_of(message.kind, message.payload),
        "payload": pretty(message.payload),
        "metadata": pretty(message.metadata),
        "schedule": schedule_of(message.metadata),
        "is_bare": BARE in message.queue,
        "kind": visible(message.kind),
        "key": visible(message.key or ""),
        "queue": visible(message.queue),
        "answers": [answer._replace(text=visible(answer.text)) for answer in explain(message, now)],
        "spans": spans_of(attempts_in(events), message.scheduled_at_initially),
        "events": [
            event._replace(
                detail=cut(event.detail), traceback=cut(event.traceback), log=tuple(visible(line) for line in event.log)
            )
            for event in events
        ],
    }
