from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.db import IntegrityError, transaction

from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import OfferOutcome
from example_project.flights import departures
from example_project.flights.models import Flight
from example_project.flights.tasks import remind

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)


def reminder_of(flight: Flight) -> Message | None:
    return Message.objects.keyed(remind.module_path, flight.code).first()


def due(flight: Flight) -> datetime | None:
    reminder = reminder_of(flight)
    return reminder.scheduled_at if reminder else None


def test_an_announced_flight_has_a_reminder_an_hour_before_it_leaves(make_flight: Callable[..., Flight]) -> None:
    flight = make_flight()
    assert departures.announce(flight) is OfferOutcome.CREATED
    reminder = reminder_of(flight)
    assert reminder
    assert reminder.queue == "reminders"
    assert reminder.key == f"UA1545/{flight.day}/EWR"
    assert reminder.scheduled_at == flight.scheduled_departure - HOUR


def test_a_moved_flight_moves_its_reminder_and_has_no_second_one(make_flight: Callable[..., Flight]) -> None:
    flight = make_flight()
    departures.announce(flight)
    later = flight.scheduled_departure + 5 * HOUR
    assert departures.move(flight, later) is OfferOutcome.UPDATED
    assert due(flight) == later - HOUR
    assert Message.objects.count() == 1
    assert Flight.objects.get().departure == later


def test_a_flight_that_leaves_early_is_reminded_of_earlier(make_flight: Callable[..., Flight]) -> None:
    flight = make_flight()
    departures.announce(flight)
    earlier = flight.scheduled_departure - timedelta(minutes=10)
    departures.move(flight, earlier)
    assert due(flight) == earlier - HOUR


def test_moving_to_the_same_time_changes_nothing(make_flight: Callable[..., Flight]) -> None:
    flight = make_flight()
    departures.announce(flight)
    assert departures.move(flight, flight.scheduled_departure) is OfferOutcome.IGNORED


def test_a_cancelled_flight_has_no_reminder(make_flight: Callable[..., Flight]) -> None:
    flight = make_flight()
    departures.announce(flight)
    assert departures.cancel(flight)
    assert reminder_of(flight) is None
    assert FinishedMessage.objects.cancelled().filter(key=flight.code).count() == 1
    assert Flight.objects.cancelled().get() == flight


def test_cancelling_again_changes_nothing(make_flight: Callable[..., Flight]) -> None:
    flight = make_flight()
    departures.announce(flight)
    departures.cancel(flight)
    assert not departures.cancel(flight)


def test_a_cancelled_flight_does_not_move(make_flight: Callable[..., Flight]) -> None:
    flight = make_flight()
    departures.announce(flight)
    departures.cancel(flight)
    assert departures.move(flight, flight.scheduled_departure + HOUR) is None
    assert reminder_of(flight) is None


def test_a_change_that_is_rolled_back_leaves_the_reminder_as_it_was(make_flight: Callable[..., Flight]) -> None:
    flight = make_flight()
    departures.announce(flight)
    with transaction.atomic():
        departures.cancel(flight)
        transaction.set_rollback(True)
    assert due(flight) == flight.scheduled_departure - HOUR


def test_a_flight_that_is_on_the_board_already_is_refused_and_its_reminder_stays(
    make_flight: Callable[..., Flight],
) -> None:
    flight = make_flight()
    departures.announce(flight)
    with pytest.raises(IntegrityError):
        departures.announce(make_flight(scheduled_departure=flight.scheduled_departure + HOUR))
    assert due(flight) == flight.scheduled_departure - HOUR


def test_the_replay_passes_its_own_reminder_time(make_flight: Callable[..., Flight]) -> None:
    flight = make_flight()
    soon, later = (flight.scheduled_departure - hours * HOUR for hours in (9, 8))
    departures.announce(flight, remind_at=soon)
    assert due(flight) == soon
    departures.move(flight, flight.scheduled_departure + HOUR, remind_at=later)
    assert due(flight) == later
