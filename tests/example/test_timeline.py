from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from example_project.flights.models import LEAD
from example_project.flights.replay.timeline import (
    DAY,
    NEW_YORK,
    Clock,
    Departure,
    Event,
    News,
    last_reminder,
    read_record,
    timeline,
)

NOON = datetime(2013, 3, 8, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def departure(left_at: datetime | None, scheduled_at: datetime = NOON) -> Departure:
    return Departure(scheduled_at, left_at, "UA", 1545, "EWR", "IAH")


def story(left_at: datetime | None) -> list[tuple[datetime, News]]:
    return [(event.at, event.news) for event in timeline([departure(left_at)])]


def test_the_record_is_a_whole_day_of_the_three_airports() -> None:
    record = read_record()
    assert len(record) == 979
    assert {line.origin for line in record} == {"EWR", "JFK", "LGA"}
    assert {line.scheduled_at.astimezone(NEW_YORK).date() for line in record} == {DAY}


def test_no_departure_is_recorded_twice() -> None:
    assert len({(line.carrier, line.number, line.origin) for line in read_record()}) == 979


def test_the_record_has_the_documented_numbers_of_cancelled_late_and_early_flights() -> None:
    record = read_record()
    left = [(line, line.left_at) for line in record if line.left_at]
    assert len(record) - len(left) == 180
    assert sum(left_at - line.scheduled_at > HOUR for line, left_at in left) == 394
    assert sum(left_at < line.scheduled_at for line, left_at in left) == 121
    assert sum(left_at == line.scheduled_at for line, left_at in left) == 25
    assert sum(left_at.astimezone(NEW_YORK).date() > DAY for _, left_at in left) == 21
    assert max(left_at - line.scheduled_at for line, left_at in left) == timedelta(minutes=470)


def test_the_first_line_is_read_as_new_york_time() -> None:
    first = read_record()[0]
    assert first.scheduled_at == datetime(2013, 3, 8, 10, 0, tzinfo=UTC)
    assert first.left_at == datetime(2013, 3, 8, 9, 56, tzinfo=UTC)
    assert first[2:] == ("US", 1843, "EWR", "CLT")


def test_a_delay_is_known_after_the_flight_was_announced() -> None:
    assert story(NOON + HOUR) == [(NOON - 8 * HOUR, News.ANNOUNCED), (NOON - 6 * HOUR, News.MOVED)]


def test_a_cancelled_flight_is_announced_first() -> None:
    assert story(None) == [(NOON - 8 * HOUR, News.ANNOUNCED), (NOON - 6 * HOUR, News.CANCELLED)]


def test_a_flight_on_time_makes_no_more_news() -> None:
    assert story(NOON) == [(NOON - 8 * HOUR, News.ANNOUNCED)]


def test_events_come_in_order_of_time() -> None:
    events = timeline(read_record())
    assert events == sorted(events, key=lambda event: event.at)
    assert Counter(event.news for event in events) == {News.ANNOUNCED: 979, News.MOVED: 774, News.CANCELLED: 180}


def test_actual_departures_are_known_before_either_reminder_is_due() -> None:
    """So no reminder is replaced while it runs, and each flight has exactly one delivery."""
    for event in timeline(read_record()):
        reminders = [event.departure.scheduled_at - LEAD, (event.departure.left_at or NOON + 99 * HOUR) - LEAD]
        assert event.at < min(reminders)


@pytest.mark.parametrize(("minutes", "overtaken"), [(-1, False), (0, True), (1, True)])
def test_news_are_overtaken_when_the_reminder_they_replace_is_due(minutes: int, overtaken: bool) -> None:
    moved = Event(NOON - 6 * HOUR, News.MOVED, departure(NOON + HOUR))
    assert moved.overtaken(NOON - HOUR + timedelta(minutes=minutes)) is overtaken


def test_an_announcement_is_never_overtaken() -> None:
    assert not Event(NOON, News.ANNOUNCED, departure(NOON)).overtaken(NOON + HOUR)


def test_the_last_reminder_is_that_of_the_last_flight_to_leave() -> None:
    late, early, cancelled = departure(NOON + 9 * HOUR), departure(NOON), departure(None, NOON + 12 * HOUR)
    assert last_reminder([early, late, cancelled]) == NOON + 8 * HOUR


def test_the_clock_runs_the_day_in_the_given_seconds() -> None:
    started = datetime(2026, 1, 1, tzinfo=UTC)
    clock = Clock.spanning(NOON, NOON + 30 * HOUR, seconds=20, started=started)
    assert clock.real(NOON) == started
    assert clock.real(NOON + 15 * HOUR) == started + timedelta(seconds=10)
    assert clock.real(NOON + 30 * HOUR) == started + timedelta(seconds=20)
    assert clock.recorded(started + timedelta(seconds=10)) == NOON + 15 * HOUR
