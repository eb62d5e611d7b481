from __future__ import annotations

from datetime import UTC, timedelta
from typing import TYPE_CHECKING

import pytest
from django.test import Client
from django.utils import timezone

from delayedq.models import Message
from delayedq.testing import run_due
from example_project.flights import departures
from example_project.flights.models import Flight, Report

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture
def flight(make_flight: Callable[..., Flight]) -> Flight:
    flight = make_flight()
    departures.announce(flight)
    return flight


@pytest.fixture
def left(make_flight: Callable[..., Flight]) -> Flight:
    flight = make_flight(number=1, scheduled_departure=timezone.now() - HOUR)
    flight.save()
    return flight


def typed(instant: datetime) -> str:
    return f"{timezone.localtime(instant):%Y-%m-%dT%H:%M}"


def form_of(departure: datetime, **changes: object) -> dict[str, object]:
    return {
        "carrier": "b6",
        "number": 725,
        "origin": "jfk",
        "destination": "bqn",
        "scheduled_departure": typed(departure),
        **changes,
    }


def test_the_board_shows_times_of_new_york(client: Client, flight: Flight) -> None:
    page = client.get(f"/{flight.day}/").text
    assert "UA 1545" in page
    assert "12:00" in page
    assert "11:00" in page


def test_the_board_shows_the_state_of_each_flight(client: Client, flight: Flight) -> None:
    moved = timezone.localtime(flight.scheduled_departure.astimezone(UTC) + 15 * HOUR)
    departures.move(flight, moved)
    page = client.get(f"/{flight.day}/").text
    assert f"{moved:%H:%M}, " in page
    assert "+900 min" in page
    departures.cancel(flight)
    assert "cancelled" in client.get(f"/{flight.day}/").text


def test_the_board_shows_a_delivered_reminder(client: Client, left: Flight) -> None:
    left.deliveries.create(due_at=left.remind_at, delivered_at=left.remind_at)
    page = client.get(f"/{left.day}/").text
    assert ">sent<" in page
    assert "Delay" not in page


def test_the_front_page_is_the_latest_day_that_has_flights(client: Client, left: Flight, flight: Flight) -> None:
    left.day = timezone.localdate() - timedelta(days=3)
    left.save()
    assert client.get("/").headers["Location"] == f"/{left.day}/"
    page = client.get(f"/{left.day}/").text
    assert f'href="/{flight.day}/" rel="next"' in page


def test_an_empty_board_says_how_to_add_flights(client: Client) -> None:
    page = client.get("/", follow=True).text
    assert "manage.py demo" in page


def test_a_day_that_does_not_exist_is_not_found(client: Client) -> None:
    assert client.get("/2013-02-30/").status_code == 404


def test_adding_a_flight_schedules_its_reminder(client: Client, tomorrow_noon: datetime) -> None:
    page = client.post("/add/", form_of(tomorrow_noon), follow=True).text
    added = Flight.objects.get()
    assert (added.carrier, added.origin, added.destination) == ("B6", "JFK", "BQN")
    assert added.code == f"B6725/{tomorrow_noon:%Y-%m-%d}/JFK"
    assert Message.objects.get(key=added.code).scheduled_at == tomorrow_noon - HOUR
    assert "the reminder goes at 11:00" in page


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("carrier", "U", "Two capital letters or digits"),
        ("origin", "E1R", "Three capital letters"),
        ("number", "-1", "greater than or equal to 0"),
        ("scheduled_departure", "2013-03-08T05:15", "This time is in the past."),
        ("scheduled_departure", "noon", "Enter a valid date/time."),
        ("scheduled_departure", "", "This field is required."),
    ],
)
def test_an_invalid_flight_is_refused_with_the_reason(
    client: Client, tomorrow_noon: datetime, field: str, value: str, error: str
) -> None:
    page = client.post("/add/", form_of(tomorrow_noon, **{field: value})).text
    assert error in page
    assert not Flight.objects.exists()
    assert not Message.objects.exists()


def test_a_flight_that_is_on_the_board_is_refused(client: Client, flight: Flight) -> None:
    again = form_of(flight.scheduled_departure + HOUR, carrier="UA", number=1545, origin="EWR")
    assert "This flight is on the board already." in client.post("/add/", again).text
    assert Message.objects.get().scheduled_at == flight.scheduled_departure - HOUR


def test_the_same_number_may_leave_from_another_airport(client: Client, flight: Flight) -> None:
    client.post("/add/", form_of(flight.scheduled_departure, carrier="UA", number=1545, origin="LGA"))
    assert Message.objects.count() == 2


def test_delaying_a_flight_moves_its_reminder(client: Client, flight: Flight) -> None:
    later = flight.scheduled_departure + 2 * HOUR
    page = client.post(f"/{flight.pk}/delay/", {"departure": typed(later)}, follow=True).text
    assert "the reminder goes at 13:00" in page
    assert Message.objects.get().scheduled_at == later - HOUR


@timezone.override(UTC)  # no clock changes
def test_a_flight_is_not_delayed_into_the_past(client: Client, flight: Flight) -> None:
    page = client.post(f"/{flight.pk}/delay/", {"departure": typed(timezone.now() - HOUR)}).text
    assert "This time is in the past." in page
    assert Flight.objects.get().departure is None


def test_cancelling_a_flight_drops_its_reminder(client: Client, flight: Flight) -> None:
    assert "Cancel UA 1545 EWR-IAH?" in client.get(f"/{flight.pk}/cancel/").text
    assert Message.objects.exists()
    client.post(f"/{flight.pk}/cancel/")
    assert Flight.objects.get().cancelled
    assert not Message.objects.exists()


@pytest.mark.parametrize("change", ["delay", "cancel"])
def test_a_flight_that_has_left_does_not_change(client: Client, left: Flight, change: str) -> None:
    page = client.post(f"/{left.pk}/{change}/", {"departure": typed(timezone.now() + HOUR)}).text
    assert "UA 1 EWR-IAH has left." in page
    assert not Message.objects.exists()


@pytest.mark.parametrize("change", ["delay", "cancel"])
def test_a_cancelled_flight_does_not_change(client: Client, flight: Flight, change: str) -> None:
    departures.cancel(flight)
    page = client.post(f"/{flight.pk}/{change}/", {"departure": typed(timezone.now() + HOUR)}).text
    assert "UA 1545 EWR-IAH was cancelled." in page
    assert not Message.objects.exists()


@pytest.mark.parametrize("path", ["add", "1/delay", "1/cancel"])
def test_changes_need_the_csrf_token(path: str) -> None:
    assert Client(enforce_csrf_checks=True).post(f"/{path}/").status_code == 403


def test_the_admin_shows_flights_and_changes_none(admin_client: Client, flight: Flight) -> None:
    assert flight.code in admin_client.get("/admin/flights/flight/").text
    assert admin_client.get("/admin/flights/flight/add/").status_code == 403
    assert admin_client.post(f"/admin/flights/flight/{flight.pk}/delete/", {"post": "yes"}).status_code == 403


def test_the_form_of_a_delay_begins_with_the_expected_departure(client: Client, flight: Flight) -> None:
    assert f'value="{typed(flight.scheduled_departure)}"' in client.get(f"/{flight.pk}/delay/").text


def test_all_reports_are_written_again_and_a_page_shows_how_far_that_is(client: Client, flight: Flight) -> None:
    assert "Write them again" in client.get("/reports/").text
    shown, again = (client.post("/reports/").headers["Location"] for _ in range(2))
    assert Message.objects.keyed("example_project.flights.tasks.report_all", "all").count() == 1
    token = shown.split("/")[-2]
    assert f"/status/{token}/" in client.get(shown).text
    assert client.get(f"/status/{token}/").json()["state"] == "ready"
    run_due("default")
    for page in (shown, again):
        told = client.get(page.replace("/reports/", "/status/")).json()
        assert (told["state"], told["progress"]["done"], told["progress"]["share"]) == ("succeeded", 1, 1.0)
    assert Report.objects.filter(day=flight.day).exists()
