"""Changes of a departure. Each changes the flight and its reminder in one transaction.

`remind_at` is for the replay, which plays a recorded day in seconds; other callers leave it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction

from example_project.flights.models import LEAD, Flight
from example_project.flights.tasks import remind

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.store.protocol import OfferOutcome


@transaction.atomic
def announce(flight: Flight, *, remind_at: datetime | None = None) -> OfferOutcome:
    """Save the flight, which puts it on the board, and schedule its reminder."""
    flight.save()
    return remind.schedule_at(remind_at or flight.remind_at, flight.pk, key=flight.code).outcome


@transaction.atomic
def move(flight: Flight, departure: datetime, *, remind_at: datetime | None = None) -> OfferOutcome | None:
    """Change the departure time of the flight, and move its reminder. None if the flight was cancelled meanwhile."""
    if not Flight.objects.flying().filter(pk=flight.pk).update(departure=departure):
        return None
    return remind.schedule_at(remind_at or departure - LEAD, flight.pk, key=flight.code).outcome


@transaction.atomic
def cancel(flight: Flight) -> bool:
    """Cancel the flight and its reminder. False if it had no live reminder."""
    Flight.objects.filter(pk=flight.pk).update(cancelled=True)
    return remind.unschedule(key=flight.code)
