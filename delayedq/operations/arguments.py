"""The arguments of messages, as an operator edits them: JSON values by name, bound to the signature of their task.

A message is edited only while it waits and still is as it was seen, also its payload: a worker that has claimed it
meanwhile, a replacement and another edit keep what they have. What is entered is checked as `enqueue` checks it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils.translation import gettext_noop

from delayedq.core.serialization import load_call
from delayedq.exceptions import ArgumentsMismatch, CannotRun, UnknownTask
from delayedq.models import EditedMessage, Message
from delayedq.operations.edits import begin, place_of, seen_in
from delayedq.store import operator_store
from delayedq.store.offers import check
from delayedq.store.operator import Rewrite, Seen
from delayedq.tasks import parameters_of, registered, task_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from inspect import Signature

    from delayedq.models import Edit
    from delayedq.store.base import Store
    from delayedq.store.protocol import Offer
    from delayedq.tasks import Task

#: As it stands in `Edit.action`.
ARGUMENTS = gettext_noop("arguments")


def by_name(kind: str, payload: str) -> dict[str, Any]:
    """The arguments of a payload by name, as JSON values; the whole payload if they can't be told apart."""
    try:
        return bound(kind, payload)
    except CannotRun:
        return {"payload": payload}


def bound(kind: str, payload: str) -> dict[str, Any]:
    """The arguments by name, as JSON values. Raises UnknownTask, ArgumentsMismatch."""
    task = task_at(kind)
    try:
        call = json.loads(payload)
        given = parameters_of(task).bind(*call.get("args", []), **call.get("kwargs", {})).arguments
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise ArgumentsMismatch(f"The stored arguments do not fit {kind}: {type(error).__name__}.") from None
    return {name: [*value] if isinstance(value, tuple) else value for name, value in given.items()}


def offer_of(task: Task[..., Any], arguments: Mapping[str, Any]) -> Offer:
    """The message that a call with these arguments (JSON values by name) would store, checked as `enqueue` does.

    Raises TypeError for arguments that do not fit the function, InvalidMessage for what can't be stored, CannotRun for
    what can't be read, as a reference to a row that was deleted.
    """
    args, kwargs = call_with(task, arguments)
    offer = task.offer(args, kwargs, when=None)
    check(offer)
    return offer


def call_with(task: Task[..., Any], arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The args and kwargs of a call, with the values that the JSON values stand for. Raises what `offer_of` raises."""
    call = _call(parameters_of(task), arguments)
    return load_call(json.dumps(call))


def _call(signature: Signature, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Positional as far as the signature and the given names allow, then by name."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    gap = False
    for name, parameter in signature.parameters.items():
        if name not in arguments:
            gap = gap or parameter.kind is not parameter.VAR_POSITIONAL
        elif parameter.kind is parameter.VAR_POSITIONAL:
            args += _of_type(list, name, arguments)
            if gap and arguments[name]:
                raise TypeError(f"{name} needs all arguments before it.")
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs |= _of_type(dict, name, arguments)
        elif gap or parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[name] = arguments[name]
        else:
            args.append(arguments[name])
    return {"args": args, "kwargs": kwargs}


def _of_type[T](form: type[T], name: str, arguments: Mapping[str, Any]) -> T:
    value = arguments[name]
    if not isinstance(value, form):
        raise TypeError(f"{name} is a {form.__name__}, not {type(value).__name__}.")
    return value


# Edits


def edit_arguments(store: Store, message: Message, arguments: Mapping[str, Any], made_by: str = "") -> Edit | None:
    """Give a waiting message other arguments; None if it runs, ended, or changed since `message` was read.

    `arguments`: JSON values by name, all of them. Raises what `offer_of` raises, and UnknownTask.
    """
    if message.kind not in registered:
        raise UnknownTask(f"Its task is not registered here: {message.kind}.")
    payload = offer_of(registered[message.kind], arguments).payload
    seen = Seen._make(getattr(message, name) for name in Seen._fields)
    with transaction.atomic(using=store.alias):
        if not operator_store(store.alias).rewrite([Rewrite(seen, message.payload, payload)]):
            return None
        edit = begin(store, ARGUMENTS, f"Edit the arguments of {message}", made_by)
        place = place_of(seen) | {"attempt": seen.attempt}
        before, after = (json.dumps(place | {"payload": text}) for text in (message.payload, payload))
        EditedMessage.objects.using(store.alias).create(
            edit=edit, message_id=message.pk, generation=seen.generation, before=before, after=after
        )
        edit.changed = 1
        edit.save(using=store.alias, update_fields=["changed"])
    return edit


def undo_arguments(store: Store, records: Sequence[EditedMessage]) -> set[int]:
    """Give the messages their old arguments back, where they still are as the edit left them; returns their ids."""
    texts = [[json.loads(text)["payload"] for text in (record.after, record.before)] for record in records]
    seen = [seen_in(record, record.after) for record in records]
    rewrites = [Rewrite(one, *text) for one, text in zip(seen, texts, strict=True)]
    return operator_store(store.alias).rewrite(rewrites)
