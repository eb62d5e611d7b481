"""What `manage.py demo --serve` does after the replay: the site, its admin and its workers go on, with flights to come.

The recorded day is announced once more, for the next 24 hours, so that the admin has something to look ahead to.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import transaction
from django.utils import timezone

from example_project.flights import departures
from example_project.flights.models import Flight
from example_project.flights.replay import workers
from example_project.flights.replay.timeline import NEW_YORK

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from example_project.flights.replay.timeline import Departure

#: Somebody who may do everything: for a machine of one's own.
USER = PASSWORD = "demo"  # noqa: S105


def serve(address: str, *, processes: int) -> None:
    """Runs until Ctrl-C or SIGTERM, and takes its workers along. `address` is a port, or a host and a port."""
    with workers.running("--processes", str(processes)):
        call_command("runserver", address, use_reloader=False)


def welcome() -> None:
    """Create the demo user, or give it back its password."""
    user, _ = get_user_model().objects.get_or_create(username=USER)
    user.is_staff = user.is_superuser = user.is_active = True
    user.set_password(PASSWORD)
    user.save()


@transaction.atomic
def announce(record: Iterable[Departure], now: datetime | None = None) -> int:
    """Announce each departure for its time of day within the 24 hours after now; returns how many are new."""
    moment = now or timezone.now()
    coming = [_again(departure, moment) for departure in record]
    known = {flight.code for flight in Flight.objects.filter(day__in={flight.day for flight in coming})}
    new = [flight for flight in coming if flight.code not in known]
    for flight in new:
        departures.announce(flight)
    return len(new)


def _again(departure: Departure, now: datetime) -> Flight:
    local = now.astimezone(NEW_YORK)
    time = departure.scheduled_at.astimezone(NEW_YORK).time()
    today = local.replace(hour=time.hour, minute=time.minute, second=0, microsecond=0)
    leaves_at = today if today > local else today + timedelta(days=1)
    return Flight(
        carrier=departure.carrier,
        number=departure.number,
        day=leaves_at.date(),
        origin=departure.origin,
        destination=departure.destination,
        scheduled_departure=leaves_at,
    )
