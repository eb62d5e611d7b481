"""`manage.py delayedq explain`: why a message, or the steps of a flow, do not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.utils.translation import gettext as _

from delayedq.flows.operator import explain_step, steps_of
from delayedq.management.backends import all_stores
from delayedq.management.telling import add_json, tell
from delayedq.operations.browsing import PAGE, Selection, by_key, find_ended, find_live, id_in
from delayedq.operations.explain import explain
from delayedq.operations.wording import printable

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator

    from django.core.management.base import OutputWrapper

    from delayedq.models import FinishedMessage, Message
    from delayedq.store.base import Store

#: What the name of a flow begins with.
FLOW = "flow:"


def add_explain(parser: ArgumentParser) -> None:
    parser.add_argument("message", metavar="ID|KEY|flow:ID", help="The beginning of a key is enough.")
    add_json(parser)


def run_explain(out: OutputWrapper, options: dict[str, Any]) -> None:
    """Raises CommandError if there is no such message or flow."""
    text: str = options["message"]
    if text.startswith(FLOW):
        _explain_flow(out, options, text.removeprefix(FLOW))
        return
    found = [(store, message) for store in all_stores() for message in _named(store, text)]
    candidates = [] if found else [(store, message) for store in all_stores() for message in _begun(store, text)]
    if not found and not candidates:
        said = _(
            "There is no live message with the id or key %(text)r, nor one whose key begins with it, and no ended"
            " one with that id."
        )
        raise CommandError(said % {"text": text})
    many = len(candidates) > 1
    values = [_value(store, message, many=many) for store, message in found or candidates]
    tell(out, options, "\n".join(_lines(values, text)), values)


def _value(store: Store, message: Message | FinishedMessage, *, many: bool) -> dict[str, Any]:
    """`many`: a key that begins so is none of a single message, and none is explained."""
    answers = None if many else [answer._asdict() for answer in explain(message, store=store)]
    return {
        "database": store.alias,
        "id": message.pk,
        "kind": message.kind,
        "key": message.key,
        "answers": answers,
    }


def _lines(values: list[dict[str, Any]], text: str) -> Iterator[str]:
    for one in values:
        yield printable(f"#{one['id']} {one['kind']} {one['key'] or ''}".strip())
        for answer in one["answers"] or []:
            yield f"  {printable(answer['text'])}"
    if values[0]["answers"] is None:
        about = {"number": min(len(values), PAGE), "text": printable(text)}
        more = _("More than %(number)s messages have a key that begins with %(text)s; name one to have it explained.")
        these = _("%(number)s messages have a key that begins with %(text)s; name one to have it explained.")
        yield (more if len(values) > PAGE else these) % about


def _explain_flow(out: OutputWrapper, options: dict[str, Any], text: str) -> None:
    id_ = id_in(text) or 0
    found = [(store, steps) for store in all_stores() if (steps := steps_of(store, id_))]
    if not found:
        raise CommandError(_("There is no flow %(name)r.") % {"name": printable(text)})
    values = [
        {"database": store.alias, "step": one.step.name, "state": one.step.state, "text": explain_step(one, steps)}
        for store, steps in found
        for one in steps
    ]
    said = [f"{printable(one['step'])}: {one['state']}\n  {printable(one['text'])}" for one in values]
    tell(out, options, "\n".join(said), values)


def _named(store: Store, text: str) -> list[Message | FinishedMessage]:
    """The messages with this id or key."""
    return [*find_live(store, text), *find_ended(store, text)]


def _begun(store: Store, text: str) -> list[Message]:
    """Up to PAGE + 1 live messages whose keys begin so."""
    return by_key(store, text, Selection(as_of=store.now()))
