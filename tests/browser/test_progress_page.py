"""The page of the example project that draws a bar: its script asks until the message has ended."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from delayedq.models import Message
from delayedq.store.progress import Progress, write_progress
from delayedq.testing import run_due
from example_project.flights.models import Flight
from tests.browser.site import pass_seconds, stop_clock

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("alias", ["sqlite"], indirect=True)]


@pytest.fixture
def page(store, visitor):
    """The page of a message that waits, whose clock moves only by `pass_seconds`."""
    for day in (1, 2, 3):
        Flight.objects.create(
            carrier="UA", number=day, day=date(2013, 3, day), origin="EWR", destination="IAH",
            scheduled_departure=timezone.now() - timedelta(days=day),
        )  # fmt: skip
    stop_clock(visitor)
    visitor.goto(reverse("flights:report_all"))
    visitor.get_by_role("button", name="Write them again").click()
    said(visitor, "ready")
    return visitor


def said(page, text):
    page.locator("#said", has_text=text).wait_for()


def share(page):
    return page.locator("#bar").evaluate("bar => bar.hasAttribute('value') ? bar.value : null")


def test_the_bar_moves_and_stands_at_the_end(page, store):
    assert share(page) is None
    now = timezone.now()
    half = Progress(1, 2, "<writing>", now - timedelta(seconds=30), now)
    write_progress(store, {Message.objects.get().id: half})
    pass_seconds(page, 2)
    said(page, "ready, 1 of 2, <writing>, about 30 s left")
    assert share(page) == 0.5
    run_due()
    pass_seconds(page, 2)
    said(page, "succeeded, 3 of 3, writing reports")
    assert share(page) == 1.0
    assert "left" not in page.locator("#said").inner_text()


def test_it_asks_no_more_when_the_message_has_ended(page):
    asked = []
    run_due()
    pass_seconds(page, 2)
    said(page, "succeeded")
    page.on("request", lambda request: asked.append(request.url))
    pass_seconds(page, 20)
    assert asked == []
