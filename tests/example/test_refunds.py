"""A passenger asks for a refund: a person decides it at the desk, and the handler does so unseen."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from delayedq import desk
from delayedq.desk.visits import measured
from delayedq.models import Message
from example_project.flights.refunds import refund
from example_project.flights.replay import cases
from example_project.flights.replay.timeline import DAY

if TYPE_CHECKING:
    from collections.abc import Callable

    from delayedq.testing import AttemptReport
    from example_project.flights.models import Flight

    MakeFlight = Callable[..., Flight]
    RunDue = Callable[..., list[AttemptReport]]

pytestmark = pytest.mark.django_db


def test_a_refund_is_decided_by_a_person_and_compared_with_the_handler(
    make_flight: MakeFlight, run_due: RunDue
) -> None:
    flight = make_flight()
    flight.departure = flight.scheduled_departure + timedelta(hours=4)
    flight.save()
    refund.enqueue(flight, "Ada")
    run_due()

    ada = get_user_model().objects.create_superuser("clerk")
    item = desk.take_next(ada, "refunds")
    assert item is not None
    item.finish({"percent": 100}, by=ada)
    assert item.proposal == item.decision == '{"percent":100}'
    assert item.agreed


def test_the_cases_of_the_demo_are_on_the_desk_and_the_clerk_has_begun(
    make_flight: MakeFlight, run_due: RunDue
) -> None:
    for number in range(1, 71):
        flight = make_flight(number)
        flight.day, flight.departure = DAY, flight.scheduled_departure + timedelta(minutes=5 * number)
        flight.cancelled = number > 60
        flight.save()
    cases.welcome()
    asked = cases.ask()
    assert asked == 53  # a delay of 90 minutes, or cancelled
    assert desk.items("refunds").count() == 0
    run_due()
    assert cases.begin() == cases.BEGUN
    items = desk.items("refunds")
    assert items.unassigned().count() == asked - cases.BEGUN
    assert 0 < items.in_review().count() < cases.BEGUN
    agreement = measured(refund.module_path)
    assert 0 < agreement.agreed < agreement.compared < cases.BEGUN

    for name, shown in {"clerk": "Next of refunds", "reviewer": "pending your review", "lead": "Automation"}.items():
        client = Client()
        assert client.login(username=name, password=name)
        assert shown in client.get("/desk/").content.decode()
        flight_page = client.get(f"/desk/{items.unassigned()[0].pk}/").content.decode()
        assert "UA " in flight_page
        assert "Wrote" in flight_page
    cases.clear()
    assert not desk.items("refunds").exists()
    assert not Message.objects.exists()
