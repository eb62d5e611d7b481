from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from example_project.flights.models import Flight

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def tomorrow_noon() -> datetime:
    noon = timezone.localtime().replace(hour=12, minute=0, second=0, microsecond=0)
    return noon + timedelta(days=1)


@pytest.fixture
def make_flight(tomorrow_noon: datetime) -> Callable[..., Flight]:
    """An unsaved flight that leaves tomorrow at noon."""

    def make(number: int = 1545, scheduled_departure: datetime = tomorrow_noon) -> Flight:
        return Flight(
            carrier="UA",
            number=number,
            day=timezone.localdate(scheduled_departure),
            origin="EWR",
            destination="IAH",
            scheduled_departure=scheduled_departure,
        )

    return make
