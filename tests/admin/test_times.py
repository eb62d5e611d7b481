"""Times on the pages: one format with the zone, inputs that say what they mean, and what a change would do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from delayedq.operations.wording import exact, span
from tests.admin.given import HISTORY, MESSAGES, dead, live, offer, text_of, tick

DUE = datetime(2126, 7, 1, 7, 30, tzinfo=UTC)


@pytest.fixture
def waiting(store):
    id_ = offer(store, "a")
    live(id_).__class__.objects.filter(pk=id_).update(scheduled_at=DUE)
    return id_


def test_a_time_is_shown_with_its_date_and_zone(operator, waiting):
    assert "Mon 2126-07-01 03:30:00 EDT" in text_of(operator.get(MESSAGES))
    assert "Mon 2126-07-01 03:30:00 EDT" in text_of(operator.get(f"{MESSAGES}{waiting}/change/"))


def test_a_time_is_in_the_zone_that_the_site_activates(operator, waiting):
    with timezone.override(ZoneInfo("Asia/Kolkata")):
        assert "Mon 2126-07-01 13:00:00 IST" in text_of(operator.get(MESSAGES))
        confirmation = tick(operator, "reschedule", waiting)
    assert "Asia/Kolkata" in text_of(confirmation)


def test_the_hour_that_comes_twice_names_its_zone():
    first = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
    with timezone.override(ZoneInfo("America/New_York")):
        assert [exact(first), exact(first + timedelta(hours=1))] == [
            "Sun 2026-11-01 01:30:00 EDT",
            "Sun 2026-11-01 01:30:00 EST",
        ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "0 s"),
        (59.6, "1 min"),
        (90, "1 min 30 s"),
        (10 * 60 + 29, "10 min"),
        (59 * 60 + 31, "1 h"),
        (2 * 3600 + 4 * 60 + 45, "2 h 5 min"),
        (22 * 3600 + 59 * 60, "23 h"),
        (23 * 3600 + 45 * 60, "1 d"),
        (9 * 86_400 + 23 * 3600, "9 d 23 h"),
        (12 * 86_400 + 13 * 3600, "13 d"),
    ],
)
def test_a_duration_is_rounded_to_the_unit_that_is_shown(seconds, said):
    assert span(timedelta(seconds=seconds)) == said


@pytest.mark.parametrize(
    ("action", "value"),
    [("reschedule", "2126-07-01T03:30:00"), ("priority", "0"), ("queue", "mail")],
)
def test_an_input_shows_the_present_value(operator, waiting, action, value):
    assert f'value="{value}"' in tick(operator, action, waiting).content.decode()


def test_an_input_of_a_time_says_its_zone_and_how_far_away_it_is(operator, waiting):
    page = tick(operator, "reschedule", waiting)
    body = page.content.decode()
    assert 'data-zone="America/New_York"' in body
    assert '<output class="dq-eta">in ' in body


def preview(client, confirmation, **fields):
    context = confirmation.context
    given = {"action": context["action"].name, "chosen": context["chosen"], "confirmed": "yes", "preview": "yes"}
    return client.post(f"{MESSAGES}act/", {**given, **fields})


@pytest.mark.parametrize(
    ("action", "fields", "expected"),
    [
        ("reschedule", {"at": "2126-07-02T00:00:00"}, ("2126-07-01 03:30:00", "2126-07-02 00:00:00")),
        ("shift", {"amount": "-2", "unit": "hours"}, ("2126-07-01 03:30:00", "2126-07-01 01:30:00")),
        (
            "spread",
            {"amount": "0", "unit": "hours", "jitter": "0", "start": "2126-07-03T00:00"},
            ("03:30:00", "2126-07-03"),
        ),
        ("priority", {"priority": "7"}, ("0", "7")),
        ("queue", {"queue": "elsewhere"}, ("mail", "elsewhere")),
    ],
)
def test_what_was_entered_can_be_looked_at_before_it_is_done(operator, waiting, action, fields, expected):
    page = preview(operator, tick(operator, action, waiting), **fields)

    ((before, after),) = page.context["becomes"]
    assert expected[0] in before
    assert expected[1] in after
    assert live(waiting).scheduled_at == DUE
    assert (live(waiting).priority, live(waiting).queue) == (0, "mail")


def test_a_confirmation_shows_at_first_that_nothing_changes(operator, waiting):
    assert "unchanged" in text_of(tick(operator, "reschedule", waiting))


def test_running_now_and_a_retry_show_the_new_time(operator, store, waiting):
    ((_, now),) = tick(operator, "run_now", waiting).context["becomes"]
    assert ">now<" in now or "ago<" in now
    ((_, retried),) = tick(operator, "retry", dead(store, "b"), where=HISTORY).context["becomes"]
    assert ">now<" in retried or "ago<" in retried


def test_input_that_is_wrong_previews_nothing_and_says_why(operator, waiting):
    page = preview(operator, tick(operator, "reschedule", waiting), at="yesterday")
    assert page.context["becomes"] == []
    assert "Enter a date and a time" in text_of(page)
