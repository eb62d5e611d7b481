"""A new user finds messages, changes them in bulk, undoes it, and retries what failed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone

from delayedq.models import FinishedMessage, Message
from tests.browser.conftest import LOOKS, SCREENSHOTS
from tests.browser.given import a_busy_site
from tests.browser.site import HistoryPage, LoginPage, MessagePage, MessagesPage, Page, Site
from tests.store.given import message

pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<b>\u202e\ud800"


@pytest.fixture
def messages(site):
    return MessagesPage(site)


def offer(store, key, hours=1, **fields):
    due = timezone.now() + timedelta(hours=hours)
    return store.offer(message(key, scheduled_at=due, **fields)).id


def due(key):
    return Message.objects.get(key=key).scheduled_at


def test_from_the_log_in_to_the_dashboard(visitor, look):
    get_user_model().objects.create_superuser("eve", password="wonderland")
    site = Site(visitor, SCREENSHOTS / look)
    LoginPage(site).log_in("eve", "wonderland")
    Page(site).follow("Dashboard")
    site.dashboard.arrived()


@pytest.mark.parametrize("look", LOOKS)
def test_the_lists_fit_their_window(site, messages):
    a_busy_site()

    assert messages.open().shoot("messages").overflow() <= 0
    assert HistoryPage(site).open("?outcome=failed").shoot("history").overflow() <= 0


def test_a_message_is_found_by_its_key(store, messages):
    a_busy_site()
    offer(store, "needle")
    messages.open()
    messages.page.get_by_label("Key or id").fill("needle")
    messages.page.get_by_role("button", name="Show").click()

    assert messages.arrived().keys() == ["needle"]


def test_messages_are_shifted_and_the_shift_is_undone(store, messages):
    for key in ("a", "b", "c"):
        offer(store, f"key-{key}")
    before = due("key-a")
    confirmation = messages.open().tick("key-a", "key-b").choose("Shift by an amount")
    assert "2 messages will be touched" in confirmation.text()
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


def test_who_thinks_again_changes_nothing(store, messages):
    offer(store, "only")
    messages.open().tick("only").choose("Cancel").follow("No, take me back")

    assert messages.arrived().keys() == ["only"]


def test_a_dead_letter_is_retried(site):
    a_busy_site()
    dead = FinishedMessage.objects.failed().latest("finished_at")
    history = HistoryPage(site).open("?outcome=failed")
    history.tick(dead.key).choose("Retry").confirm()

    assert Message.objects.filter(key=dead.key).exists()


def test_from_a_stampede_to_its_spread(site):
    stampede = a_busy_site()
    site.forecast.open().page.get_by_role("button", name="Spread them…").click()
    confirmation = Page(site)
    assert site.page.get_by_label("From:").input_value().startswith(f"{timezone.localtime(stampede):%Y-%m-%dT%H:%M}")
    confirmation.shoot("confirm-spread")
    site.page.get_by_role("button", name="Spread over a period").click()
    site.page.locator(".messagelist").wait_for()

    assert site.forecast.open().warnings() == []


@pytest.mark.parametrize("look", LOOKS)
def test_one_message_fits_its_window(store, site, look):
    id_ = offer(store, "order-1545", payload='{"args": [1545, {"to": "ann@example.com"}], "kwargs": {}}')

    assert MessagePage(site, id_).open().shoot("message").overflow() <= 0


def test_a_hostile_message_is_shown_and_does_nothing(store, site):
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
