"""Changes of many messages that an operator has chosen: in words, as a preview, and carried out.

The admin asks on its pages and `manage.py delayedq` in the shell; what they show and do is the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from delayedq.core.edits import LanePosition, Prioritize, Reroute, Reschedule, RunNow, Shift, Spread
from delayedq.models import FinishedMessage, Message, Outcome, with_renewals
from delayedq.operations.browsing import AllOf, EndedSelection, Selection, Ticked, ended_page, listed, live_page
from delayedq.operations.counting import Count, count_ended, count_live
from delayedq.operations.dead_letters import DISCARD, AllDead, discard, redrive, with_taken_keys
from delayedq.operations.edits import CANCEL, ENDED, RETRY, RUNNING, cancel, reschedule
from delayedq.operations.live_states import is_running
from delayedq.operations.wording import exact, grouped, span
from delayedq.sql.states import MessageState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from delayedq.core.edits import Change
    from delayedq.models import Edit
    from delayedq.operations.edits import EditProgress
    from delayedq.store.base import Store

#: A preview lists at most this many of the messages.
SAMPLE = 20

#: In place of the random number that spreads messages: the middle of what it can be.
MIDDLE = 0.5

# In words


def described(does: str, change: Change | None, now: datetime) -> str:
    """An edit with its parameters, such as "Shift 2 h later". `does`: as in `Edit.action`. `now`: of `change`."""
    names = {CANCEL: pgettext("messages", "Cancel"), DISCARD: _("Discard"), RETRY: _("Retry")}
    name, parameters = ("", "") if change is None else _words(change, now)
    return f"{names.get(does, name)} {parameters}".strip()


def _words(change: Change, now: datetime) -> tuple[str, str]:
    """The name of a change, and its parameters."""
    match change:
        case RunNow():
            said = _("Run now"), ""
        case Reschedule(at):
            said = _("Reschedule"), _to(exact(at))
        case Shift(by):
            words = _("%(span)s earlier") if by < timedelta(0) else _("%(span)s later")
            said = _("Shift"), words % {"span": span(by)}
        case Spread():
            said = _("Spread"), _spread(change, now)
        case Prioritize(priority):
            said = _("Change priority"), _to(priority)
        case Reroute(queue):
            said = _("Move"), _to(queue)
    return said


def _to(value: object) -> str:
    return _("to %(value)s") % {"value": value}


def _spread(change: Spread, now: datetime) -> str:
    start = _("now") if change.start == now else exact(change.start)
    return _("over %(span)s from %(start)s") % {"span": span(change.period), "start": start}


def summary(changed: int, skipped: Counter[str]) -> str:
    """Such as "95 messages changed, 5 skipped (3 running, 2 ended)"."""
    text = ngettext("%(count)s message changed", "%(count)s messages changed", changed) % {"count": grouped(changed)}
    if not skipped:
        return text
    left = _("%(count)s skipped (%(reasons)s)")
    return f"{text}, {left % {'count': grouped(skipped.total()), 'reasons': ', '.join(reasons(skipped.items()))}}"


def reasons(skipped: Iterable[tuple[str, int]]) -> list[str]:
    return [f"{grouped(number)} {_(reason)}" for reason, number in skipped if number]


# Previews


class Preview(NamedTuple):
    """How many messages will change, how many are skipped and why, and the first SAMPLE of those that were chosen."""

    changing: Count
    skipped: list[str]
    rows: list[Any]


def place_of_live(message: Message) -> LanePosition:
    return LanePosition(message.scheduled_at, message.queue, message.priority)


def place_of_ended(message: FinishedMessage) -> LanePosition:
    return LanePosition(message.finished_at, message.queue, message.priority)


def becoming(change: Change, places: Sequence[LanePosition], now: datetime) -> list[LanePosition]:
    """What the change makes of the first messages, in this order."""
    return [change(place, now, rank, MIDDLE) for rank, place in enumerate(places)]


def preview_live(store: Store, chosen: Sequence[int] | Selection) -> Preview:
    """Of live messages, chosen by id or by what they have in common."""
    if isinstance(chosen, Selection):
        return _preview_of_all(store, chosen)
    now = store.now()
    messages = listed(Message.objects.using(store.alias)).filter(id__in=chosen).order_by("scheduled_at", "id")
    found = with_renewals(messages, now, store.alias)
    waiting = [message for message in found if not is_running(message, now)]
    skipped = Counter({RUNNING: len(found) - len(waiting), ENDED: len(set(chosen)) - len(found)})
    return Preview(Count(len(waiting), exact=True), reasons(skipped.items()), found[:SAMPLE])


def _preview_of_all(store: Store, selection: Selection) -> Preview:
    count, skipped = count_live(store, selection), []
    if selection.state in {None, MessageState.RUNNING}:
        running = count_live(store, replace(selection, state=MessageState.RUNNING))
        skipped = [f"{running} {_(RUNNING)}"] if running.number else []
        count = count.without(running)
    rows = live_page(store, selection).rows
    chosen = [row for row in rows if (row.key or "").startswith(selection.key or "")]  # not that with this id
    return Preview(count, skipped, chosen[:SAMPLE])


def only_dead(selection: EndedSelection) -> EndedSelection:
    """The selection, restricted to dead letters: only those can be retried or discarded. Raises ValidationError."""
    if selection.outcome not in {None, Outcome.FAILED}:
        raise ValidationError(_("Only dead letters can be chosen, and the filter has others."))
    return replace(selection, outcome=Outcome.FAILED)


def preview_dead(store: Store, chosen: Sequence[int] | EndedSelection, does: str) -> Preview:
    """Of dead letters, chosen by id or by what they have in common. `does`: RETRY or DISCARD."""
    if isinstance(chosen, EndedSelection):
        dead = only_dead(chosen)
        return Preview(count_ended(store, dead), [], ended_page(store, dead).rows[:SAMPLE])
    failed = listed(FinishedMessage.objects.using(store.alias).failed()).defer("result")
    found = list(failed.filter(id__in=chosen).order_by("-finished_at"))
    taken = [] if does == DISCARD else with_taken_keys(store, found)
    skipped = [
        f"{grouped(number)} {why}"
        for number, why in (
            (len(set(chosen)) - len(found), _("not dead letters (any more)")),
            (len(taken), _("whose key a live message has")),
        )
        if number
    ]
    return Preview(Count(len(found) - len(taken), exact=True), skipped, found[:SAMPLE])


# Carrying it out


class BulkEdit(NamedTuple):
    """What shall be done to which messages.

    `does`: as in `Edit.action`. `chosen`: their ids, or what they have in common. `as_of`: when they were shown;
    `upto`: the highest id there was then. `most`: at how many changed messages it stops, as the preview said.
    `change`: None for CANCEL and DISCARD.
    """

    does: str
    chosen: Sequence[int] | Selection | EndedSelection
    as_of: datetime
    upto: int = 0
    most: int | None = None
    change: Change | None = None


def preview_of(store: Store, bulk: BulkEdit) -> Preview:
    """What it would change. Raises ValidationError."""
    if bulk.does in {RETRY, DISCARD}:
        assert not isinstance(bulk.chosen, Selection)
        return preview_dead(store, bulk.chosen, bulk.does)
    assert not isinstance(bulk.chosen, EndedSelection)
    return preview_live(store, bulk.chosen)


def carry_out_part(store: Store, edit: Edit, bulk: BulkEdit, after: int = 0) -> EditProgress:
    """Do one part of the edit, beginning after a position: the `after` of the part before. Raises ValidationError."""
    if bulk.does in {RETRY, DISCARD}:
        return _part_of_dead(store, edit, bulk, after)
    assert not isinstance(bulk.chosen, EndedSelection)
    which = AllOf(bulk.chosen, bulk.upto) if isinstance(bulk.chosen, Selection) else Ticked(bulk.chosen)
    if bulk.does == CANCEL:
        return cancel(store, edit, which, bulk.as_of, after, bulk.most)
    assert bulk.change is not None
    return reschedule(store, edit, which, bulk.change, bulk.as_of, after, bulk.most)


def _part_of_dead(store: Store, edit: Edit, bulk: BulkEdit, after: int) -> EditProgress:
    assert not isinstance(bulk.chosen, Selection)
    which = AllDead(only_dead(bulk.chosen), bulk.as_of) if isinstance(bulk.chosen, EndedSelection) else bulk.chosen
    if bulk.does == DISCARD:
        return discard(store, edit, which, bulk.as_of, after, bulk.most)
    assert isinstance(bulk.change, Spread)
    return redrive(store, edit, which, bulk.change, bulk.as_of, after, bulk.most)
