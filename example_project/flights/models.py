"""Flights, deliveries of their reminders, and a report for each day."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Self

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import F
from django.db.models.functions import Coalesce
from django.utils import timezone

if TYPE_CHECKING:
    from datetime import date, datetime

#: A reminder is due this long before its flight leaves.
LEAD = timedelta(hours=1)
#: A reminder that was delivered longer than this after it was due is late.
LATE = timedelta(minutes=1)

AIRLINE = RegexValidator(r"^[A-Z0-9]{2}\Z", "Two capital letters or digits, such as UA or B6.")
AIRPORT = RegexValidator(r"^[A-Z]{3}\Z", "Three capital letters, such as EWR.")


class FlightQuerySet(models.QuerySet["Flight"]):
    def leaving_on(self, day: date) -> Self:
        return self.filter(day=day)

    def flying(self) -> Self:
        return self.filter(cancelled=False)

    def cancelled(self) -> Self:
        return self.filter(cancelled=True)

    def leaving_after(self, moment: datetime) -> Self:
        """Flights whose last known departure is after `moment`."""
        return self.alias(leaves_at=Coalesce("departure", "scheduled_departure")).filter(leaves_at__gt=moment)

    def unreminded(self) -> Self:
        return self.filter(deliveries=None)

    def in_order(self) -> Self:
        return self.order_by("scheduled_departure", "carrier", "number")

    def with_delivery(self) -> Self:
        """Annotate `delivered_at`: when the last reminder of the flight was delivered, or None."""
        return self.annotate(delivered_at=models.Max("deliveries__delivered_at"))

    def days(self) -> models.QuerySet[Flight, date]:
        """The days that have flights, in ascending order."""
        return self.order_by("day").values_list("day", flat=True).distinct()


class Flight(models.Model):
    """One departure. Change its times with the functions of `departures`, which also move the reminder."""

    carrier = models.CharField("airline", max_length=2, validators=[AIRLINE])
    number = models.PositiveIntegerField()
    day = models.DateField(editable=False, db_index=True, help_text="Of the scheduled departure, in New York.")
    origin = models.CharField("from", max_length=3, validators=[AIRPORT])
    destination = models.CharField("to", max_length=3, validators=[AIRPORT])
    scheduled_departure = models.DateTimeField()
    departure = models.DateTimeField(null=True, blank=True, help_text="Expected, or actual; empty while not announced.")
    cancelled = models.BooleanField(default=False)

    objects = FlightQuerySet.as_manager()

    class Meta:
        # The airport is part of it: a flight number can leave two airports on one day, as WN 2269 did on 8 June 2013.
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["carrier", "number", "day", "origin"],
                name="flights_one_departure",
                violation_error_message="This flight is on the board already.",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.carrier} {self.number} {self.origin}-{self.destination}"

    @property
    def code(self) -> str:
        """The name of this departure, which is also the key of its reminder."""
        return f"{self.carrier}{self.number}/{self.day}/{self.origin}"

    @property
    def expected_departure(self) -> datetime:
        return self.departure or self.scheduled_departure

    @property
    def remind_at(self) -> datetime:
        return self.expected_departure - LEAD

    @property
    def has_left(self) -> bool:
        return not self.cancelled and self.expected_departure <= timezone.now()

    @property
    def delay(self) -> timedelta:
        return self.expected_departure - self.scheduled_departure

    @property
    def delay_in_minutes(self) -> int:
        return self.delay // timedelta(minutes=1)


class DeliveryQuerySet(models.QuerySet["Delivery"]):
    def late(self) -> Self:
        return self.filter(delivered_at__gt=F("due_at") + LATE)


class Delivery(models.Model):
    """A delivered reminder; the task `remind` writes one each time it runs."""

    flight = models.ForeignKey(Flight, on_delete=models.CASCADE, related_name="deliveries")
    due_at = models.DateTimeField()
    delivered_at = models.DateTimeField()

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "deliveries"

    def __str__(self) -> str:
        return f"{self.flight} at {self.delivered_at:%H:%M:%S}"

    @property
    def late(self) -> timedelta:
        return self.delivered_at - self.due_at


class Report(models.Model):
    """Counts of the departures of a day and of their reminders; written by the task `report`."""

    day = models.DateField(unique=True)
    flights = models.PositiveIntegerField()
    cancelled = models.PositiveIntegerField()
    delivered = models.PositiveIntegerField(help_text="Reminders.")
    late = models.PositiveIntegerField(help_text="Those of them that were over a minute late.")

    def __str__(self) -> str:
        return f"{self.day}"
