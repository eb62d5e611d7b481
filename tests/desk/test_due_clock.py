"""The clock of an item's due time: it is paused while somebody else has to answer, and what is late is told then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq.desk.errors import LateAlready
from delayedq.desk.models import Item, ItemChange, State
from delayedq.desk.signals import item_due_soon, item_late
from delayedq.models import Message
from delayedq.testing import clock, run_due
from tests.desk.given import ALL, QUEUE, opened, person, refund, reviewed
from tests.desk.test_pages import signed_in, text_of

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]
START = datetime(2026, 3, 2, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
#: Items of `refund` are due after so long, and `item_due_soon` is sent an hour before.
DUE_IN = 8 * HOUR


@pytest.fixture
def told():
    """What receivers were told: "soon" and "late"."""
    words = []

    def soon(**_):
        words.append("soon")

    def late(**_):
        words.append("late")

    item_due_soon.connect(soon)
    item_late.connect(late)
    yield words
    item_due_soon.disconnect(soon)
    item_late.disconnect(late)


def paused(until, by=None):
    """An item that is postponed, with its clock paused; it is due in 8 h."""
    item = opened()
    if by is not None:
        item.take(by)
    item.postpone(until, "asked the airline", by=by, pause_clock=True)
    return item


def due(item):
    item.refresh_from_db()
    return item.due_at


def test_a_pause_moves_the_due_time_by_as_long_as_it_lasts():
    with clock(START):
        item = paused(START + 24 * HOUR)
        assert due(item) == START + 24 * HOUR + DUE_IN
        assert item.due_or_last == item.due_at
        assert item.clock_left(START + 5 * HOUR) == DUE_IN
        assert item.clock_left(START + 24 * HOUR) is None


def test_a_postponement_alone_leaves_the_clock_running():
    with clock(START):
        item = opened()
        item.postpone(START + 24 * HOUR)
        assert due(item) == START + DUE_IN
        assert item.clock_left(START) is None


def test_a_pause_that_ends_early_moves_it_by_what_has_passed():
    with clock(START) as clocked:
        item = paused(START + 24 * HOUR)
        clocked.advance(5 * HOUR)
        item.unassign()
        assert due(item) == START + 5 * HOUR + DUE_IN
        assert not item.is_clock_paused


def test_a_second_postponement_ends_the_first_pause():
    with clock(START) as clocked:
        item = paused(START + 24 * HOUR)
        clocked.advance(2 * HOUR)
        item.postpone(START + 10 * HOUR, pause_clock=True)
        assert due(item) == START + 10 * HOUR + DUE_IN
        clocked.advance(2 * HOUR)
        item.postpone(START + 30 * HOUR)
        assert due(item) == START + 4 * HOUR + DUE_IN


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_pause_that_is_over_changes_nothing_more(is_swept):
    ann = person("ann", *ALL)
    with clock(START) as clocked:
        item = paused(START + 24 * HOUR, by=ann)
        clocked.advance(26 * HOUR)
        if is_swept:
            Item.objects.update(state=State.WAITING)  # as the round of a worker does
        item.take(ann)
        assert due(item) == START + 24 * HOUR + DUE_IN
        assert not item.is_clock_paused


def test_what_is_late_stays_late(told):
    with clock(START) as clocked:
        item = opened()
        clocked.advance(9 * HOUR)
        with pytest.raises(LateAlready):
            item.postpone(START + 24 * HOUR, pause_clock=True)
        assert due(item) == START + DUE_IN
        assert item.state == State.WAITING


def test_an_item_without_a_due_time_has_no_clock():
    with clock(START):
        item = opened(reviewed)
        item.postpone(START + 24 * HOUR, pause_clock=True)
        assert due(item) is None
        assert not item.is_clock_paused
        client = signed_in(person("ann", *ALL))
        item.unassign()
        assert "pause_clock" not in text_of(client.get(f"/desk/{item.pk}/"))


def test_nobody_is_told_during_the_pause_and_everybody_in_time_after_it(told):
    with clock(START) as clocked:
        item = paused(START + 100 * HOUR)
        for hour in range(1, 107):
            clocked.advance(HOUR)
            run_due()
            assert told == [], hour
        clocked.advance(HOUR)
        run_due()
        assert told == ["soon"]
        clocked.advance(HOUR)
        run_due()
        assert told == ["soon", "late"]
        assert Item.objects.get().pk == item.pk


def test_a_pause_that_ends_early_lets_workers_look_in_time(told):
    """The next visit was chosen when the due time was far away."""
    with clock(START) as clocked:
        item = paused(START + 400 * HOUR)
        clocked.advance(25 * HOUR)
        run_due()
        item.refresh_from_db()
        item.unassign()
        for word in ("soon", "late"):
            clocked.advance(7 * HOUR if word == "soon" else HOUR)
            run_due()
            assert told[-1:] == [word]
        assert Message.objects.get(pk=item.message_id).generation == item.generation
        assert Item.objects.get().replaced_at is None


def test_less_than_the_time_of_the_warning_is_told_when_the_pause_is_over(told):
    with clock(START) as clocked:
        item = opened()
        clocked.advance(DUE_IN - HOUR / 2)
        item.postpone(START + 20 * HOUR, pause_clock=True)
        run_due()
        assert told == []
        clocked.advance(START + 20 * HOUR - (START + DUE_IN - HOUR / 2))
        run_due()
        assert told == ["soon"]


def test_the_pages_show_a_paused_clock_and_sort_by_it():
    ann = person("ann", *ALL)
    with clock(START):
        item, other = opened(), opened()
        item.take(ann)
        client = signed_in(ann)
        until = {"until": "2026-03-04T09:00", "why": "asked the airline", "pause_clock": "on"}
        client.post(f"/desk/{item.pk}/postpone/", {"dq-assignment": item.assignment} | until)
        assert due(item) == item.until + DUE_IN
        page = client.get("/desk/team/", {"queue": QUEUE})
        assert [row.item for row in page.context["rows"]] == [other, item]
        assert [row.left for row in page.context["rows"]] == [None, DUE_IN]
        for text in (text_of(page), text_of(client.get(f"/desk/{item.pk}/"))):
            assert "clock paused" in text
            assert "8 h left" in text
        assert ItemChange.objects.filter(is_clock_paused=True).count() == 1


def test_who_pauses_the_clock_of_what_is_late_is_told_at_that_field():
    ann = person("ann", *ALL)
    with clock(START) as clocked:
        item = opened(refund)
        item.take(ann)
        clocked.advance(9 * HOUR)
        item.renew(ann)
        sent = {"dq-assignment": item.assignment, "until": "2026-03-04T09:00", "pause_clock": "on"}
        page = signed_in(ann).post(f"/desk/{item.pk}/postpone/", sent)
        assert page.status_code == 422
        assert page.context["forms"]["postpone"].errors.keys() == {"pause_clock"}
