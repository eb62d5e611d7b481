"""What operators come for: twelve tasks, each from the index of the admin in at most five clicks, and what they read.

`Walker` clicks, and counts: links, buttons, checkboxes and what Enter submits. Typing is free.
"""

from __future__ import annotations

import csv
import json
import re
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from delayedq.core.errors import fingerprint
from delayedq.models import CronSchedule, FinishedMessage, Message, PausedQueue, PausedTask
from delayedq.store import worker_registry
from delayedq.store.protocol import ClaimRequest, Lane
from tests.admin.given import do
from tests.admin.test_channels import fill
from tests.browser.given import finished
from tests.store.given import LEASE, message
from tests.store.test_worker_registry import worker

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("alias", ["sqlite"], indirect=True)]

MOST = 5
DEPART = "tests.app.tasks.depart"


class Walker:
    """An operator who begins at the index of the admin, with no more than MOST clicks."""

    def __init__(self, page):
        self.page = page
        self.begin()

    def begin(self):
        """Begin another task."""
        self.clicks = 0
        self.page.goto("/admin/")

    @property
    def content(self):
        return self.page.locator("#content")

    @property
    def note(self):
        return self.page.locator(".messagelist").inner_text()

    def click(self, target):
        """Click what leads to another page."""
        self._count()
        with self.page.expect_navigation():
            target.click()

    def follow(self, name):
        self.click(self.content.get_by_role("link", name=name, exact=True).first)

    def press(self, name):
        self.click(self.content.get_by_role("button", name=name, exact=True).first)

    def tick(self, target):
        self._count()
        target.check()

    def find(self, text):
        """By the search box, which is on the index of the app and on each of its pages."""
        self._count()
        self.page.locator(".dq-find input").fill(text)
        with self.page.expect_navigation():
            self.page.keyboard.press("Enter")

    def confirm(self):
        self.click(self.page.locator(".dq-buttons .default"))

    def undo(self):
        """By the button in the note on what was just done."""
        self.click(self.page.locator(".messagelist").get_by_role("button", name="Undo"))

    def row(self, text):
        return self.content.locator("tbody tr", has_text=text).first

    def download(self, name):
        self._count()
        with self.page.expect_download() as loading:
            self.content.get_by_role("button", name=name).click()
        return Path(loading.value.path()).read_text()

    def _count(self):
        self.clicks += 1
        assert self.clicks <= MOST, "The task takes too many clicks."


@pytest.fixture
def walker(site):
    return Walker(site.page)


def offer(store, *keys, seconds=3_600, payload="{}", **fields):
    """Messages that are due so many seconds from now, each a second after the one before; returns their ids."""
    first = timezone.now() + timedelta(seconds=seconds)
    dues = [first + timedelta(seconds=number) for number in range(len(keys))]
    return [
        store.offer(message(key, payload, scheduled_at=due, **fields)).id for key, due in zip(keys, dues, strict=True)
    ]


def call(code, departure=517):
    return json.dumps({"args": [code, departure], "kwargs": {}})


def ended(number, error=None, **fields):
    """The row of a message that ended a minute ago after a run of 40 ms, with this error if it failed."""
    at = timezone.now() - timedelta(minutes=1)
    row = finished(number, at, 0.1, failed=error is not None, random=Random(number))
    if error:
        row.error, row.fingerprint = error, fingerprint(error)
        row.errors = json.dumps([{"attempt": 8, "exception": "E", "message": error, "traceback": ""}])
    for name, value in fields.items():
        setattr(row, name, value)
    return row


def test_why_a_message_does_not_run(store, walker):
    offer(store, "a", "b", "c", "late", seconds=-60, queue="mail", kind=DEPART)
    worker_registry(store.alias).heartbeat([worker("web-1:1", queues="mail")])
    walker.follow("Delayed queue")
    walker.find("late")
    assert "It waits behind 3 messages of its own priority, due before it." in walker.content.inner_text()


def test_the_worst_error_is_retried_and_that_is_undone(walker):
    rows = [ended(number, f"OSError: disk {number} is full") for number in range(1, 8)]
    rows += [ended(number, "KeyError: x") for number in range(8, 10)]
    FinishedMessage.objects.bulk_create(rows)
    walker.follow("History")
    walker.click(walker.content.get_by_role("link", name="Dead letters").first)
    worst = walker.content.locator("tbody tr").first
    assert "disk <n> is full" in worst.inner_text()
    assert "\t7" in worst.inner_text()
    walker.click(worst.get_by_text("Retry"))
    walker.confirm()
    assert "Retry: 7 messages changed." in walker.note
    assert (Message.objects.count(), FinishedMessage.objects.count()) == (7, 2)
    walker.undo()
    assert "Undone: 7 messages changed." in walker.note
    assert (Message.objects.count(), FinishedMessage.objects.failed().count()) == (0, 9)


def test_messages_are_shifted_and_that_is_undone(store, walker):
    offer(store, *"abc")
    before = [*Message.objects.order_by("id").values_list("scheduled_at", flat=True)]
    walker.follow("Messages")
    walker.tick(walker.page.get_by_label("all that match"))
    walker.click(walker.page.locator(".dq-actions-bar").get_by_role("button", name="Shift by an amount…"))
    assert "To be changed: 3 messages" in walker.content.inner_text()
    walker.page.get_by_label("Later by").fill("60")
    walker.confirm()
    assert Message.objects.earliest("id").scheduled_at - before[0] == timedelta(hours=1)
    walker.undo()
    assert [*Message.objects.order_by("id").values_list("scheduled_at", flat=True)] == before


def test_a_queue_a_task_and_a_channel_are_paused(store, walker):
    offer(store, "a", "b", seconds=-60, queue="mail", kind=DEPART)
    fill(store, "acme", "acme")
    walker.follow("Queues")
    mail = walker.row("mail")
    assert re.search(r"\t2\t", mail.inner_text())  # due
    walker.click(mail.get_by_role("link", name="Pause"))
    walker.confirm()
    assert PausedQueue.objects.get().queue == "mail"

    walker.begin()
    walker.follow("Delayed queue")
    walker.find(DEPART)
    walker.click(walker.content.get_by_role("link", name="Pause", exact=True).first)
    walker.confirm()
    assert PausedTask.objects.get().kind == DEPART

    walker.begin()
    walker.follow("Queues")
    walker.follow("Channels and limits")
    acme = walker.row("acme")
    assert re.search(r"\t1\t1\t", acme.inner_text())  # waiting and running
    walker.click(acme.get_by_role("link", name="Pause"))
    walker.confirm()
    assert walker.note == "Paused: channel acme of tests.app.tasks.deliver."


def test_a_hanging_run_is_stopped(store, walker):
    (id_,) = offer(store, "hanging", seconds=-60, queue="mail")
    store.claim(ClaimRequest([Lane("mail", 0)], 1, LEASE, "web-1:1"))
    worker_registry(store.alias).heartbeat([worker("web-1:1", held=1, running=f"[{id_}]")])
    walker.follow("Delayed queue")
    walker.find("hanging")
    assert "It is leased by web-1:1" in walker.content.inner_text()
    walker.follow("Ask it to stop…")
    walker.confirm()
    assert FinishedMessage.objects.get(id=id_).outcome == "cancelled"


def test_messages_are_found_by_prefix_and_by_argument(store, walker):
    offer(store, "UA1/x", "UA1/y", "UA2/x", payload=call("EWR"), kind=DEPART)
    offer(store, "AA1", payload=call("JFK"), kind=DEPART)
    for text, keys in (("UA1", ["UA1/x", "UA1/y"]), ("args.code:JFK", ["AA1"])):
        walker.begin()
        walker.follow("Messages")
        walker.page.locator("input#id_q").fill(text)
        walker.press("Search")
        assert walker.page.locator("#result_list tbody .dq-key a").all_inner_texts() == keys


def test_an_argument_is_edited(store, walker):
    (id_,) = offer(store, "wrong", payload=call("EWR"), kind=DEPART)
    walker.follow("Delayed queue")
    walker.find("wrong")
    walker.follow("Edit arguments…")
    walker.page.get_by_label("code").fill("JFK")
    walker.confirm()
    assert "JFK" in Message.objects.get(id=id_).payload


def test_a_schedule_is_added_with_its_ticks_around_a_change_of_the_clock(walker):
    walker.follow("Cron schedules")
    walker.follow("Add a schedule")
    given = {"name": "nightly", "cron": "30 2 * * *", "timezone": "America/New_York"}
    walker.page.locator("#id_task").select_option("tests.app.tasks.nothing")
    for name, value in given.items():
        walker.page.locator(f"#id_{name}").fill(value)
    walker.press("Preview")
    ticks = walker.content.inner_text()
    spring = ticks.split("02:00 EST becomes 03:00 EDT")[1].splitlines()
    assert "03:00:00 EDT" in spring[1]  # half past two does not exist on that day
    assert not CronSchedule.objects.exists()
    walker.press("Save")
    assert CronSchedule.objects.get().name == "nightly"


def test_throughput_and_forecast(store, walker):
    FinishedMessage.objects.bulk_create([ended(number) for number in range(1, 13)])
    offer(store, *map(str, range(8)))
    walker.follow("Dashboard")
    assert re.search(r"ended\s+12\s", walker.content.inner_text())
    walker.follow("Figures")
    assert re.search(r"finished\s+12\s", walker.content.inner_text())
    walker.follow("Forecast")
    assert re.search(r"fall due\s+8\s", walker.content.inner_text())


def test_the_slow_task(walker):
    rows = [ended(number) for number in range(1, 13)]
    slow = rows[0].finished_at - timedelta(minutes=10)
    rows.append(ended(13, kind="tests.slow", started_at=slow, scheduled_at=slow))
    FinishedMessage.objects.bulk_create(rows)
    walker.follow("Dashboard")
    walker.follow("Durations")
    first = walker.content.locator("tbody tr").first.inner_text().split("\t")
    assert (first[0].strip(), first[1], first[-1].strip()) == ("tests.slow", "1", "10 min")


def test_what_was_found_is_exported(store, walker):
    offer(store, *(f"UA{number}" for number in range(60)), "AA1")
    walker.follow("Messages")
    walker.page.locator("input#id_q").fill("UA")
    walker.press("Search")
    rows = [*csv.DictReader(walker.download("Export as CSV").splitlines())]
    assert sorted(row["key"] for row in rows) == sorted(f"UA{number}" for number in range(60))


def test_the_change_of_a_colleague_is_undone(store, walker):
    (id_,) = offer(store, "a")
    before = Message.objects.get().scheduled_at
    bob = Client()
    bob.force_login(get_user_model().objects.create_superuser("bob"))
    do(bob, "shift", id_, amount="2", unit="hours")
    assert Message.objects.get().scheduled_at != before
    walker.follow("Edits")
    edit = walker.row("by bob")
    assert "Shift 2 h later" in edit.inner_text()
    walker.click(edit.get_by_role("link", name="Undo"))
    walker.press("Undo")
    assert Message.objects.get().scheduled_at == before
