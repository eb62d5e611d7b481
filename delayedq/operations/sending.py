"""Send a message of a registered task by hand, recorded as an edit: undo cancels it while no attempt has begun."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import transaction
from django.utils.translation import gettext_noop

from delayedq.conf import get_settings
from delayedq.core.bounds import NAME_LENGTH
from delayedq.core.lifecycle import FinalOutcome
from delayedq.core.serialization import load_call
from delayedq.exceptions import ArgumentsMismatch, CannotRun, InvalidMessage, QueueFull, UnknownTask
from delayedq.models import EditedMessage, Message
from delayedq.operations.edits import begin, place_of, seen_in
from delayedq.store import operator_store
from delayedq.store.offers import check
from delayedq.store.operator import Rewrite, Seen
from delayedq.store.protocol import Finish, OfferOutcome, OnConflict
from delayedq.tasks import parameters_of, registered, task_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from inspect import Signature

    from delayedq.models import Edit
    from delayedq.store.base import Store
    from delayedq.store.protocol import Claimed, Offer
    from delayedq.tasks import Task

# The arguments of messages, as an operator edits them: JSON values by name, bound to the signature of their task.
#
# A message is edited only while it waits and still is as it was seen, also its payload: a worker that has claimed it
# meanwhile, a replacement and another edit keep what they have. What is entered is checked as `enqueue` checks it.


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
def edit_arguments(
    store: Store, message: Message, arguments: Mapping[str, Any], made_by: str = "", why: str = ""
) -> Edit | None:
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
        edit = begin(store, ARGUMENTS, f"Edit the arguments of {message}", made_by, why)
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


# Sending


#: As it stands in `Edit.action`.
SEND = gettext_noop("send")


class Sending(NamedTuple):
    """What to send. `arguments`: JSON values by name. `at` None: now. The rest None: as the task says."""

    task: Task[..., Any]
    arguments: Mapping[str, Any]
    at: datetime | None = None
    key: str | None = None
    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None


class Sent(NamedTuple):
    id: int
    edit: Edit


def is_sendable(task: Task[..., Any], store: Store) -> bool:
    """Whether its backend stores messages in this database."""
    backend_store: Store | None = getattr(task.get_backend(), "store", None)
    return backend_store is not None and backend_store.alias == store.alias


def send(store: Store, sending: Sending, made_by: str = "", why: str = "") -> Sent:
    """Store the message, by the backend of its task. Raises what `Task.schedule_at` raises, and CannotRun.

    Raises InvalidMessage for a key that a live message has, and for a task of another database.
    """
    task = sending.task.using(queue_name=sending.queue, priority=sending.priority, max_attempts=sending.max_attempts)
    if not is_sendable(task, store):
        raise InvalidMessage(f"The messages of {task.name} are not in this database.")
    args, kwargs = call_with(task, sending.arguments)
    with transaction.atomic(using=store.alias):
        scheduled = task.schedule_at(
            sending.at or store.now(), *args, key=sending.key, on_conflict=OnConflict.KEEP, **kwargs
        )
        if scheduled.outcome is OfferOutcome.DROPPED:
            raise QueueFull(f"A limit of {task.name} has reached its size: nothing was stored.")
        if scheduled.outcome is not OfferOutcome.CREATED or scheduled.id is None:
            raise InvalidMessage(f"A live message of this task has the key {sending.key!r}.")
        return Sent(int(scheduled.id), _recorded(store, int(scheduled.id), made_by, why))


def _recorded(store: Store, id_: int, made_by: str, why: str) -> Edit:
    message = Message.objects.using(store.alias).get(id=id_)
    seen = Seen._make(getattr(message, name) for name in Seen._fields)
    edit = begin(store, SEND, f"Send {message}", made_by, why)
    after = json.dumps(place_of(seen) | {"attempt": 0})
    EditedMessage.objects.using(store.alias).create(
        edit=edit, message_id=id_, generation=seen.generation, before=json.dumps({}), after=after
    )
    edit.changed = 1
    edit.save(using=store.alias, update_fields=["changed"])
    return edit


# End a message that no worker holds with a result: what was waited for has come from elsewhere.


def end_waiting(
    store: Store,
    message_id: int,
    generation: int,
    *,
    result: str | None,
    by: str,
    seconds: float = 0.0,
    follow_ups: Sequence[Offer] = (),
    is_meant: Callable[[Claimed], bool] | None = None,
) -> bool:
    """End the message as succeeded, due or not, in the caller's transaction; False if it has changed nothing.

    That is so if a worker holds it, if another transaction has locked it, if it was replaced since (`generation`), or
    if it has ended. `result` is the JSON of its result, `by` the name that the history has for its worker, `seconds`
    how long the work took. `follow_ups` are offered with it. `is_meant` is asked of the message once nobody else can
    change it: False keeps it as it is.
    """
    with transaction.atomic(using=store.alias):
        claimed = store.claim_unchanged(message_id, generation, get_settings().LEASE, by[:NAME_LENGTH])
        if claimed is None:
            return False
        if is_meant is not None and not is_meant(claimed):
            transaction.set_rollback(True, using=store.alias)
            return False
        task = registered.get(claimed.kind)
        kept = None if task is None else task.result_retention
        end = Finish(claimed, FinalOutcome.SUCCEEDED, seconds, 0.0, result, None, tuple(follow_ups), kept)
        settled = store.settle([end], by[:NAME_LENGTH])
        transaction.on_commit(store.tell_ends, using=store.alias, robust=True)
    return not (settled.lost or settled.busy or settled.superseded)
