"""The replay against a database, step by step at given times, without workers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from delayedq.models import FinishedMessage, Message
from example_project.flights import departures
from example_project.flights.models import LEAD, Flight
from example_project.flights.replay import serve, traces, verdict
from example_project.flights.replay.player import Player, TooFast
from example_project.flights.replay.timeline import DAY, Clock, Departure, timeline
from example_project.flights.tasks import remind

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(DAY.year, DAY.month, DAY.day, 17, tzinfo=UTC)
HOUR = timedelta(hours=1)
OPENS, CLOSES = NOON - 8 * HOUR, NOON + 6 * HOUR

ON_TIME = Departure(NOON, NOON, "UA", 1, "EWR", "IAH")
LATE = Departure(NOON, NOON + 2 * HOUR, "UA", 2, "EWR", "IAH")
CANCELLED = Departure(NOON, None, "UA", 3, "EWR", "IAH")
RECORD = [ON_TIME, LATE, CANCELLED]


@pytest.fixture
def player() -> Player:
    """A clock on which one recorded minute takes an hour, so that slow tests are not overtaken."""
    clock = Clock.spanning(OPENS, CLOSES, seconds=720, started=timezone.now())
    return Player(clock, timeline(RECORD))


def play_until(player: Player, recorded: datetime) -> None:
    player.step(player.clock.real(recorded))


def due(departure: Departure) -> datetime:
    return Message.objects.get(key=f"UA{departure.number}/{DAY}/EWR").scheduled_at


def deliver_all(late: timedelta = timedelta(milliseconds=2)) -> None:
    """Run the reminders, as workers would."""
    for flight in traces.flights():
        if reminder := traces.live_reminders().filter(key=flight.code).first():
            flight.deliveries.create(due_at=reminder.scheduled_at, delivered_at=reminder.scheduled_at + late)
            remind.unschedule(key=flight.code)


def test_first_all_flights_are_announced_on_schedule(player: Player) -> None:
    play_until(player, OPENS)
    assert (player.scheduled, player.moved, player.cancelled) == (3, 0, 0)
    assert {due(departure) for departure in RECORD} == {player.clock.real(NOON - LEAD)}


def test_then_actual_departures_move_and_cancel_reminders(player: Player) -> None:
    play_until(player, OPENS)
    play_until(player, NOON - 6 * HOUR)
    assert (player.scheduled, player.moved, player.cancelled) == (3, 1, 1)
    assert due(ON_TIME) == player.clock.real(NOON - LEAD)
    assert due(LATE) == player.clock.real(NOON + 2 * HOUR - LEAD)
    assert traces.live_reminders().count() == 2
    assert not player.events


def test_a_step_that_comes_late_catches_up(player: Player) -> None:
    play_until(player, NOON - 6 * HOUR)
    assert (player.scheduled, player.moved, player.cancelled) == (3, 1, 1)


def test_news_that_come_after_the_reminder_was_due_end_the_replay() -> None:
    clock = Clock.spanning(OPENS, CLOSES, seconds=12, started=timezone.now() - timedelta(seconds=6))
    with pytest.raises(TooFast):
        Player(clock, timeline(RECORD)).step(timezone.now())


def test_a_replay_whose_reminders_all_went_has_no_faults(player: Player) -> None:
    play_until(player, CLOSES)
    deliver_all()
    assert verdict.faults(RECORD, player.clock) == []


def test_missing_duplicate_and_early_deliveries_are_faults(player: Player) -> None:
    play_until(player, CLOSES)
    deliver_all(late=-timedelta(milliseconds=1))
    Flight.objects.get(number=2).deliveries.all().delete()
    assert verdict.faults(RECORD, player.clock) == [
        "UA1 from EWR was reminded too early",
        "UA2 from EWR was reminded 0 times",
    ]
    Flight.objects.get(number=1).deliveries.create(due_at=NOON, delivered_at=NOON)
    assert "UA1 from EWR was reminded 2 times" in verdict.faults(RECORD, player.clock)


def test_a_delivery_for_an_outdated_time_is_a_fault(player: Player) -> None:
    play_until(player, OPENS)
    deliver_all()
    assert verdict.faults(RECORD, player.clock) == [
        "UA2 from EWR was not reminded for its last known time",
        "UA3 from EWR was cancelled, but its reminder was delivered",
    ]


def test_live_and_failed_reminders_are_faults(player: Player) -> None:
    play_until(player, CLOSES)
    FinishedMessage.objects.filter(key=f"UA3/{DAY}/EWR").update(outcome="failed", errors="[]")
    assert verdict.faults(RECORD, player.clock)[2:] == [
        f"UA1/{DAY}/EWR is still in the queue, after 0 attempts",
        f"UA2/{DAY}/EWR is still in the queue, after 0 attempts",
        f"UA3/{DAY}/EWR failed: []",
    ]


def test_a_flight_that_is_not_on_the_board_is_a_fault(player: Player) -> None:
    assert verdict.faults([ON_TIME], player.clock) == ["UA1 from EWR is not on the board"]


def test_clearing_deletes_only_the_rows_of_the_replay(player: Player, make_flight: Callable[..., Flight]) -> None:
    own = make_flight()
    departures.announce(own)
    play_until(player, CLOSES)
    traces.clear()
    assert list(Flight.objects.all()) == [own]
    assert list(Message.objects.values_list("key", flat=True)) == [own.code]
    assert not FinishedMessage.objects.exists()


def test_lateness_is_the_percentiles_of_the_sorted_delays() -> None:
    late = verdict.lateness(timedelta(milliseconds=ms) for ms in range(200, 0, -1))
    assert late == tuple(timedelta(milliseconds=ms) for ms in (100, 198, 200))


def test_without_deliveries_there_is_no_lateness() -> None:
    assert verdict.lateness([]) is None


def test_after_the_replay_each_departure_is_announced_once_for_the_next_24_hours() -> None:
    now = timezone.now()
    assert serve.announce(RECORD, now) == 3
    assert serve.announce(RECORD, now) == 0
    due = Message.objects.values_list("scheduled_at", flat=True)
    assert all(now - LEAD < moment <= now + timedelta(hours=25) - LEAD for moment in due)
    assert len(due) == 3
