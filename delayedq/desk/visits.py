"""Run a message of a desk task: decide it, or open its item and come back when something is due.

While the item is open its message waits, scheduled for the next visit. A visit of a worker that was killed is made
again: it draws the same lots, and finds the item that was committed. That holds for the last attempt, too: where its
worker has vanished without an item, one is opened, and nobody calls the handler again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import models, transaction

from delayedq.core.bounds import NAME_LENGTH, is_storable
from delayedq.core.lifecycle import AskedRetry, Raised
from delayedq.core.serialization import dumps, loads
from delayedq.desk import ends, rules, signals
from delayedq.desk.agreement import WINDOW, Agreement, drawn
from delayedq.desk.ends import deadline_of, next_visit
from delayedq.desk.errors import InvalidDecision
from delayedq.desk.models import UNOPENED, Automation, DeskQueue, Item, ItemChange, State
from delayedq.desk.options import Mode, NeedsPerson, Proposal
from delayedq.exceptions import Retry, Snooze, Steering, TaskCancelled
from delayedq.masking import error_text
from delayedq.sql.priority import shown_priority
from delayedq.store import served_store
from delayedq.worker.transitions import is_spent, retried, vanished_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from delayedq.desk.options import Desk
    from delayedq.store.protocol import Claimed
    from delayedq.worker.attempt import Attempt

REASON_LENGTH = 2_000
#: The skill of an item of which an error hides what people must know: who is given it in the admin may take it.
UNKNOWN = "?"


class HandlerAnswer(NamedTuple):
    """What the handler said: the JSON of its decision, or why it has made none."""

    proposal: str | None = None
    confidence: float | None = None
    reason: str = ""


def visit(attempt: Attempt, desk: Desk, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Returns the result of the message, or raises Snooze."""
    store = served_store()
    now, item = store.now(), Item.objects.using(store.alias).filter(message_id=attempt.id).first()
    if item is None or not _is_of(item, attempt.claimed):
        item = _opened(item, attempt, desk, args, kwargs, now)
    else:
        _look_after(item, desk, now)
    if not item.is_open:
        return None if item.decision is None else loads(item.decision)
    raise Snooze(until=next_visit(item, desk, now, deadline_of(attempt.claimed, attempt.task)))


def mode_of(kind: str, desk: Desk, using: str) -> Mode:
    """Who decides messages of this kind now; people, if there is no handler."""
    row = Automation.objects.using(using).filter(kind=kind).first()
    return desk.mode if row is None or not desk.has_handler else Mode(row.mode)


def measured(kind: str, using: str | None = None) -> Agreement:
    """How often handler and people decided alike of late, where people did not see what the handler had decided."""
    rows = Item.objects.using(using).filter(kind=kind, decided_at__isnull=False).order_by("-decided_at")
    # One range of the index for each answer: what was not compared, which may be nearly all, is not read.
    alike, unlike = (
        list(rows.filter(agreed=agreed).values_list("decided_at", "agreed")[:WINDOW]) for agreed in (True, False)
    )
    last = sorted(alike + unlike, reverse=True)[:WINDOW]
    return Agreement(sum(agreed is True for _, agreed in last), len(last))


def _is_of(item: Item, claimed: Claimed) -> bool:
    """Not if the message was replaced, or has other arguments. What was withdrawn and is visited was brought back: a
    cancellation was undone, a dead letter redriven.
    """
    is_same = item.generation == claimed.generation and ends.is_shown(item, claimed)
    return is_same and item.state != State.WITHDRAWN


def _opened(
    old: Item | None, attempt: Attempt, desk: Desk, args: Sequence[Any], kwargs: dict[str, Any], now: datetime
) -> Item:
    """The item of a message that has none, or that was replaced since."""
    alias = served_store().alias
    mode = mode_of(attempt.kind, desk, alias)
    skill, unknown = _skill(attempt, desk, args, kwargs)
    answer = HandlerAnswer() if mode is Mode.PEOPLE else _asked(attempt, desk, args, kwargs, mode)
    item = Item(message_id=attempt.id, opened_at=now)
    if old is not None and not attempt.claimed.generation:
        item.truth = old.truth  # what was planted is no case of the business, however often it is opened
    if old is not None and old.generation != UNOPENED:
        item.replaced_at = now
    item.digest = ends.digest_of(attempt.claimed.kind, attempt.claimed.payload)
    item.generation, item.queue, item.kind, item.key = (
        attempt.claimed.generation, attempt.queue, attempt.kind, attempt.key,
    )  # fmt: skip
    item.priority, item.skill, item.weight = shown_priority(attempt.claimed.priority), skill, desk.weight
    item.mode, item.proposal, item.confidence, item.reason = mode, answer.proposal, answer.confidence, answer.reason
    item.reason = item.reason or unknown
    item.due_at = None if desk.due_in is None else now + desk.due_in
    with transaction.atomic(using=alias):
        if old is not None:
            _replace(old, item)
        _lay_out(item, desk, mode, now)
        item.save(using=alias)
        if item.replaced_at is not None:
            ItemChange.objects.using(alias).create(item=item, at=now, verb="replace", is_by_code=True)
            signals.tell(signals.item_changed, item, verb="replace", by=None)
        if item.is_automated:
            ends.record(item, "automate", None)
    return item


def _replace(old: Item, item: Item) -> None:
    """The new one takes the row of the old one, whoever holds it: what they have decided on is not asked any more."""
    rows = Item.objects.using(served_store().alias).filter(pk=old.pk)
    rows.update(state=models.F("state"))  # SQLite has no row locks: writing first is its lock
    item.pk, item.assignment = rows.select_for_update().values_list("pk", "assignment").get()
    item._state.adding = False  # noqa: SLF001


def _lay_out(item: Item, desk: Desk, mode: Mode, now: datetime) -> None:
    """Whether the handler's decision stands, is reviewed, or is only compared with that of a person."""
    item.is_blind = mode is not Mode.ASSISTED
    item.assignment += 1
    item.state, item.is_open, item.holder, item.until = State.WAITING, True, None, None
    if mode not in {Mode.REVIEWED, Mode.AUTOMATIC} or item.proposal is None or _is_for_people(item, desk):
        return
    item.is_blind, item.decision, item.decided_at = False, item.proposal, now
    if mode is Mode.REVIEWED and _is_reviewed(item, desk):
        item.state = State.REVIEW
    else:
        item.state, item.is_open, item.is_automated, item.closed_at = State.DONE, False, True, now


def _is_for_people(item: Item, desk: Desk) -> bool:
    """Where the answer is known. Else by lot: to measure the handler, and what its agreement does not allow."""
    if item.truth is not None:
        return True
    allowed = 1.0
    if desk.required is not None:
        allowed = measured(item.kind, served_store().alias).allowed(desk.required)
    return drawn(item.message_id, "people") >= min(allowed, 1 - desk.blind_share)


def _is_reviewed(item: Item, desk: Desk) -> bool:
    if desk.review is None:
        return True
    unsure = item.confidence is not None and item.confidence < desk.review.below
    return unsure or drawn(item.message_id, "review") < desk.review.share


def _skill(attempt: Attempt, desk: Desk, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, str]:
    """What people must know, and why that is not known: then UNKNOWN, where no attempt may follow. An error never opens
    to anybody what needs a skill.
    """
    if callable(desk.skill) and (reason := _vanished(attempt)):
        return UNKNOWN, reason
    try:
        return _storable(desk.skill(*args, **kwargs) if callable(desk.skill) else desk.skill), ""
    except TaskCancelled:
        raise
    except Exception as error:
        if not _steers(error) and _may_follow(attempt, error):
            raise
        return UNKNOWN, _told(attempt, error)


def _storable(skill: Any) -> str:
    if isinstance(skill, str) and len(skill) <= NAME_LENGTH and is_storable(skill):
        return skill
    raise ValueError(f"A skill is a text of at most {NAME_LENGTH} characters, not {skill!r}.")


def _asked(attempt: Attempt, desk: Desk, args: Sequence[Any], kwargs: dict[str, Any], mode: Mode) -> HandlerAnswer:
    """What the handler says. Where it decides, its errors are those of a task, as long as another attempt may follow;
    where people do, nothing that it raises ends or repeats the message.
    """
    if reason := _vanished(attempt):
        return HandlerAnswer(reason=reason)
    is_decided = mode in {Mode.REVIEWED, Mode.AUTOMATIC}
    try:
        returned = desk.handler(*args, **kwargs)
    except NeedsPerson as needed:
        return HandlerAnswer(reason=_masked(attempt, str(needed.reason)))
    except TaskCancelled:
        raise
    except Exception as error:
        if is_decided and (_steers(error) or _may_follow(attempt, error)):
            raise
        return HandlerAnswer(reason=_told(attempt, error))
    try:
        return _answer(desk, returned, is_decided=is_decided)
    except TaskCancelled:
        raise
    except Exception as error:  # noqa: BLE001 - of the form, too; another attempt would return the same
        return HandlerAnswer(reason=_told(attempt, error))


def _answer(desk: Desk, returned: Any, *, is_decided: bool) -> HandlerAnswer:
    """What the handler has returned. Raises InvalidDecision or NotStorable for what is no decision."""
    result, confidence = returned if isinstance(returned, Proposal) else (returned, None)
    if confidence is not None and not 0 <= confidence <= 1:
        raise InvalidDecision(f"A confidence is a number from 0 to 1, not {confidence!r}.")
    if is_decided:
        result = ends.checked_of_handler(desk, result)
    return HandlerAnswer(dumps(result, where="the result"), None if confidence is None else float(confidence))


def _vanished(attempt: Attempt) -> str:
    """Why nothing of the project is called again: its worker vanished in the last attempt. Empty: it is."""
    return _told(attempt, vanished_error(attempt.claimed)) if is_spent(attempt.claimed) else ""


def _steers(error: Exception) -> bool:
    """Whether it says what becomes of the message; `Retry` may say so only while another attempt may follow."""
    return isinstance(error, Steering) and not isinstance(error, Retry)


def _may_follow(attempt: Attempt, error: Exception) -> bool:
    """Whether another attempt may follow, by the options of the task."""
    outcome = AskedRetry(error.delay) if isinstance(error, Retry) else Raised()
    return attempt.attempt < attempt.max_attempts and retried(attempt, outcome, error) != Raised(permanent=True)


def _told(attempt: Attempt, error: Exception) -> str:
    return _masked(attempt, f"{type(error).__name__}: {error}")


def _masked(attempt: Attempt, text: str) -> str:
    return error_text(attempt.kind, attempt.claimed.payload)(text)[:REASON_LENGTH]


def _look_after(item: Item, desk: Desk, now: datetime) -> None:
    """Warn before it is due; what is late goes to another queue, if its own says so. Both are told once: `warned_at` is
    when the last of them was.
    """
    if not item.is_open or item.due_at is None or item.clock_left(now) is not None:
        return
    rows = Item.objects.using(item._state.db).open().filter(pk=item.pk)  # noqa: SLF001
    if item.due_at <= now:
        _tell_late(rows, item, now)
    elif item.due_at - desk.warn_before <= now and rows.filter(warned_at=None).update(warned_at=now):
        signals.tell(signals.item_due_soon, item)


def _tell_late(rows: models.QuerySet[Item], seen: Item, now: datetime) -> None:
    alias, untold = rows.db, models.Q(warned_at=None) | models.Q(warned_at__lt=seen.due_at)
    with transaction.atomic(using=alias):
        if not rows.filter(untold, escalated_at=None).update(warned_at=now):  # writing first is the lock of SQLite
            return
        if seen.warned_at is None:
            signals.tell(signals.item_due_soon, seen)
        item = rows.select_for_update().get()
        queue = DeskQueue.objects.using(alias).filter(queue=item.queue).first()
        if queue is not None and queue.escalate_to not in {"", item.queue}:
            _escalate(item, queue.escalate_to, now)
        signals.tell(signals.item_late, item)


def _escalate(item: Item, queue: str, now: datetime) -> None:
    """Move it to where its queue sends what is late. Who holds it and may not work there gives it back."""
    alias = item._state.db  # noqa: SLF001
    item.escalated_from, item.queue, item.escalated_at = item.queue, queue, now
    if item.holder is not None and not rules.may(item.holder, "take", item.queue, alias):
        item.state, item.holder, item.until = State.WAITING, None, None
        item.assignment += 1
    item.save(using=alias)
