"""Browsing: what waits in the order of claims, page by page, and a cursor with which another process goes on."""

from __future__ import annotations

import asyncio
import string
from datetime import timedelta
from itertools import islice

import pytest
from asgiref.sync import async_to_sync
from django.test.utils import CaptureQueriesContext

from delayedq import BatchedMessage
from delayedq.exceptions import InvalidQueue, QueueClosed
from delayedq.models import LockedRenewal, Message
from delayedq.queue import TEXT, browsing
from delayedq.queue.browsing import QueuePosition, cursor_of, place_in
from delayedq.store.operator import Position
from tests.store.given import NOW, at

EARLIEST_CURSOR = cursor_of(QueuePosition(-100, Position(NOW, 1)), "contacts|json")


@pytest.fixture(params=[2, 200])
def page(request, monkeypatch):
    monkeypatch.setattr(browsing, "PAGE", request.param)
    return request.param


@pytest.fixture
def lanes(make):
    return make(priorities=[5, -5])


def keys(found):
    return [reading.key for reading in found.readings]


def fill(queue, *names, **fields):
    queue.offer_batch(BatchedMessage(None, name, name, NOW, **fields) for name in names)


def test_messages_come_in_the_order_in_which_they_would_be_polled(lanes, page):
    for key, priority, seconds in (
        *(("low", -5, -9), ("b", 0, 0), ("c", 0, 0), ("later", 0, 60), ("a", 0, -1), ("urgent", 5, 9)),
    ):
        lanes.offer_or_update(key, key.upper(), at(seconds), priority=priority)

    order = ["urgent", "a", "b", "c", "later", "low"]
    assert keys(lanes.browse()) == order
    assert list(lanes.browse()) == [key.upper() for key in order]


def test_a_cursor_goes_on_behind_the_message_that_was_handed_out_last(lanes, page):
    for number in range(12):
        lanes.offer_or_update(f"{number}", number, at(number // 4), priority=(5, 0, -5)[number % 3])
    order = keys(lanes.browse())

    for taken in range(13):
        first = lanes.browse()
        begun = list(islice(first, taken))
        assert (len(begun), keys(lanes.browse(after=first.cursor))) == (taken, order[taken:])


def test_nothing_was_handed_out_before_the_first_and_after_the_last_the_cursor_stays(queue, page):
    found = queue.browse()
    assert (found.cursor, list(found), found.cursor) == (None, [], None)

    fill(queue, "a")
    found = queue.browse()
    assert list(found) == ["a"]
    end = found.cursor
    assert (list(found), found.cursor) == ([], end)
    fill(queue, "b")
    assert list(queue.browse(after=end)) == ["b"]


def test_what_stays_is_seen_once_whatever_else_is_polled_and_offered_meanwhile(queue, page):
    fill(queue, *string.ascii_lowercase)
    gone, seen = set(), []
    for payload in queue.browse():
        seen.append(payload)
        if payload in "cmx":
            fill(queue, f"{payload}2")
            gone.add(queue.try_poll().key)

    assert [name for name in string.ascii_lowercase if name not in gone and seen.count(name) != 1] == []
    assert len(set(seen)) == len(seen)


def test_what_is_leased_or_can_not_be_read_is_passed_over(queue, clock, page):
    fill(queue, *"abcdefg")
    queue.try_poll_many(3)
    Message.objects.filter(key__in="eg").update(payload="{")

    assert keys(queue.browse()) == ["d", "f"]
    clock.move(61)
    assert keys(queue.browse()) == ["a", "b", "c", "d", "f"]


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_a_message_whose_lease_was_renewed_beside_its_locked_row_is_not_shown(queue, clock):
    fill(queue, "a")
    claimed = queue.try_poll().claimed
    clock.move(61)
    assert keys(queue.browse()) == ["a"]
    LockedRenewal.objects.create(message_id=claimed.id, lease_token=claimed.token, leased_until=at(90))
    assert keys(queue.browse()) == []


def test_a_reading_of_a_browse_is_that_of_read(queue):
    queue.offer_or_update("a", {"b": 1}, NOW)
    queue.try_poll().defer(at(5), state={"page": 7})
    (found,) = queue.browse().readings
    expected = queue.read("a")

    for name in ("key", "payload", "state", "attempts", "scheduled_at", "message_id"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.acknowledge() == "acknowledged"
    assert keys(queue.browse()) == []


def test_payloads_and_readings_move_on_together(queue):
    fill(queue, *"abcd")
    found = queue.browse()
    assert (next(found), next(found.readings).key, next(found)) == ("a", "b", "c")
    assert found.cursor == found.readings.cursor
    assert list(queue.browse(after=found.cursor)) == ["d"]


def test_a_filtered_browse_goes_on_with_any_filter(queue, page):
    queue.offer_batch(BatchedMessage(None, f"{n % 2}/{n}", {"n": n}, at(n)) for n in range(9))
    found = queue.filter(payload__n__gte=2).browse()
    assert [next(found), next(found)] == [{"n": 2}, {"n": 3}]

    assert [payload["n"] for payload in queue.filter(key__startswith="0/").browse(after=found.cursor)] == [4, 6, 8]
    assert queue.filter(key__startswith="0/").count() == 5


def test_the_priority_of_a_cursor_need_not_be_declared_any_more(lanes, make):
    for key, priority in (("a", 5), ("b", 5), ("c", 0), ("d", -5)):
        lanes.offer_or_update(key, 1, NOW, priority=priority)
    found = lanes.browse()
    next(found)

    assert keys(make(priorities=[-5]).browse(after=found.cursor)) == ["c", "d"]
    assert keys(make().browse(after=found.cursor)) == ["c"]


def test_a_message_due_before_the_year_1000_is_browsed_where_it_can_be_stored(queue, alias):
    early = NOW.replace(year=1000 if alias == "mariadb" else 1)
    queue.offer_or_update("a", 1, early)
    found = queue.browse()
    assert (next(found), list(queue.browse(after=found.cursor))) == (1, [])


def test_each_page_is_one_statement_of_a_limited_number_of_rows(queue, connection, monkeypatch):
    monkeypatch.setattr(browsing, "PAGE", 10)
    fill(queue, *(f"{n:02}" for n in range(25)))
    found = queue.browse()
    with CaptureQueriesContext(connection) as captured:
        assert next(found) == "00"
        assert len(captured) == 1
        assert len(list(found)) == 24
    assert len(captured) == 3


# Async


def test_it_is_iterated_in_an_event_loop_too(queue, page):
    fill(queue, *"abc")

    async def use():
        found = queue.abrowse()
        first = await anext(found)
        rest = [reading.key async for reading in found.readings]
        again = [payload async for payload in queue.browse(after=found.cursor)]
        await asyncio.sleep(0)
        return first, rest, again

    assert async_to_sync(use)() == ("a", ["b", "c"], [])


# Cursors


@pytest.mark.parametrize("place", [(0, NOW, 1), (-100, at(-1e10), 2**63 - 1), (100, NOW.replace(year=9999), 7)])
def test_a_cursor_is_short_printable_and_says_where(place):
    priority, moment, id_ = place
    text = cursor_of(QueuePosition(priority, Position(moment, id_)), "q|json")

    assert place_in(text, "q|json") == (priority, (moment, id_))
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert len(text) <= 100


def test_a_cursor_that_was_altered_anywhere_is_refused(queue):
    for place, letter in enumerate(EARLIEST_CURSOR):
        for other in {"A", "z", "-", ".", " ", "é", ""} - {letter}:
            with pytest.raises(InvalidQueue, match=r"(c|C)ursor"):
                queue.browse(after=EARLIEST_CURSOR[:place] + other + EARLIEST_CURSOR[place + 1 :])


@pytest.mark.parametrize(
    "cursor", ["", "1.", "1", 5, b"1.", EARLIEST_CURSOR + "=", EARLIEST_CURSOR * 2, [], "1.!!"], ids=repr
)
def test_what_is_no_cursor_is_refused_at_the_call(queue, cursor):
    with pytest.raises(InvalidQueue, match="not a cursor of the queue"):
        queue.browse(after=cursor)


def test_a_cursor_of_another_queue_or_version_is_refused(make, queue):
    assert queue.browse(after=EARLIEST_CURSOR).cursor == EARLIEST_CURSOR
    for other in (make("others"), make("contacts", TEXT)):
        with pytest.raises(InvalidQueue, match="another queue"):
            other.browse(after=EARLIEST_CURSOR)
    with pytest.raises(InvalidQueue, match="another version"):
        queue.browse(after=f"2{EARLIEST_CURSOR[1:]}")


def test_a_closed_queue_is_not_browsed(queue):
    fill(queue, "a")
    found = queue.browse()
    queue.close()
    with pytest.raises(QueueClosed):
        next(found)


def test_a_browse_that_goes_on_for_longer_than_a_lease_shows_what_came_back(queue, clock, monkeypatch):
    monkeypatch.setattr(browsing, "PAGE", 1)
    fill(queue, *"ab")
    queue.offer_or_update("c", "c", at(1))
    clock.move(1)
    held = queue.try_poll_many(3)
    held.envelopes[0].release()
    found = queue.browse()
    assert next(found) == "a"
    clock.move(timedelta(seconds=60).total_seconds())
    assert list(found) == ["b", "c"]
