"""The check at the end: each flight that left has one delivery, for its last known time, and not before it was due."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from example_project.flights.models import LEAD
from example_project.flights.replay import traces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import timedelta

    from example_project.flights.models import Flight
    from example_project.flights.replay.timeline import Clock, Departure


class Lateness(NamedTuple):
    p50: timedelta
    p99: timedelta
    max: timedelta


def lateness(late: Iterable[timedelta]) -> Lateness | None:
    ordered = sorted(late)
    if not ordered:
        return None
    p50, p99 = (ordered[ceil(len(ordered) * share) - 1] for share in (0.50, 0.99))
    return Lateness(p50, p99, ordered[-1])


def faults(record: Iterable[Departure], clock: Clock) -> list[str]:
    """The faults found, as sentences. Compares the deliveries with the record itself, not with the replay's events."""
    flights = {
        (flight.carrier, flight.number, flight.origin): flight
        for flight in traces.flights().prefetch_related("deliveries")
    }
    found = [
        f"{departure.carrier}{departure.number} from {departure.origin} {fault}"
        for departure in record
        if (fault := _fault(departure, flights.get((departure.carrier, departure.number, departure.origin)), clock))
    ]
    return [*found, *_left_behind()]


def _fault(departure: Departure, flight: Flight | None, clock: Clock) -> str | None:
    if flight is None:
        return "is not on the board"
    deliveries = flight.deliveries.all()
    if departure.left_at is None:
        return "was cancelled, but its reminder was delivered" if deliveries else None
    if len(deliveries) != 1:
        return f"was reminded {len(deliveries)} times"
    if deliveries[0].due_at != clock.real(departure.left_at - LEAD):
        return "was not reminded for its last known time"
    if deliveries[0].late.total_seconds() < 0:
        return "was reminded too early"
    return None


def _left_behind() -> Iterator[str]:
    for reminder in traces.live_reminders():
        yield f"{reminder.key} is still in the queue, after {reminder.attempt} attempts"
    for failed in traces.ended_reminders().failed():
        yield f"{failed.key} failed: {failed.errors}"
