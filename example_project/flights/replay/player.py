"""Makes the changes that the events of the timeline ask for, at the time of a fast clock."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from django.db import transaction
from django.utils import timezone

from delayedq.store.protocol import OfferOutcome
from example_project.flights import departures
from example_project.flights.models import LEAD, Flight
from example_project.flights.replay.timeline import DAY, News

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from example_project.flights.replay.timeline import Clock, Departure, Event


class TooFast(Exception):  # noqa: N818
    """The machine was too slow: a change of a flight came when its old reminder was already due."""


class Player:
    def __init__(self, clock: Clock, events: Iterable[Event]) -> None:
        self.clock = clock
        self.events = deque(events)
        self.flights: dict[Departure, Flight] = {}
        self.scheduled = self.moved = self.cancelled = 0

    def step(self, now: datetime) -> None:
        """Make the changes known until `now`, in one transaction. Raises TooFast if one came too late."""
        recorded = self.clock.recorded(now)
        known: list[Event] = []
        while self.events and self.events[0].at <= recorded:
            known.append(self.events.popleft())
        with transaction.atomic():
            for event in known:
                self._do(event)
        committed = self.clock.recorded(timezone.now())
        if any(event.overtaken(committed) for event in known):
            raise TooFast

    def _do(self, event: Event) -> None:
        match event.news:
            case News.ANNOUNCED:
                self._announce(event.departure)
            case News.MOVED:
                self._move(event.departure)
            case News.CANCELLED:
                self.cancelled += departures.cancel(self.flights[event.departure])

    def _announce(self, departure: Departure) -> None:
        flight = self.flights[departure] = Flight(
            carrier=departure.carrier,
            number=departure.number,
            day=DAY,
            origin=departure.origin,
            destination=departure.destination,
            scheduled_departure=departure.scheduled_at,
        )
        outcome = departures.announce(flight, remind_at=self._remind_at(departure.scheduled_at))
        self.scheduled += outcome is OfferOutcome.CREATED

    def _move(self, departure: Departure) -> None:
        assert departure.left_at is not None
        remind_at = self._remind_at(departure.left_at)
        outcome = departures.move(self.flights[departure], departure.left_at, remind_at=remind_at)
        self.moved += outcome is OfferOutcome.UPDATED

    def _remind_at(self, leaves_at: datetime) -> datetime:
        return self.clock.real(leaves_at - LEAD)
