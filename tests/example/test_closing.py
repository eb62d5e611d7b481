"""The day is closed: a flow of several steps, whose results go from one to the next."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from example_project.flights.closing import close_day
from example_project.flights.models import Delivery, Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from delayedq.testing import AttemptReport
    from example_project.flights.models import Flight

    MakeFlight = Callable[..., Flight]
    RunDue = Callable[..., list[AttemptReport]]

pytestmark = pytest.mark.django_db


def a_day(make_flight: MakeFlight, *, late: timedelta) -> Flight:
    """Three departures of two airlines: one is reminded that much too late, one is cancelled, one gets no reminder."""
    reminded, cancelled, forgotten = make_flight(1), make_flight(2), make_flight(3)
    cancelled.cancelled, forgotten.carrier = True, "B6"
    for flight in (reminded, cancelled, forgotten):
        flight.save()
    due_at = reminded.remind_at
    Delivery.objects.create(flight=reminded, due_at=due_at, delivered_at=due_at + late)
    return reminded


def test_the_airlines_are_counted_side_by_side_and_the_report_is_their_sum(
    make_flight: MakeFlight, run_due: RunDue
) -> None:
    day = a_day(make_flight, late=timedelta(hours=1)).day
    flow = close_day(day)
    run_due()

    assert flow.state == "succeeded"
    assert [one["flights"] for one in flow.result("count")] == [1, 2]
    assert flow.result("missing") == [f"B63/{day}/EWR"]
    report = Report.objects.get(day=day)
    assert (report.flights, report.cancelled, report.delivered, report.late) == (3, 1, 1, 1)
    assert flow.result("apologise") == 1
    assert flow.result() == f"{day}: 3 departures, 1 reminders over 0:01:00 late, 1 missing"


def test_nobody_is_told_of_a_day_that_went_well(make_flight: MakeFlight, run_due: RunDue) -> None:
    flight = a_day(make_flight, late=timedelta())
    type(flight).objects.filter(carrier="B6").delete()
    flow = close_day(flight.day)
    run_due()

    assert {step.name: step.state for step in flow.steps()}["apologise"] == "skipped"
    assert flow.state == "succeeded"
    assert flow.result() == f"{flight.day}: 2 departures, 0 reminders over 0:01:00 late, 0 missing"
