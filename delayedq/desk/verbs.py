"""The verbs of an item: each is one transaction, and changes the item only as it is in the table now.

The first statement of each writes the row, so that of two who do something at once one waits, then sees what the other
has done, and is told so. `by`: the user who does it, by the rules of `delayedq.desk.rules`; None: code, which may.
Verbs raise DeskError, and have changed nothing then.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.db import IntegrityError, router, transaction
from django.db.models import F
from django.utils.translation import gettext as _

from delayedq.core.progress import Progress, checked
from delayedq.core.serialization import dumps
from delayedq.desk import ends, rules, signals
from delayedq.desk.agreement import drawn
from delayedq.desk.errors import InvalidDecision, InvalidPostponement, LateAlready, NotAllowed, NotOpen, Replaced, Taken
from delayedq.desk.models import HELD, Comment, Item, ItemChange, State
from delayedq.exceptions import NotStorable, UnknownTask
from delayedq.store import store_for
from delayedq.store.progress import read_progress, write_progress
from delayedq.tasks import task_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from delayedq.desk.options import Desk

#: How far ahead something is postponed: the last days of the calendar can't be shown in all time zones.
FURTHEST = timedelta(days=3_653)


def take(self: Item, by: Any) -> None:
    """Assign it to oneself. Raises Taken if somebody else holds it."""
    assign(self, by, by=by)


def assign(self: Item, user: Any, by: Any = None) -> None:
    """Assign it to this user, for as long as `hold` of its task says.

    Who has the permission to assign takes it from its holder, if it is the holder that they have seen.
    """
    with _changed(self, "assign", by) as (item, now):
        holder = item.held_by(now)
        if holder is not None and holder != user.pk and (by == user or item.assignment != self.assignment):
            raise _taken(item, now)
        _demand_takeable(item, now)
        if by is not None:
            rules.demand(by, "take" if by == user else "assign", item)
        if holder != user.pk:
            ends.demand_current(item)
            rules.demand_fit(user, item)
        _hold(item, user, now)


def unassign(self: Item, by: Any = None) -> None:
    """Give it back: it waits for anybody. Its holder may, and who may assign; they also end a postponement."""
    with _changed(self, "unassign", by) as (item, now):
        _demand_held(self, item, by, now, or_may="assign")
        _free(item, State.WAITING, now)


def renew(self: Item, by: Any) -> datetime:
    """Hold it for longer, from now on; returns until when. A page that is open does this. Raises NotAllowed."""
    with _changed(self, "renew", by) as (item, now):
        _demand_held(self, item, by, now)
        if item.held_by(now) != by.pk:  # it fell back, and counts again in what they hold
            rules.demand_fit(by, item)
            item.state = State.ASSIGNED if item.state == State.WAITING else item.state
        item.until = now + _desk(item).hold
    assert self.until is not None
    return self.until


def postpone(self: Item, until: datetime, why: str = "", by: Any = None, *, pause_clock: bool = False) -> None:
    """Nobody may take it before `until`, when it waits again. Raises InvalidPostponement.

    `until` is an aware datetime, in the future and at most ten years ahead. `pause_clock`: somebody else has to answer,
    so its due time moves on by as long as it is postponed. Raises LateAlready if the item is late.
    """
    with _changed(self, "postpone", by) as (item, now):
        if until.utcoffset() is None or until <= now:
            raise InvalidPostponement(_("A follow-up date lies in the future, and has a time zone."))
        if until - now > FURTHEST:
            raise InvalidPostponement(_("A follow-up date is at most ten years ahead."))
        _demand_held(self, item, by, now)
        _free(item, State.POSTPONED, now)
        item.until, item.why = until, why
        if pause_clock and item.due_at is not None:
            if item.due_at <= now:
                raise LateAlready(_("It is late already: its clock cannot be paused."))
            ends.move_due(item, _desk(item), until - now, now, is_paused=True)


def report(self: Item, done: float, total: float | None = None, note: str = "", by: Any = None) -> None:
    """Say how far it has come: who has submitted the message reads it as `result.progress`.

    Raises ValueError for a value that is negative or not a number, and for a note of more than 200 characters.
    """
    said = checked(done, total, note)
    with _changed(self, "report", by) as (item, now):
        _demand_held(self, item, by, now)
        store = store_for(item._state.db or "default")  # noqa: SLF001 - Django's documented API
        before = read_progress(store, item.message_id)
        began = now if before is None else before.began_at
        write_progress(store, {item.message_id: Progress(*said, began, now)})


def finish(self: Item, result: Any, by: Any = None) -> None:
    """Decide it: `result` is that of its message, which ends now, or after the review.

    With a form in the task, a dict is its data; a bound form is read as it is. Raises InvalidDecision for what the
    form refuses.
    """
    with _changed(self, "finish", by) as (item, now):
        _demand_held(self, item, by, now)
        desk = _desk(item)
        text = _text(ends.checked(desk, result))
        item.decision, item.decided_by, item.decided_at = text, by, now
        item.seconds = (now - item.assigned_at).total_seconds() if item.assigned_at else None
        item.agreed = ends.agreed(item, desk)
        _end_or_review(item, desk, now)


def approve(self: Item, by: Any = None) -> None:
    """Confirm a decision that is pending review: the message ends with it. Nobody reviews their own."""
    with _changed(self, "approve", by) as (item, now):
        _demand_review(self, item, by)
        item.reviewed_by = by
        _free(item, State.DONE, now)
        ends.close(item, _desk(item), now)


def send_back(self: Item, why: str, by: Any = None) -> None:
    """Reject a decision that is pending review: who has made it, and may still work on it, holds it again.

    Without such a person anybody may take it.
    """
    with _changed(self, "send_back", by) as (item, now):
        _demand_review(self, item, by)
        maker = item.decided_by
        item.reviewed_by, item.rejections, item.why = by, item.rejections + 1, why
        _free(item, State.WAITING, now)
        if maker is not None and rules.may(maker, "take", item.queue, item._state.db):  # noqa: SLF001
            _hold(item, maker, now)
            item.state = State.REJECTED


def comment(self: Item, text: str = "", attachment: Any = None, by: Any = None) -> Comment:
    """Say something of it, and attach a file: whoever sees it may, also when it is closed.

    The file is stored before the item is locked, as storages may be slow, and is deleted if the comment is refused.
    """
    said = Comment(by=by, text=text)
    if attachment:
        said.attachment.save(attachment.name, attachment, save=False)
    try:
        with _locked(self, by) as (item, now):
            if by is not None:
                rules.demand(by, "view", item)
            said.item, said.at = item, now
            said.save(using=item._state.db)  # noqa: SLF001
    except Exception:
        said.attachment.delete(save=False)
        raise
    return said


#: What an item is given when the app is loaded: see `apps.py`.
VERBS = (take, assign, unassign, renew, postpone, report, finish, approve, send_back, comment)


@contextmanager
def _changed(given: Item, verb: str, by: Any) -> Iterator[tuple[Item, datetime]]:
    """The row, locked, and this moment. It is saved at the end, recorded, and `given` is as it is."""
    try:
        with _locked(given, by) as (item, now):
            try:
                hands = item.assignment
                yield item, now
                item.save(using=item._state.db)  # noqa: SLF001 - Django's documented API
                if item.assignment != hands:
                    _note(item, verb, by, now)
                if verb in ends.RECORDED:
                    ends.record(item, verb, by)
                if verb in ends.DECIDING:
                    ends.call_on_finish(item)
            except UnknownTask as unknown:  # it was removed from the code: one such item is no error of a page
                raise NotOpen(str(unknown)) from None
            signals.tell(signals.item_changed, item, verb=verb, by=by)
    except Replaced:
        ends.bring_forward(given)
        raise
    given.__dict__.update(item.__dict__)


def _note(item: Item, verb: str, by: Any, now: datetime) -> None:
    """Write it into the history of the item."""
    ItemChange.objects.using(item._state.db).create(  # noqa: SLF001 - Django's documented API
        item=item,
        at=now,
        verb=verb,
        by=by,
        is_by_code=by is None,
        holder=item.holder,
        until=item.until if verb == "postpone" else None,
        is_clock_paused=item.is_clock_paused,
        why=item.why if verb in {"postpone", "send_back"} else "",
    )


@contextmanager
def _locked(given: Item, by: Any) -> Iterator[tuple[Item, datetime]]:
    """The row, locked until the end of the transaction, and this moment.

    Raises NotOpen if it was deleted, and NotAllowed if somebody whom this would name was, at the latest as it ends.
    """
    alias = given._state.db or router.db_for_write(Item)  # noqa: SLF001 - Django's documented API
    rows, item = Item.objects.using(alias).filter(pk=given.pk), given
    try:
        with transaction.atomic(using=alias):
            if not rows.update(state=F("state")):
                raise NotOpen(_("The item was deleted."))
            item = rows.select_for_update().get()
            yield item, store_for(alias).now()
    except IntegrityError:
        _demand_users(item, by, alias)
        raise


def _demand_users(item: Item, by: Any, alias: str) -> None:
    """Raises NotAllowed if one of those who are named was deleted meanwhile: their row is not there any more."""
    keys = (item.holder_id, item.decided_by_id, item.reviewed_by_id, None if by is None else by.pk)
    named = {pk for pk in keys if pk is not None}
    users = get_user_model()._base_manager.using(alias)  # noqa: SLF001 - Django's documented API
    if users.filter(pk__in=named).count() < len(named):
        raise NotAllowed(_("The user was deleted meanwhile."))


def _text(result: Any) -> str:
    try:
        return dumps(result, where="the result")
    except NotStorable as refused:
        raise InvalidDecision(str(refused)) from None


def _end_or_review(item: Item, desk: Desk, now: datetime) -> None:
    review = desk.review if item.truth is None else None
    if item.rejections or (review is not None and drawn(item.message_id, "review") < review.share):
        ends.demand_current(item)
        _free(item, State.REVIEW, now)
    else:
        _free(item, State.DONE, now)
        ends.close(item, desk, now)


def _hold(item: Item, user: Any, now: datetime) -> None:
    if item.held_by(now) != user.pk:
        _resume(item, now)
        item.state, item.assigned_at = State.ASSIGNED, now
        item.assignment += 1
    item.holder = user  # also if it is the same, so that pages need not read them: they may be deleted the next moment
    item.until = now + _desk(item).hold


def _free(item: Item, state: str, now: datetime) -> None:
    _resume(item, now)
    item.state, item.holder, item.until = state, None, None
    item.assignment += 1


def _resume(item: Item, now: datetime) -> None:
    """Its clock goes on: of a postponement that ends early, the due time does not move on by the rest."""
    if item.clock_left(now) is not None:
        assert item.until is not None
        ends.move_due(item, _desk(item), now - item.until, now, is_paused=False)
    item.is_clock_paused = False


def _demand_open(item: Item, states: set[Any]) -> None:
    if item.state == "withdrawn":
        raise NotOpen(ends.ended(item))
    if item.state not in states:
        raise NotOpen(_("The item is %(state)s.") % {"state": item.get_state_display()})


def _demand_takeable(item: Item, now: datetime) -> None:
    """It is neither decided nor postponed."""
    is_over = item.until is not None and item.until <= now
    _demand_open(item, {State.WAITING, *HELD} | ({State.POSTPONED} if is_over else set()))


def _demand_held(seen: Item, item: Item, by: Any, now: datetime, or_may: str = "") -> None:
    """`by` holds it, also past its time if nobody else has taken it since."""
    others = {State.WAITING, State.POSTPONED} if by is None else {State.POSTPONED} if or_may else set()
    if by is not None and item.holder_id is not None and (or_may or item.holder_id == by.pk):
        others |= {State.WAITING}
    _demand_open(item, {*HELD, *others})
    if by is None:
        return
    if or_may and (item.holder_id == by.pk or rules.may(by, or_may, item.queue)):
        _demand_seen(seen, item)
        return
    if item.holder_id == by.pk:
        rules.demand(by, "take", item)  # which may have been withdrawn since
        _demand_seen(seen, item)
        return
    if item.held_by(now) is not None:
        raise _taken(item, now)
    raise NotAllowed(_("You do not hold this item: take it first."))


def _demand_review(seen: Item, item: Item, by: Any) -> None:
    _demand_open(item, {State.REVIEW})
    if by is None:
        return
    rules.demand(by, "review", item)
    if item.decided_by_id == by.pk:
        raise NotAllowed(_("Nobody reviews their own decisions."))
    _demand_seen(seen, item)


def _demand_seen(seen: Item, item: Item) -> None:
    """What a person does is about what they have seen, not about what others have made of it since."""
    if item.assignment != seen.assignment:
        raise NotOpen(_("Nothing was changed: the message runs, has ended, or was changed meanwhile."))


def _taken(item: Item, now: datetime) -> Taken:
    seconds = max(now - (item.assigned_at or now), timedelta()) // timedelta(seconds=1)
    return Taken(_("Taken by %(who)s %(seconds)s s ago.") % {"who": item.holder, "seconds": seconds})


def _desk(item: Item) -> Desk:
    return ends.desk_of(task_at(item.kind))
