"""A user finds messages, changes them in bulk, undoes that, and retries dead letters."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone

from delayedq.models import FinishedMessage, Message
from tests.browser.conftest import EACH_LOOK, SCREENSHOTS
from tests.browser.given import a_busy_site
from tests.browser.site import EditsPage, EndedPage, HistoryPage, LoginPage, MessagePage, MessagesPage, Page, Site
from tests.store.given import message

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("alias", ["sqlite"], indirect=True)]

TRACEBACK = "Traceback (most recent call last):\n" + '  File "/app/flights/tasks.py", line 12, in remind\n' * 6 + "Busy"
ERRORS = json.dumps(
    [
        {
            "attempt": attempt,
            "failed_at": f"2026-01-02T03:0{attempt}:00+00:00",
            "seconds": 1.5,
            "worker": "web-1:4711",
            "exception": "flights.errors.Busy",
            "message": "The gate does not answer",
            "traceback": TRACEBACK,
        }
        for attempt in (1, 2)
    ]
)
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<b>\u202e\ud800"


@pytest.fixture
def messages(site):
    return MessagesPage(site)


def offer(store, key, hours=1, **fields):
    due = timezone.now() + timedelta(hours=hours)
    return store.offer(message(key, scheduled_at=due, **fields)).id


def due(key):
    return Message.objects.get(key=key).scheduled_at


def test_a_user_logs_in_and_opens_the_dashboard(visitor, look):
    get_user_model().objects.create_superuser("eve", password="wonderland")
    site = Site(visitor, SCREENSHOTS / look)
    LoginPage(site).log_in("eve", "wonderland")
    Page(site).follow("Dashboard")
    site.dashboard.arrived()


@pytest.mark.parametrize("look", EACH_LOOK)
def test_the_lists_fit_their_window(site, messages):
    a_busy_site()

    assert messages.open().shoot("messages").overflow() <= 0
    assert HistoryPage(site).open("?outcome=failed").shoot("history").overflow() <= 0


def test_a_message_is_found_by_its_key(store, messages):
    a_busy_site()
    offer(store, "needle")
    messages.open()
    messages.page.get_by_label("Key or id").fill("needle")
    messages.page.get_by_role("button", name="Search", exact=True).click()
    messages.page.wait_for_url("**q=needle*")  # the list before has the same heading

    assert messages.arrived().keys() == ["needle"]


def test_filters_are_chosen_by_keys_and_applied_together_by_a_button(store, messages):
    offer(store, "wanted", queue="mail", priority=5)
    offer(store, "other", queue="mail", priority=0)
    page = messages.open().page
    opened = page.url
    page.get_by_text("Filters", exact=True).click()
    page.get_by_label("Queue:").focus()
    while page.get_by_label("Queue:").input_value() != "mail":
        page.keyboard.press("ArrowDown")
    page.get_by_label("Task:").focus()
    page.keyboard.type("tests.remind")  # there are many tasks: it is a text
    page.get_by_label("Priority:").fill("5")
    assert page.url == opened  # a choice alone loads no other page: WCAG 3.2.2

    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**queue=mail&kind=tests.remind*")
    assert messages.arrived().keys() == ["wanted"]
    assert page.get_by_label("Queue:").is_visible()


def test_messages_are_shifted_and_the_shift_is_undone(store, messages):
    for key in ("a", "b", "c"):
        offer(store, f"key-{key}")
    before = due("key-a")
    confirmation = messages.open().tick("key-a", "key-b").choose("Shift by an amount")
    assert "To be changed: 2 messages" in confirmation.text()
    confirmation.shoot("confirm-shift")
    confirmation.fill(later_by="2", unit="hours").confirm()

    assert due("key-a") - before == timedelta(hours=2)
    assert "2 messages changed" in messages.arrived().said()
    messages.shoot("shifted").undo().page.locator(".messagelist").wait_for()
    assert due("key-a") == before


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("Run now", {}),
        ("Reschedule to a time", {"new_time": "2030-01-02T03:04:05"}),
        ("Spread over a period", {"over": "3"}),
        ("Change priority", {"priority": "7"}),
        ("Move to another queue", {"queue": "elsewhere"}),
        ("Cancel", {}),
    ],
)
def test_each_action_does_what_it_says_and_says_what_it_did(store, messages, action, fields):
    offer(store, "only")
    before = Message.objects.values().get()
    messages.open().tick("only").choose(action).fill(**fields).confirm()

    assert f"{action}: 1 message changed." in messages.said()
    assert Message.objects.values().first() != before


def test_leaving_the_confirmation_changes_nothing(store, messages):
    offer(store, "only")
    messages.open().tick("only").choose("Cancel").follow("Keep them")

    assert messages.arrived().keys() == ["only"]


def test_a_dead_letter_is_retried(site):
    a_busy_site()
    dead = FinishedMessage.objects.failed().latest("finished_at")
    history = HistoryPage(site).open("?outcome=failed")
    history.tick(dead.key).choose("Retry").confirm()

    assert Message.objects.filter(key=dead.key).exists()


def test_a_stampede_is_spread(site):
    stampede = a_busy_site()
    site.forecast.open().page.get_by_role("button", name="Spread them…").click()
    confirmation = Page(site)
    assert site.page.get_by_label("From:").input_value().startswith(f"{timezone.localtime(stampede):%Y-%m-%dT%H:%M}")
    confirmation.shoot("confirm-spread")
    site.page.get_by_role("button", name="Spread messages").click()
    site.page.locator(".messagelist").wait_for()

    assert site.forecast.open().warnings() == []


@pytest.mark.parametrize("look", EACH_LOOK)
def test_long_names_and_keys_leave_room_for_the_rest(store, messages):
    for _ in range(3):
        offer(
            store,
            f"nightly/{'0123456789abcdef' * 4}/{timezone.now().isoformat()}",
            kind=f"shop.{'very_' * 12}long.task",
        )
    messages.open().shoot("long-names")
    width, room = messages.page.locator("#result_list").evaluate("t => [t.offsetWidth, t.parentNode.clientWidth]")

    assert width <= room
    assert messages.page.locator("#result_list time").first.evaluate("t => t.getClientRects().length") == 1


@pytest.mark.parametrize("look", EACH_LOOK)
def test_one_message_fits_its_window(store, site):
    id_ = offer(
        store, "order-1545", kind="tests.app.tasks.remind", payload='{"args": [1545], "kwargs": {"gate": "B7"}}'
    )
    page = MessagePage(site, id_).open().shoot("message")

    assert "flight_id\t1545" in page.text()
    assert page.overflow() <= 0


@pytest.mark.parametrize("look", EACH_LOOK)
def test_a_dead_letter_fits_its_window(site):
    a_busy_site()
    dead = FinishedMessage.objects.failed().latest("finished_at")
    FinishedMessage.objects.filter(pk=dead.pk).update(errors=ERRORS)
    page = EndedPage(site, dead.pk).open()
    page.page.get_by_text("Traceback").first.click()

    assert "It failed for good" in page.text()
    assert page.shoot("dead-letter").overflow() <= 0


@pytest.mark.parametrize("look", EACH_LOOK)
def test_an_edit_and_its_undo_fit_their_window(store, site, messages):
    for key in ("a", "b", "c"):
        offer(store, f"key-{key}")
    confirmation = messages.open().tick("key-a", "key-b").choose("Reschedule to a time")
    assert confirmation.shoot("confirm").overflow() <= 0
    confirmation.fill(new_time="2030-01-02T03:04:05").confirm()

    edits = EditsPage(site).open()
    assert edits.shoot("edits").overflow() <= 0
    edits.follow("Reschedule to Wed 2030-01-02")
    site.page.get_by_role("link", name="Open as a page").click()
    site.page.get_by_role("link", name="Undo…").wait_for()
    assert edits.shoot("edit").overflow() <= 0
    edits.follow("Undo…")
    site.page.get_by_role("heading", name="Undo?").wait_for()
    assert edits.shoot("undo").overflow() <= 0


def test_markup_and_scripts_in_a_message_are_shown_as_text(store, site):
    id_ = offer(
        store, HOSTILE.encode("utf-8", "replace").decode(), payload='{"args": ["</script><script>alert(1)</script>"]}'
    )
    Message.objects.filter(pk=id_).update(payload='["<img src=x onerror=alert(1)>", "\\ud800"]' + " " * 200_000)
    asked = []
    site.page.on("dialog", lambda dialog: asked.append(dialog.message))
    page = MessagePage(site, id_).open()

    assert "<img src=x onerror=alert(1)>" in page.text()
    assert MessagesPage(site).open().keys() != []
    assert asked == []


def test_a_filter_suggests_names_once_it_is_entered(store, messages):
    offer(store, "mine", kind="tests.app.tasks.remind")
    offer(store, "other", kind="tests.app.tasks.nothing")
    messages.open()
    page = messages.page
    page.get_by_text("Filters", exact=True).click()
    field, names = page.locator("#id_kind"), page.locator("#id_kind_names option")
    assert names.count() == 0
    field.focus()
    page.wait_for_function("document.querySelector('#id_kind_names option')")
    assert "tests.app.tasks.remind" in names.evaluate_all("found => found.map((one) => one.value)")
    field.fill("tests.app.tasks.remind")
    field.press("Enter")
    page.wait_for_url("**kind=tests.app.tasks.remind**")
    assert page.get_by_role("link", name="mine", exact=True).is_visible()
    assert page.get_by_role("link", name="other", exact=True).count() == 0


def test_names_are_links_of_a_page(store, messages):
    offer(store, "mine", kind="tests.app.tasks.remind")
    messages.open()
    messages.page.get_by_text("Filters", exact=True).click()
    messages.page.get_by_role("link", name="All names: Tasks").click()
    messages.page.get_by_role("link", name="tests.app.tasks.remind", exact=True).click()
    messages.page.get_by_role("link", name="mine", exact=True).wait_for()
