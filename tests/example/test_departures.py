"""What happens to the reminder of a flight: tests of a site that uses delayedq, as any site may write them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.db import IntegrityError, transaction

from delayedq import OfferOutcome
from delayedq.testing import assert_not_scheduled, assert_scheduled, scheduled
from example_project.flights import departures
from example_project.flights.models import Delivery, Flight
from example_project.flights.tasks import remind

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from delayedq.testing import AttemptReport, Clock

    MakeFlight = Callable[..., Flight]
    RunDue = Callable[..., list[AttemptReport]]

pytestmark = pytest.mark.django_db

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def test_an_announced_flight_has_a_reminder_an_hour_before_it_leaves(make_flight: MakeFlight) -> None:
    flight = make_flight()
    assert departures.announce(flight) is OfferOutcome.CREATED

    leaves = flight.scheduled_departure
    assert_scheduled(remind, args=[flight.pk], key=f"UA1545/{flight.day}/EWR", at=leaves - HOUR, queue="reminders")


def test_the_reminder_is_delivered_when_its_time_comes(
    make_flight: MakeFlight, delayedq_clock: Clock, run_due: RunDue
) -> None:
    flight = make_flight()
    departures.announce(flight)

    delayedq_clock.move_to(flight.remind_at - MINUTE)
    assert run_due() == []
    delayedq_clock.advance(MINUTE)
    (attempt,) = run_due()

    assert (attempt.outcome, attempt.key) == ("succeeded", flight.code)
    assert Delivery.objects.get(flight=flight).due_at == flight.remind_at
    assert_not_scheduled(remind)


def test_a_reminder_that_fails_is_tried_again(
    make_flight: MakeFlight, delayedq_clock: Clock, run_due: RunDue, monkeypatch: pytest.MonkeyPatch
) -> None:
    flight = make_flight()
    departures.announce(flight)
    delayedq_clock.move_to(flight.remind_at)

    with monkeypatch.context() as broken:
        broken.setattr(Delivery.objects, "create", lambda **_: 1 // 0)
        (attempt,) = run_due(raise_failures=False)
    assert (attempt.outcome, type(attempt.error)) == ("retry", ZeroDivisionError)

    delayedq_clock.advance(MINUTE)
    (attempt,) = run_due()
    assert (attempt.outcome, attempt.attempt) == ("succeeded", 2)
    assert Delivery.objects.get().flight == flight


def test_a_moved_flight_moves_its_reminder_and_has_no_second_one(make_flight: MakeFlight) -> None:
    flight = make_flight()
    departures.announce(flight)
    later = flight.scheduled_departure + 5 * HOUR
    assert departures.move(flight, later) is OfferOutcome.UPDATED

    assert_scheduled(remind, key=flight.code, at=later - HOUR, count=1)
    assert Flight.objects.get().departure == later


def test_a_flight_that_leaves_early_is_reminded_of_earlier(make_flight: MakeFlight) -> None:
    flight = make_flight()
    departures.announce(flight)
    earlier = flight.scheduled_departure - 10 * MINUTE
    departures.move(flight, earlier)

    assert_scheduled(remind, key=flight.code, at=earlier - HOUR, count=1)


def test_moving_to_the_same_time_changes_nothing(make_flight: MakeFlight) -> None:
    flight = make_flight()
    departures.announce(flight)
    before = scheduled(remind)
    assert departures.move(flight, flight.scheduled_departure) is OfferOutcome.IGNORED

    assert scheduled(remind) == before


def test_a_cancelled_flight_has_no_reminder(make_flight: MakeFlight, delayedq_clock: Clock, run_due: RunDue) -> None:
    flight = make_flight()
    departures.announce(flight)
    assert departures.cancel(flight)
    assert not departures.cancel(flight)

    assert_not_scheduled(remind)
    assert Flight.objects.cancelled().get() == flight
    delayedq_clock.move_to(flight.scheduled_departure)
    assert run_due() == []


def test_a_cancelled_flight_does_not_move(make_flight: MakeFlight) -> None:
    flight = make_flight()
    departures.announce(flight)
    departures.cancel(flight)

    assert departures.move(flight, flight.scheduled_departure + HOUR) is None
    assert_not_scheduled(remind)


def test_a_change_that_is_rolled_back_leaves_the_reminder_as_it_was(make_flight: MakeFlight) -> None:
    flight = make_flight()
    departures.announce(flight)
    with transaction.atomic():
        departures.cancel(flight)
        transaction.set_rollback(True)

    assert_scheduled(remind, key=flight.code, at=flight.scheduled_departure - HOUR)


def test_a_flight_that_is_on_the_board_already_is_refused_and_its_reminder_stays(make_flight: MakeFlight) -> None:
    flight = make_flight()
    departures.announce(flight)
    with pytest.raises(IntegrityError), transaction.atomic():
        departures.announce(make_flight(scheduled_departure=flight.scheduled_departure + HOUR))

    assert_scheduled(remind, key=flight.code, at=flight.scheduled_departure - HOUR, count=1)


def test_the_replay_passes_its_own_reminder_time(make_flight: MakeFlight) -> None:
    flight = make_flight()
    soon, later = (flight.scheduled_departure - hours * HOUR for hours in (9, 8))
    departures.announce(flight, remind_at=soon)
    assert_scheduled(remind, at=soon)
    departures.move(flight, flight.scheduled_departure + HOUR, remind_at=later)
    assert_scheduled(remind, at=later, count=1)


@pytest.mark.django_db(transaction=True)
def test_a_worker_delivers_what_is_due(make_flight: MakeFlight, worker: object, tomorrow_noon: datetime) -> None:
    """With commits and a worker beside the test; nothing else needs that."""
    flight = make_flight(scheduled_departure=tomorrow_noon - timedelta(days=2))
    departures.announce(flight)

    deadline = time.monotonic() + 20
    while not Delivery.objects.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Delivery.objects.get().flight == flight
