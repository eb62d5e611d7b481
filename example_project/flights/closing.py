"""The evening's work as a flow: count each airline's departures, write the report, apologise where it was late."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict

from delayedq import Flow, group, task
from example_project.flights.models import LATE, Delivery, Flight, Report

if TYPE_CHECKING:
    from datetime import date

    from delayedq.flows.result import FlowResult


class Counts(TypedDict):
    """What one airline did on one day. Results of steps are JSON."""

    flights: int
    cancelled: int
    delivered: int
    late: int


@task
def count(day: date, carrier: str) -> Counts:
    """The departures of one airline, and their reminders."""
    flights = Flight.objects.leaving_on(day).filter(carrier=carrier)
    deliveries = Delivery.objects.filter(flight__in=flights)
    return {
        "flights": flights.count(),
        "cancelled": flights.cancelled().count(),
        "delivered": deliveries.count(),
        "late": deliveries.late().count(),
    }


@task
def find_missing(day: date) -> list[str]:
    """The codes of the flights that left without a reminder."""
    missing = Flight.objects.leaving_on(day).flying().unreminded()
    return [flight.code for flight in missing.in_order()]


@task
def write(day: date, counted: list[Counts]) -> Counts:
    """Write the report of the day: the sum of its airlines."""
    total: Counts = {
        "flights": sum(one["flights"] for one in counted),
        "cancelled": sum(one["cancelled"] for one in counted),
        "delivered": sum(one["delivered"] for one in counted),
        "late": sum(one["late"] for one in counted),
    }
    Report.objects.update_or_create(day=day, defaults=total)
    return total


@task
def was_late(total: Counts, missing: list[str]) -> bool:
    """Whether somebody is to be told."""
    return bool(total["late"] or missing)


@task
def apologise(day: date) -> int:
    """To passengers whose reminder was late; returns how many reminders that were. A real site would send mail."""
    return Delivery.objects.filter(flight__day=day).late().count()


@task
def close(day: date, total: Counts, missing: list[str]) -> str:
    """The last step, whatever became of the apology."""
    return f"{day}: {total['flights']} departures, {total['late']} reminders over {LATE} late, {len(missing)} missing"


def close_day(day: date) -> FlowResult:
    """Store the flow of a day; workers do the rest. The admin shows it under Flows."""
    carriers = Flight.objects.leaving_on(day).order_by("carrier").values_list("carrier", flat=True).distinct()
    flow = Flow(f"Close {day}", policy="continue", deadline=timedelta(hours=6))
    counted = flow.add("count", group(count.s(day, carrier) for carrier in carriers))
    missing = flow.add("missing", find_missing.s(day))
    total = flow.add("report", write.s(day, counted.result))
    late = flow.add("was it late?", was_late.s(total.result, missing.result))
    flow.add("apologise", apologise.s(day), when=late.result)
    flow.add("close", close.s(day, total.result, missing.result), after=["apologise"], when="ended")
    return flow.enqueue()
