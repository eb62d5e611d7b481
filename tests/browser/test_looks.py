"""Long names, lonely numbers and small windows: what is shown can be read, and what is cut off says so."""

from __future__ import annotations

import json
from datetime import timedelta
from random import Random

import pytest
from django.utils import timezone

from delayedq import Flow
from delayedq.core.errors import fingerprint
from delayedq.models import FinishedMessage
from tests.app import tasks
from tests.browser.given import finished
from tests.browser.site import MessagesPage, Page, pass_seconds, stop_clock
from tests.store.given import message

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("alias", ["sqlite"], indirect=True)]
BOTH = pytest.mark.parametrize("look", ["wide-light", "narrow-dark"])
LONG = "app.Full: " + "/a/path/without/any/blank" * 30


def width(locator):
    return locator.bounding_box()["width"]


def height(locator):
    return locator.bounding_box()["height"]


@BOTH
def test_a_long_value_leaves_room_for_the_name_of_its_argument(site, store):
    payload = json.dumps({"args": [], "kwargs": {"flight_id": "x" * 900}})
    id_ = store.offer(message("a", payload, kind="tests.app.tasks.remind")).id
    site.page.goto(f"/admin/delayedq/message/{id_}/change/")
    name = site.page.locator(".dq-arguments th", has_text="flight_id")
    assert width(name) >= 70
    assert Page(site).overflow() <= 0


@BOTH
def test_a_long_line_of_an_error_does_not_widen_the_dashboard(site, store):
    now, random = timezone.now(), Random(1)
    rows = [finished(n, now - timedelta(seconds=90), 1, failed=True, random=random) for n in range(1, 60)]
    for row in rows:
        row.error, row.fingerprint = LONG, fingerprint(LONG)
    FinishedMessage.objects.bulk_create(rows)
    site.page.goto("/admin/delayedq/dashboard/")
    site.page.locator(".dq-finding", has_text="without/any/blank").first.wait_for()
    assert Page(site).overflow() <= 0


@BOTH
def test_a_long_key_takes_three_lines_and_tabs_are_all_visible(site, store):
    store.offer(message("k" * 200, kind="tests.remind"))
    messages = MessagesPage(site).open()
    key = messages.page.locator("#result_list tbody .dq-key a")
    assert height(key) < 80
    assert key.get_attribute("title") == "k" * 200
    tabs = messages.page.locator(".dq-tabs")
    assert tabs.evaluate("one => one.scrollWidth - one.clientWidth") <= 0


def test_a_point_without_neighbours_is_drawn(site, store):
    now = timezone.now()
    FinishedMessage.objects.bulk_create([finished(1, now - timedelta(minutes=30), 2, failed=False, random=Random(1))])
    site.page.goto("/admin/delayedq/dashboard/?span=hour")
    site.page.locator("#latency canvas").wait_for()
    drawn = site.page.evaluate(
        """() => {
            const canvas = document.querySelector("#latency canvas");
            const { color } = getComputedStyle(document.querySelector("#latency .dq-series-p95"));
            const [r, g, b] = color.match(/\\d+/g).map(Number);
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            let found = 0;
            for (let at = 0; at < data.length; at += 4)
                found += data[at] === r && data[at + 1] === g && data[at + 2] === b && data[at + 3] > 200;
            return found;
        }"""
    )
    assert drawn > 10


@BOTH
@pytest.mark.parametrize("steps", [1, 9])
def test_a_flow_that_is_wider_than_the_window_says_so(site, store, steps):
    flow = Flow("wide")
    for number in range(steps):
        flow.add(f"step-{number}", tasks.nothing.s(), after=[f"step-{number - 1}"] if number else [])
    site.page.goto(f"/admin/delayedq/flow/{flow.enqueue().id}/change/")
    site.page.wait_for_load_state("load")
    hidden = site.page.locator(".dq-graph").evaluate("one => one.scrollWidth - one.clientWidth")
    assert (hidden > 0) is (steps > 1)
    assert site.page.get_by_text("scroll it sideways").is_visible() is (steps > 1)
    assert Page(site).overflow() <= 0


def test_a_list_says_that_its_reader_is_signed_out(site, store, context):
    store.offer(message("a", kind="tests.remind"))
    stop_clock(site.page)
    messages = MessagesPage(site).open()
    context.clear_cookies()
    pass_seconds(messages.page, 6)
    messages.page.get_by_text("Not refreshed: you are signed out").wait_for()
