"""The page of busy threads."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test.utils import CaptureQueriesContext

from delayedq.admin.busy_threads import average
from delayedq.admin.heat import LEVELS, level
from delayedq.models import FinishedMessage
from delayedq.store import worker_registry
from tests.admin.given import text_of
from tests.operations.test_durations import NOW, ended, stored_as_of_now
from tests.store.test_worker_registry import worker

THREADS = "/admin/delayedq/dashboard/threads/"


@pytest.fixture
def busy(store):
    """One thread for half an hour, an hour ago, and a short one."""
    rows = [ended(1, 0, 1800, ago=3600, worker="w1"), ended(2, 0, 6, ago=3600, queue="a\u202eb", worker="gone")]
    stored_as_of_now(store, rows)
    worker_registry(store.alias).heartbeat([worker("w1", threads=8, queues="mail")])


def test_queues_and_workers_with_their_averages_and_threads(operator, busy):
    page = operator.get(THREADS, {"span": "hour"})
    assert page.status_code == 200
    text = text_of(operator.get(THREADS))
    (by_queue, by_worker) = text.split("By worker", 1)
    assert re.search(r"All queues 0\.02 of 8 mail 0\.02 of 8 a\\u202eb 0\.00", by_queue)
    assert re.search(r"w1 0\.02 of 8 gone 0\.00", by_worker)
    assert re.search(r"w1 8 0\.02 (0 )+0\.", by_worker)
    assert "\u202e" not in page.content.decode()


def test_a_page_takes_as_many_statements_for_any_number_of_queues(operator, store, connection, busy):
    def statements():
        with CaptureQueriesContext(connection) as sent:
            operator.get(THREADS)
        return len(sent)

    statements()
    few = statements()
    moment = store.now() - timedelta(minutes=9) - NOW
    rows = [ended(10 + n, 0, 5, queue=f"q{n}", worker=f"w{n}") for n in range(40)]
    for row in rows:
        row.finished_at, row.started_at = row.finished_at + moment, row.started_at + moment
    FinishedMessage.objects.bulk_create(rows)
    assert statements() == few <= 15
    assert "22 others" in text_of(operator.get(THREADS))


def test_nothing_ended(operator):
    assert "Nothing ended in this time." in text_of(operator.get(THREADS))


def test_who_may_not_see_the_dashboard_is_refused(member):
    assert member().get(THREADS).status_code == 403
    assert member("view_dashboard", name="eve").get(THREADS).status_code == 200


@pytest.mark.parametrize(("number", "words"), [(0, "0"), (0.256, "0.26"), (9.5, "9.50"), (12.34, "12.3")])
def test_averages(number, words):
    assert average(number) == words


def test_a_sum_that_is_above_the_most_by_a_bit_has_the_last_colour():
    assert level(sum([0.1] * 3), 0.3) == level(1, 1) == LEVELS
