"""A passenger asks for a refund: a person decides it at the desk, and the handler does so unseen."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.contrib.auth import get_user_model

from delayedq import desk
from example_project.flights.refunds import refund

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
