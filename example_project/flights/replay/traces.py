"""Queries for exactly the rows that a replay writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction

from delayedq.models import FinishedMessage, Message
from example_project.flights.models import Delivery, Flight
from example_project.flights.replay.timeline import DAY
from example_project.flights.tasks import remind

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from delayedq.models import FinishedMessageQuerySet, MessageQuerySet
    from example_project.flights.models import FlightQuerySet


def flights() -> FlightQuerySet:
    return Flight.objects.leaving_on(DAY)


def deliveries() -> QuerySet[Delivery]:
    return Delivery.objects.filter(flight__day=DAY)


def live_reminders() -> MessageQuerySet:
    return Message.objects.filter(kind=remind.module_path, key__contains=f"/{DAY}/")


def ended_reminders() -> FinishedMessageQuerySet:
    return FinishedMessage.objects.filter(kind=remind.module_path, key__contains=f"/{DAY}/")


@transaction.atomic
def clear() -> None:
    for flight in flights():
        remind.unschedule(key=flight.code)
    ended_reminders().delete()
    flights().delete()
