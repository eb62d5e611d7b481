"""The dashboard of one task, or of one queue."""

from __future__ import annotations

import pytest

from delayedq.models import FinishedMessage, Message
from delayedq.operations.figures import Span, figures
from tests.admin.given import text_of
from tests.admin.test_dashboard import DASHBOARD, NOW, ago, ended, live, summed


def of(row, **fields):
    for name, value in fields.items():
        setattr(row, name, value)
    return row


def test_figures_of_a_task_and_of_a_queue(store):
    other = {"kind": "tests.other", "queue": "other"}
    FinishedMessage.objects.bulk_create(
        [
            ended(1, ago(60)),
            of(ended(2, ago(120), late=9.0, outcome="failed"), **other),
            of(ended(3, ago(7200), outcome="failed"), **other),
        ]
    )
    Message.objects.bulk_create([live(4, ago(90)), of(live(5, ago(91)), **other), of(live(6, ago(92)), **other)])
    assert summed(figures(store, Span.HOUR, NOW)) == (5, 2, 1)
    for only in ({"kind": "tests.other"}, {"queue": "other"}, other):
        found = figures(store, Span.HOUR, NOW, **only)
        assert summed(found) == (3, 1, 1)
        assert max(bucket.p95 or 0 for bucket in found.buckets) == pytest.approx(9)
    assert summed(figures(store, Span.HOUR, NOW, queue="nothing")) == (0, 0, 0)


def test_the_page_says_what_it_is_of_and_how_to_see_all(operator, store):
    page = operator.get(DASHBOARD, {"span": "day", "kind": "tests.<b>"})
    assert "Only: tests.<b> Show all" in text_of(page)
    assert 'href="?span=week&amp;kind=tests.%3Cb%3E"' in page.content.decode()


@pytest.mark.parametrize("query", ["kind=%00", f"queue={'x' * 201}"])
def test_what_can_be_no_name_is_not_there(operator, query):
    assert operator.get(f"{DASHBOARD}?{query}").status_code == 404


def test_rates_and_the_backlog_have_units(operator, store):
    text = text_of(operator.get(DASHBOARD, {"span": "hour"}))
    assert "arrived 0 0.0 per minute" in text
    assert "due now 0" in text
