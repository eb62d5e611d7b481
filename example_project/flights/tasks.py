from datetime import date, timedelta

from django.db import transaction
from django.utils import timezone

from delayedq import Limit, current_message, task, track
from delayedq.models import Message
from example_project.flights.models import Delivery, Flight, Report


@task(queue_name="reminders", max_attempts=5)
def remind(flight_id: int) -> None:
    """Remind the passengers that boarding is near. A real site would send mail; this one stores a Delivery."""
    due_at = current_message().scheduled_at_initially
    Delivery.objects.create(flight_id=flight_id, due_at=due_at, delivered_at=timezone.now())


@task(queue_name="reminders")
def ping() -> None:
    """Does nothing: its success shows that a worker is running."""


@task
def report() -> None:
    """Write the report of the day before, replacing an earlier one.

    The day comes from the tick's scheduled time: a missed or retried tick may run on a later day.
    """
    message = current_message()
    _report(timezone.localdate(message.nominal_at or message.scheduled_at_initially) - timedelta(days=1))


@task(interruptible=True, steps=["days", "report"])
def report_all() -> int:
    """Write the reports of all days again; returns how many. The page `reports/` shows how far it has come.

    Each report is a step: if its worker is killed, another one goes on with the day at which it stopped.
    """
    message = current_message()
    days = message.step("days", lambda: list(Flight.objects.days()))
    for day in track(days, "writing reports"):
        message.step("report", _report, day)
    return len(days)


def _report(day: date) -> None:
    flights, deliveries = Flight.objects.leaving_on(day), Delivery.objects.filter(flight__day=day)
    counts = {
        "flights": flights.count(),
        "cancelled": flights.cancelled().count(),
        "delivered": deliveries.count(),
        "late": deliveries.late().count(),
    }
    Report.objects.update_or_create(day=day, defaults=counts)


@task(limit=Limit(concurrency=1, size=2))
def sweep() -> int:
    """Schedule missing reminders, such as those that failed; returns how many.

    One runs at a time, and one may wait: a tick that comes beyond that is missed, as the waiting one does its work.
    """
    flights = Flight.objects.flying().leaving_after(timezone.now()).unreminded()
    return sum(_remind_again(pk) for pk in flights.values_list("pk", flat=True))


@transaction.atomic
def _remind_again(pk: int) -> bool:
    """Schedule the reminder again if it is missing. The flight is locked, so only its reminder can change meanwhile."""
    flight = Flight.objects.flying().select_for_update().filter(pk=pk).first()
    if flight is None:
        return False
    alive = Message.objects.keyed(remind.module_path, flight.code)
    # In this order: a reminder that ends between the two queries has written its delivery.
    if alive.exists() or flight.deliveries.exists():
        return False
    remind.schedule_at(flight.remind_at, flight.pk, key=flight.code, on_conflict="keep")
    return True
