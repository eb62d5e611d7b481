"""What goes on, on the first screen of the dashboard and on the index of the app."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.test.utils import CaptureQueriesContext

from delayedq.admin.activity import backlog_words
from delayedq.core.outlook import Outlook, Trend
from delayedq.models import FinishedMessage
from delayedq.operations.doctor import diagnose
from delayedq.pipeline.models import StepRun
from delayedq.store import worker_registry
from tests.admin.given import HOUR, offer, text_of
from tests.operations.test_activity import ended, waiting
from tests.store.test_worker_registry import worker

DASHBOARD, INDEX = "/admin/delayedq/dashboard/", "/admin/delayedq/"
STEP = {
    "task": "delayedq.pipeline.tasks.schedule_step",
    "kwargs": {"arguments": ["archive", "--batch-rows", "5"]},
    "timezone": "UTC",
}
NOW = datetime(2026, 5, 20, 9, tzinfo=UTC)
#: No sequence comes so far: a message with this id would say how the run goes on.
OF_NO_ROW = 2**40


@pytest.fixture
def green(store):
    """All is well: things end, and something comes next."""
    worker_registry(store.alias).heartbeat([worker("w1", threads=8)])
    FinishedMessage.objects.bulk_create([ended(n, store.now(), ago=30 + 60 * (n % 10)) for n in range(20)])
    offer(store, "UA1545", seconds=HOUR)


@pytest.mark.parametrize("url", [DASHBOARD, INDEX])
def test_where_nothing_is_wrong_it_says_what_goes_on_and_what_is_next(operator, green, url):
    text = text_of(operator.get(url))
    assert "Nothing is wrong." in text
    assert "ended 20 2.0 per minute" in text
    assert "p95 of latency 1 s" in text
    assert "busy threads 0 of 8" in text
    assert "UA1545" in text


def test_of_more_than_ten_workers_and_queues_the_busiest_are_shown_and_the_others_linked(store, operator, member):
    registry = worker_registry(store.alias)
    registry.heartbeat([worker(f"w-{n:02}", threads=8) for n in range(12)])
    registry.heartbeat([worker("z", threads=8, running=f"[{offer(store)}]")])
    FinishedMessage.objects.bulk_create([ended(n, store.now(), ago=30, queue=f"q{n}") for n in range(11)])
    text = text_of(operator.get(DASHBOARD))
    assert "Worker Now z 1 of 8" in text
    assert "10 of 13 All workers" in text
    assert "10 of 12 All queues" in text
    assert 'href="/admin/delayedq/pausedqueue/workers/">All workers' in operator.get(DASHBOARD).content.decode()
    assert "All workers" not in text_of(member("view_dashboard").get(DASHBOARD))


def test_figures_of_a_part_of_what_runs_are_said_to_be_lower_bounds(store, operator, monkeypatch):
    monkeypatch.setattr("delayedq.operations.workers.MOST_RUNNING", 2)
    ids = [offer(store, f"{n}") for n in range(3)]
    worker_registry(store.alias).heartbeat([worker("w1", threads=8, running=f"{ids}")])
    text = text_of(operator.get(DASHBOARD))
    assert "busy threads 3 of 8 at least" in text
    assert "mail at least 2 of 8" in text


def test_the_dashboard_has_the_last_and_the_next_run_of_each_scheduled_step(store, settings, green, operator):
    in_hours = store.now().astimezone(UTC) + timedelta(hours=6)
    settings.DELAYEDQ = {"CRON": {"nightly": STEP | {"cron": f"0 {in_hours.hour} * * *"}}}
    assert "archive --batch-rows 5" in text_of(operator.get(DASHBOARD))
    ended = store.now() - timedelta(hours=2)
    StepRun.objects.create(step="archive", message_id=OF_NO_ROW, began_at=ended, ended_at=ended, succeeded=True)

    shown = text_of(operator.get(DASHBOARD))

    assert re.search(r"archive --batch-rows 5 2 h ago .* succeeded in \d+ h", shown)


def test_arguments_of_a_step_are_shown_to_those_who_may_see_payloads(store, settings, member):
    settings.DELAYEDQ = {"CRON": {"nightly": STEP | {"cron": "0 3 * * *"}}}
    seen = text_of(member("view_dashboard", "view_cronschedule").get(DASHBOARD))
    assert "archive" in seen
    assert "--batch-rows" not in seen
    assert "--batch-rows 5" in text_of(
        member("view_dashboard", "view_cronschedule", "view_payload", name="eve").get(DASHBOARD)
    )


@pytest.mark.parametrize("arguments", [5, [], ["archive", 7, None], [7], [["a"]], {"a": 1}, "archive", None], ids=repr)
def test_a_step_whose_arguments_are_no_texts_breaks_no_page(store, settings, operator, arguments):
    settings.DELAYEDQ = {"CRON": {"nightly": STEP | {"cron": "0 3 * * *", "kwargs": {"arguments": arguments}}}}
    StepRun.objects.create(step="archive", message_id=7, began_at=store.now(), succeeded=False)
    for url in (DASHBOARD, INDEX):
        assert operator.get(url).status_code == 200
    diagnose(store)


def test_what_a_user_may_not_view_is_not_named(member, green):
    assert "UA1545" in text_of(member("view_dashboard").get(DASHBOARD))
    without = member("view_dashboard", name="eve")
    without.get(DASHBOARD)
    User.objects.get(username="eve").user_permissions.set(Permission.objects.filter(codename="view_dashboard"))
    text = text_of(without.get(DASHBOARD))
    assert "ended 20" in text
    assert "UA1545" not in text


def test_the_index_shows_figures_only_to_those_who_may_see_the_dashboard(member, green):
    page = member().get(INDEX)
    assert "What goes on" not in page.content.decode()
    assert 'class="dq-find"' in page.content.decode()


def test_the_first_screen_takes_as_many_statements_for_any_number_of_messages(operator, store, connection, green):
    def statements():
        with CaptureQueriesContext(connection) as sent:
            operator.get(DASHBOARD)
        return len(sent)

    statements()
    few = statements()
    waiting(store, store.now(), 60)
    assert statements() <= few + 2 <= 40


@pytest.mark.parametrize(
    ("outlook", "words"),
    [
        (Outlook(Trend.EMPTY), ""),
        (Outlook(Trend.STAYS), "does not shrink"),
        (Outlook(Trend.UNSURE, earliest=5.0), "can't be said"),
        (
            Outlook(Trend.SHRINKS, 600.0, 300.0, 1200.0),
            "at about Wed 2026-05-20 05:10:00 EDT (from Wed 2026-05-20 05:05:",
        ),
        (Outlook(Trend.SHRINKS, 600.0, 300.0, 1e9), "not be empty within 30 d"),
    ],
)
def test_the_outlook_in_words(outlook, words):
    assert words in backlog_words(outlook, NOW, "10 min")
