"""The end of an item: its message ends with the decision, and what follows is stored with it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

from django.db import Error
from django.forms import BaseForm
from django.utils.translation import gettext as _

from delayedq.core.metadata import shortest_deadline
from delayedq.core.serialization import loads
from delayedq.cron.ticks import later
from delayedq.desk.errors import InvalidDecision, NotOpen, Replaced
from delayedq.desk.tasks import decided
from delayedq.exceptions import CannotRun, DeadlineExceeded, UnknownTask
from delayedq.masking import masking_of
from delayedq.models import FinishedMessage, Message
from delayedq.operations.sending import end_waiting
from delayedq.store import operator_store, store_for
from delayedq.store.operator import Move, Seen
from delayedq.tasks import Task, task_at

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.desk.models import Item
    from delayedq.desk.options import Desk
    from delayedq.store.protocol import Claimed, Offer

# When a worker looks at the message of an open item again.


#: A message whose item is open is visited at least this often, counted from when the item was opened: so a time says
#: whether it is that of a visit (`is_visit`).
VISIT = timedelta(days=1)

#: When a worker comes again where the clock of its host is behind that of the database, by which a deadline is over.
SOON = timedelta(seconds=1)


def next_visit(item: Item, desk: Desk, now: datetime, deadline_at: datetime | None = None) -> datetime:
    """When something is due next, or a day is over, or the deadline of the message: then a worker ends it."""
    due = [moment for moment in _due(item, desk) if moment > now]
    visit = min(due, default=item.opened_at + VISIT * ((now - item.opened_at) // VISIT + 1))
    return visit if deadline_at is None else min(visit, max(deadline_at, now + SOON))


def deadline_of(message: Message | Claimed, task: Task[..., Any] | None) -> datetime | None:
    """When the message ends, if nobody has decided it."""
    deadline = shortest_deadline(message.metadata, None if task is None else task.deadline)
    return None if deadline is None else later(message.scheduled_at_initially, deadline)


def is_visit(item: Item, desk: Desk, moment: datetime) -> bool:
    """Whether it is a time that the desk chooses; others are those of who submitted it, a backoff, or an operator."""
    return moment in _due(item, desk) or (moment > item.opened_at and not (moment - item.opened_at) % VISIT)


def _due(item: Item, desk: Desk) -> list[datetime]:
    if item.due_at is None:
        return []
    warned = item.due_at - desk.warn_before
    return [max(warned, item.until) if item.is_clock_paused and item.until else warned, item.due_at]


# Ends


#: The verbs that leave a message in the history.
RECORDED = {"finish", "approve", "send_back", "postpone", "automate"}

#: Those that may end its message.
DECIDING = {"finish", "approve"}

#: How the error begins of a message that was not decided before its deadline.
_LATE = f"{DeadlineExceeded.__module__}.{DeadlineExceeded.__name__}"


def desk_of(task: Task[..., Any]) -> Desk:
    """Its options. Raises UnknownTask if it is no desk task any more."""
    desk = getattr(task, "desk", None)
    if desk is None:
        raise UnknownTask(f"{task.name} is not a desk task.")
    return cast("Desk", desk)


def checked(desk: Desk, result: Any) -> Any:
    """The result as the form of the task makes it, or a form that is bound says. Raises InvalidDecision."""
    if isinstance(result, BaseForm):
        return _valid(result)
    if desk.form is None or not isinstance(result, Mapping):
        return result
    return _valid(desk.form(data=dict(result)))


def checked_of_handler(desk: Desk, result: Any) -> Any:
    """The same of what a handler decides by itself. Raises InvalidDecision also for what is no data of the form.

    Where the form makes its result by a method of its own, the handler returns such a result, and nothing checks it.
    """
    if isinstance(result, BaseForm):
        return _valid(result)
    if desk.form is None or _makes_results(desk):
        return result
    if not isinstance(result, Mapping):
        raise InvalidDecision(f"The handler must return a dict, the data of its form, not {result!r}.")
    return checked(desk, result)


def _makes_results(desk: Desk) -> bool:
    """Whether the form makes its result by a method of its own: then a result is no data of it."""
    return hasattr(desk.form, "result")


def _valid(form: Any) -> Any:
    if not form.is_valid():
        errors = {name: [str(text) for text in texts] for name, texts in form.errors.items()}
        said = "; ".join(f"{name}: {' '.join(texts)}" for name, texts in errors.items())
        raise InvalidDecision(said, errors)
    return form.result() if hasattr(form, "result") else dict(form.cleaned_data)


def agreed(item: Item, desk: Desk) -> bool | None:
    """Whether the handler decides as the known answer, or as the person who did not see it; None: not compared.

    What code decides is not compared, nor what refers to a row that was deleted.
    """
    if item.proposal is None or (item.truth is None and (item.decided_by_id is None or not item.is_blind)):
        return None
    try:
        return _alike(desk, loads(item.proposal), loads(item.truth or item.decision or "null"))
    except CannotRun:
        return None


def _alike(desk: Desk, proposal: Any, right: Any) -> bool:
    """The order of fields does not count, nor does what the form makes of what the handler returns."""
    try:
        return bool(proposal == right or (not _makes_results(desk) and checked(desk, proposal) == right))
    except Error:
        raise
    except Exception:  # noqa: BLE001 - the form may fail at what no form has sent
        return False


def close(item: Item, desk: Desk, now: datetime) -> None:
    """End the message of an item with its decision. Raises NotOpen if it was withdrawn or replaced, or is busy."""
    store = store_for(item._state.db or "default")  # noqa: SLF001 - Django's documented API
    by = "desk" if item.decided_by is None else f"desk/{item.decided_by}"
    if not end_waiting(
        store, item.message_id, item.generation, result=item.decision, by=by, seconds=item.seconds or 0.0,
        follow_ups=_follow_ups(item, desk), is_meant=lambda claimed: is_shown(item, claimed),
    ):  # fmt: skip
        raise _why_not(item)
    item.is_open, item.closed_at = False, now


def call_on_finish(item: Item) -> None:
    """Call the function that follows a decision which has ended its message, and is stored."""
    follows = desk_of(task_at(item.kind)).on_finish
    if not item.is_open and item.truth is None and follows is not None and not isinstance(follows, Task):
        follows(item)


def _follow_ups(item: Item, desk: Desk) -> list[Offer]:
    if item.truth is not None:  # no case of the business: nothing follows
        return []
    tasks = [task_at(item.kind).on_success, desk.on_finish]
    return [one.offer([str(item.message_id)], {}, when=one.run_after) for one in tasks if isinstance(one, Task)]


def demand_current(item: Item) -> None:
    """Raises NotOpen if its message was withdrawn or replaced since it was opened."""
    message = _message_of(item)
    if message is None or not _is_current(item, message):
        raise _why_not(item)


def digest_of(kind: str, payload: str) -> str:
    """Of the task and the arguments of a message: its generation begins at 0 again when it is brought back."""
    return blake2b(f"{kind}\n{payload}".encode(errors="surrogatepass"), digest_size=16).hexdigest()


def is_shown(item: Item, message: Message | Claimed) -> bool:
    """Whether the item was opened for these arguments, and in this queue; an item that has no digest is taken to be.

    What was late has gone to another queue than its message, which is in `escalated_from`; that of the version before
    has none.
    """
    is_unknown = item.escalated_at is not None and item.escalated_from is None
    is_there = not item.is_open or is_unknown or message.queue in {item.escalated_from, item.queue}
    return is_there and (item.digest is None or item.digest == digest_of(message.kind, message.payload))


def _is_current(item: Item, message: Message) -> bool:
    return message.generation == item.generation and is_shown(item, message)


def _message_of(item: Item) -> Message | None:
    return Message.objects.using(item._state.db).filter(pk=item.message_id).first()  # noqa: SLF001


def _why_not(item: Item) -> NotOpen:
    message = _message_of(item)
    if message is None:
        return NotOpen(ended(item))
    if not _is_current(item, message):
        return Replaced(_("Its message was replaced since: read it again."))
    return NotOpen(_("A worker looks at its message at this moment: try again."))


def ended(item: Item) -> str:
    """Why its message has ended without its decision."""
    rows = FinishedMessage.objects.using(item._state.db).filter(pk=item.message_id)  # noqa: SLF001
    if rows.filter(error__startswith=_LATE).exists():
        return _("Its deadline was over before it was decided.")
    return _("Its message has ended: it was withdrawn.")


def bring_forward(item: Item) -> None:
    """Let a worker open it anew now, if its message has other arguments and was only put off to the next visit.

    That message keeps its time if it was replaced at a later one, waits for another attempt, or was rescheduled.
    """
    store, message = store_for(item._state.db or "default"), _message_of(item)  # noqa: SLF001
    if message is None or _is_current(item, message) or not _is_put_off(item, message):
        return
    seen = Seen._make(getattr(message, name) for name in Seen._fields)
    if seen.scheduled_at > (now := store.now()):
        operator_store(store.alias).move([Move(seen, now, seen.queue, seen.priority)])


def move_due(item: Item, desk: Desk, by: timedelta, now: datetime, *, is_paused: bool) -> None:
    """Let it be due later (or earlier) by this much, as its clock is paused (or goes on), and be visited in time."""
    store, message = store_for(item._state.db or "default"), _message_of(item)  # noqa: SLF001
    is_put_off = message is not None and _is_put_off(item, message)
    assert item.due_at is not None
    item.due_at, item.is_clock_paused = item.due_at + by, is_paused
    if message is not None and is_put_off:
        seen = Seen._make(getattr(message, name) for name in Seen._fields)
        when = next_visit(item, desk, now, deadline_of(message, task_at(item.kind)))
        operator_store(store.alias).move([Move(seen, when, seen.queue, seen.priority)])


def _is_put_off(item: Item, message: Message) -> bool:
    """Whether it waits for the next visit; not of a task that is gone."""
    if message.scheduled_at <= message.scheduled_at_initially:
        return False
    try:
        task = task_at(item.kind)
        is_last = message.scheduled_at == deadline_of(message, task)
        return is_last or is_visit(item, desk_of(task), message.scheduled_at)
    except UnknownTask:
        return False


def record(item: Item, verb: str, by: Any) -> None:
    """Store a message that says what was decided; it is in the history soon.

    What who decides is not to see (the handler's blind decision, a known answer) is in it once the item is closed.
    """
    task = task_at(item.kind)
    is_hidden = item.is_open and item.is_blind
    is_compared = not item.is_open or (item.truth is None and not item.is_blind)
    decided.using(queue_name=task.queue_name, backend=task.backend).enqueue(
        message_id=item.message_id,
        task=item.kind,
        key=item.key,
        verb=verb,
        by=None if by is None else str(by),
        decision=shown_result(item.kind, item.decision),
        proposal=None if is_hidden else shown_result(item.kind, item.proposal),
        confidence=None if is_hidden else item.confidence,
        mode=item.mode,
        agreed=item.agreed if is_compared else None,
        truth=None if item.is_open else shown_result(item.kind, item.truth),
        reason=item.reason,
        why=item.why,
    )


def shown_result(kind: str, text: str | None) -> Any:
    """The value of the JSON of a decision as it is shown: that of a sensitive task is masked."""
    masking = masking_of(kind)
    try:
        return None if text is None else loads(text if masking is None else masking.result(text))
    except CannotRun:
        return None
