"""The page of one task."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq.admin.task_page import backoff_words
from delayedq.core.backoff import Exponential, as_backoff
from delayedq.models import FinishedMessage
from delayedq.operations.pauses import pause_task
from tests.admin.given import MESSAGES, dead, offer, text_of
from tests.admin.test_dashboard import ended

TASK = "/admin/delayedq/dashboard/task/"
REMIND = "tests.app.tasks.remind"
ERROR = (
    '[{"attempt": 1, "exception": "app.Overbooked", "message": "Seat 12", "failed_at": "2026-05-20T09:00:00+00:00"}]'
)


def shown(client, name=REMIND, **query):
    return client.get(TASK, {"name": name, **query})


def figure(page, label):
    return next(value for name, value, *_ in page.context["totals"] if str(name) == label)


@pytest.fixture
def nightly(settings):
    settings.DELAYEDQ = {"CRON": {"nightly": {"task": REMIND, "args": [1], "cron": "30 2 * * *"}}}


def test_it_shows_settings_figures_errors_and_schedules(operator, store, nightly):
    offer(store, "UA1545", kind=REMIND)
    other = dead(store, "other", errors=ERROR, kind="tests.app.tasks.mark")
    mine = dead(store, "mine", errors=ERROR, kind=REMIND)
    page = shown(operator)
    text = text_of(page)
    assert "Delay between attempts" in text
    assert figure(page, "due now") == "1"
    assert [row.id for row in page.context["errors"]] == [mine] != [other]
    assert "Seat 12" in text
    assert [row.name for row in page.context["schedules"]] == ["nightly"]


def test_durations_are_of_this_task_alone(operator, store):
    now = timezone.now()
    rows = [ended(number, now - timedelta(seconds=90), late=2.0) for number in (1, 2)]
    rows[0].kind = REMIND
    rows[1].kind, rows[1].started_at = "tests.app.tasks.mark", rows[1].finished_at - timedelta(hours=1)
    FinishedMessage.objects.bulk_create(rows)
    durations = dict(shown(operator).context["durations"])
    assert durations["Wait, p95"] == "2 s"
    assert durations["Longest run"] == "0 ms"


def test_what_is_not_registered_or_paused_is_said(operator, store):
    pause_task(REMIND, by="ann", store=store)
    assert shown(operator).context["states"] == ["paused"]
    page = shown(operator, "gone.tasks.old")
    assert page.context["states"] == ["not defined"]
    assert page.context["facts"] == []


@pytest.mark.parametrize("name", ["", "\0", "x" * 201])
def test_what_is_no_name_is_not_found(operator, alias, name):
    assert shown(operator, name).status_code == 404


def test_each_part_asks_for_its_permission(member, store, nightly):
    dead(store, "mine", errors=ERROR, kind=REMIND)
    page = shown(member())  # views messages, history and edits
    assert "totals" not in page.context
    assert "schedules" not in page.context
    assert "Overbooked" in text_of(page)
    assert "Seat 12" not in text_of(page)
    assert {label for label, _ in page.context["links"]} == {"Live messages", "History", "Dead letters"}


def test_who_may_view_nothing_may_not_see_it(store, member):
    client = member()
    User.objects.get().user_permissions.clear()
    assert shown(client).status_code == 403


def test_lists_name_a_task_with_a_link_to_its_page(operator, store):
    offer(store, "UA1545", kind=REMIND)
    offer(store, "bare", kind="contacts", queue="contacts|json")
    page = operator.get(MESSAGES).content.decode()
    assert f'href="{TASK}?name={REMIND}"' in page


def test_it_takes_few_statements(operator, store, connection, nightly):
    dead(store, "mine", errors=ERROR, kind=REMIND)
    shown(operator)
    with CaptureQueriesContext(connection) as sent:
        shown(operator)
    reads = [query for query in sent if "SELECT" in query["sql"]]
    assert len(reads) <= 26, len(reads)


@pytest.mark.parametrize(
    ("backoff", "words"),
    [
        (timedelta(seconds=5), "5 s"),
        ([timedelta(seconds=5), timedelta(minutes=1)], "5 s, 1 min"),
        (Exponential(timedelta(seconds=5), 4, timedelta(hours=1)), "5 s, each 4 times the last, at most 1 h"),
    ],
)
def test_a_backoff_in_words(backoff, words):
    assert backoff_words(as_backoff(backoff)) == words
