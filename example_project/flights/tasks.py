from django.utils import timezone

from delayedq import current_message, task
from example_project.flights.models import Delivery


@task(queue_name="reminders", max_attempts=5)
def remind(flight_id: int) -> None:
    """Remind the passengers that boarding is near. A real site sends mail; this one writes down that it would have."""
    due_at = current_message().scheduled_at_initially
    Delivery.objects.create(flight_id=flight_id, due_at=due_at, delivered_at=timezone.now())


@task(queue_name="reminders")
def roll_call() -> None:
    """Does nothing: that it ran tells that a worker is up."""
