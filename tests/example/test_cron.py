"""The example's schedules: both days of 2013 on which New York changed its clocks, step by step, and the tasks."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from delayedq.models import CronTick, FinishedMessage
from delayedq.testing import assert_scheduled, clock, run_until, scheduled
from example_project import settings as example
from example_project.flights import departures, tasks
from example_project.flights.models import LEAD, Delivery, Flight, Report
from example_project.flights.tasks import remind, report, sweep
from tests.worker.attempts import attempt_of, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client
    from pytest_django.fixtures import SettingsWrapper

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NEW_YORK = ZoneInfo("America/New_York")
ALL_SCHEDULES = example.DELAYEDQ["CRON"]
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
NOON = datetime(2013, 3, 9, 17, tzinfo=UTC)


def midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=NEW_YORK).astimezone(UTC)


def live_through(day: date) -> dict[str, list[datetime]]:
    """Run from midnight to midnight in New York; returns when each schedule ran, checked to be its nominal time."""
    with clock(midnight(day) - MINUTE):
        run_until(midnight(day + DAY) - MINUTE)
    ended = {row.pk: row for row in FinishedMessage.objects.all()}
    ran = defaultdict(list)
    for tick in CronTick.objects.filter(message_id__in=ended).select_related("schedule").order_by("nominal_at"):
        assert ended[tick.message_id].started_at == tick.nominal_at
        ran[tick.schedule.name].append(tick.nominal_at)
    return ran


@pytest.mark.parametrize(
    ("day", "reported_at", "sweeps"),
    [
        # 02:30 does not exist: the report comes at the end of the gap, 03:00 EDT.
        (date(2013, 3, 10), datetime(2013, 3, 10, 7, tzinfo=UTC), 23 * 4),
        # The hour from 01:00 comes twice, 02:30 EST once.
        (date(2013, 11, 3), datetime(2013, 11, 3, 7, 30, tzinfo=UTC), 25 * 4),
        (date(2013, 7, 4), datetime(2013, 7, 4, 6, 30, tzinfo=UTC), 24 * 4),
    ],
    ids=["spring", "autumn", "neither"],
)
def test_on_every_day_the_report_runs_once_and_the_sweep_every_15_minutes(
    alias: str, settings: SettingsWrapper, day: date, reported_at: datetime, sweeps: int
) -> None:
    settings.DELAYEDQ = {"CRON": {name: ALL_SCHEDULES[name] for name in ("report", "sweep")}}
    ran = live_through(day)

    assert ran["report"] == [reported_at]
    assert list(Report.objects.values_list("day", flat=True)) == [day - DAY]
    assert ran["sweep"] == [midnight(day) + number * 15 * MINUTE for number in range(sweeps)]
    assert FinishedMessage.objects.succeeded().count() == FinishedMessage.objects.count() == 1 + sweeps


# The report


def flight(number: int, leaves: datetime = NOON, *, cancelled: bool = False) -> Flight:
    return Flight.objects.create(
        carrier="UA",
        number=number,
        day=timezone.localdate(leaves, NEW_YORK),
        origin="EWR",
        destination="IAH",
        scheduled_departure=leaves,
        cancelled=cancelled,
    )


def deliver(to: Flight, late: timedelta) -> None:
    Delivery.objects.create(flight=to, due_at=to.remind_at, delivered_at=to.remind_at + late)


def report_at(nominal_at: datetime) -> None:
    tick = '{"cron": {"schedule": "report", "nominal_at": "%s"}}' % nominal_at.isoformat()  # noqa: UP031
    ended = run(attempt_of(report, metadata=tick))
    assert ended.error is None


def counts() -> dict[date, tuple[int, ...]]:
    return {row[0]: row[1:] for row in Report.objects.values_list("day", "flights", "cancelled", "delivered", "late")}


def test_a_report_counts_the_flights_and_reminders_of_the_day_before(alias: str) -> None:
    deliver(flight(1), late=MINUTE)
    deliver(flight(2), late=MINUTE + timedelta(milliseconds=1))
    deliver(flight(3, midnight(date(2013, 3, 10)) - MINUTE), late=timedelta())
    flight(4, cancelled=True)
    deliver(flight(5, midnight(date(2013, 3, 10))), late=HOUR)
    flight(6, midnight(date(2013, 3, 9)) - MINUTE)
    report_at(datetime(2013, 3, 10, 7, tzinfo=UTC))

    assert counts() == {date(2013, 3, 9): (4, 1, 3, 1)}


def test_a_report_that_runs_again_replaces_what_it_wrote(alias: str) -> None:
    for number in (1, 2):
        flight(number)
        report_at(datetime(2013, 3, 10, 7, tzinfo=UTC))

    assert counts() == {date(2013, 3, 9): (2, 0, 0, 0)}


@pytest.mark.parametrize(
    ("nominal_at", "day"),
    [
        (datetime(2013, 3, 10, 4, 59, tzinfo=UTC), date(2013, 3, 8)),
        (datetime(2013, 3, 10, 5, 0, tzinfo=UTC), date(2013, 3, 9)),
        (datetime(2013, 3, 11, 3, 59, tzinfo=UTC), date(2013, 3, 9)),
        (datetime(2013, 3, 11, 4, 0, tzinfo=UTC), date(2013, 3, 10)),
    ],
    ids=str,
)
def test_the_day_of_a_report_is_that_of_new_york(alias: str, nominal_at: datetime, day: date) -> None:
    report_at(nominal_at)

    assert list(counts()) == [day]


def test_a_report_that_no_schedule_asked_for_is_about_the_day_before_it_was_due(alias: str) -> None:
    run(attempt_of(report, scheduled_at_initially=NOON, scheduled_at=NOON + 3 * DAY))

    assert list(counts()) == [date(2013, 3, 8)]


def test_the_admin_shows_reports_and_changes_none(admin_client: Client) -> None:
    written = Report.objects.create(day=date(2013, 3, 9), flights=979, cancelled=180, delivered=799, late=2)

    assert "979" in admin_client.get("/admin/flights/report/").text
    assert admin_client.get("/admin/flights/report/add/").status_code == 403
    assert admin_client.post(f"/admin/flights/report/{written.pk}/delete/", {"post": "yes"}).status_code == 403


# The sweep


def reminders() -> dict[str | None, datetime]:
    return {message.key: message.at for message in scheduled(remind)}


@pytest.fixture
def coming(make_flight: Callable[..., Flight]) -> Flight:
    """A flight that leaves tomorrow and has no reminder."""
    coming = make_flight()
    coming.save()
    return coming


@pytest.mark.django_db(transaction=True)
def test_a_missing_reminder_is_scheduled_once(coming: Flight) -> None:
    assert [sweep(), sweep()] == [1, 0]

    assert_scheduled(remind, args=[coming.pk], key=coming.code, at=coming.remind_at, count=1)


@pytest.mark.django_db
def test_a_reminder_that_failed_is_scheduled_again_for_the_last_known_time(
    coming: Flight, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = coming.scheduled_departure + HOUR
    departures.move(coming, later)
    with clock(), monkeypatch.context() as broken:
        broken.setattr(Delivery.objects, "create", lambda **_: 1 // 0)
        attempts = run_until(later, raise_failures=False)
    assert [attempt.outcome for attempt in attempts] == ["retry"] * 4 + ["failed"]

    assert sweep() == 1
    assert reminders() == {coming.code: later - LEAD}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("state", ["reminded", "delivered", "cancelled", "left"])
def test_a_flight_that_needs_no_other_reminder_gets_none(coming: Flight, state: str) -> None:
    bring(coming, state)
    before = reminders()

    assert sweep() == 0
    assert reminders() == before


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("state", ["reminded", "delivered", "cancelled"])
def test_the_sweep_sees_changes_of_a_flight_made_while_it_runs(coming: Flight, state: str) -> None:
    bring(coming, state)
    before = reminders()

    assert not tasks._remind_again(coming.pk)
    assert reminders() == before


def bring(flight: Flight, state: str) -> None:
    match state:
        case "reminded":
            remind.schedule_at(flight.remind_at - HOUR, flight.pk, key=flight.code)
        case "delivered":
            deliver(flight, late=timedelta())
        case "cancelled":
            departures.cancel(flight)
        case "left":
            Flight.objects.update(departure=timezone.now() - MINUTE)


# The commands


@pytest.mark.timeout(300)  # four processes start, one after the other
def test_an_operator_runs_a_schedule_and_a_worker_places_the_next_ticks(
    environment: dict[str, str], coming: Flight
) -> None:
    assert "sweep is due now" in manage(environment, "delayedq", "cron", "run", "sweep")
    manage(environment, "run_workers", "--drain")

    assert reminders() == {coming.code: coming.remind_at}
    assert {tick.schedule.name for tick in CronTick.objects.select_related("schedule")} == ALL_SCHEDULES.keys()
    listed = manage(environment, "delayedq", "cron", "list")
    assert "30 2 * * *, At 02:30, America/New_York" in listed
    assert "*/15 * * * *, Every 15 minutes, America/New_York" in listed


def manage(environment: dict[str, str], *arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**environment, "DJANGO_SETTINGS_MODULE": "example_project.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
