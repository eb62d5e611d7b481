"""`manage.py demo --serve` after the replay: serve the site and its admin, with workers and flights to come.

The recorded day is announced once more, for the next 24 hours, so that the forecast of the admin is not empty. On the
desk, the clerk begins to decide the cases that the demo has made.
"""

from __future__ import annotations

from datetime import timedelta
from threading import Thread
from typing import TYPE_CHECKING

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connections, transaction
from django.utils import timezone

from example_project.flights import departures
from example_project.flights.models import Flight
from example_project.flights.replay import cases, workers
from example_project.flights.replay.timeline import NEW_YORK

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from example_project.flights.replay.timeline import Departure

#: A superuser with a public password: only for a development machine.
USER = PASSWORD = "demo"  # noqa: S105


def serve(address: str, *, processes: int) -> None:
    """Serve until Ctrl-C or SIGTERM, then stop the workers too. `address`: a port, or host:port."""
    with workers.running("--processes", str(processes)):
        # Beside the site, which is there at once: the clerk waits until workers have opened the cases.
        Thread(target=_begin, daemon=True).start()
        call_command("runserver", address, use_reloader=False)


def _begin() -> None:
    try:
        cases.begin()
    finally:
        connections.close_all()  # those of this thread


def welcome() -> None:
    """Create the demo user and those of the desk, or reset their passwords."""
    cases.welcome()
    user, _ = get_user_model().objects.get_or_create(username=USER)
    user.is_staff = user.is_superuser = user.is_active = True
    user.set_password(PASSWORD)
    user.save()


@transaction.atomic
def announce(record: Iterable[Departure], now: datetime | None = None) -> int:
    """Announce each departure for the next occurrence of its time of day after `now`; returns how many are new."""
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
