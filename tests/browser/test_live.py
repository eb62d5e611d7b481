"""What scripts add: lists that refresh themselves, a pane for one message, and times that say how far away they are."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from tests.browser.site import MessagesPage, pass_seconds, stop_clock
from tests.store.given import message

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("alias", ["sqlite"], indirect=True)]


def offer(store, key):
    store.offer(message(key, scheduled_at=timezone.now() + timedelta(hours=4)))


@pytest.fixture
def messages(site, store):
    """The list, whose clock moves only by `pass_seconds`."""
    offer(store, "first")
    stop_clock(site.page)
    return MessagesPage(site).open()


def test_a_list_shows_what_came_after_it_was_opened(store, messages):
    offer(store, "second")
    pass_seconds(messages.page, 6)
    messages.page.get_by_role("link", name="second").wait_for()
    assert "2 messages" in messages.text()


def test_new_rows_are_marked_until_the_next_refresh(store, messages):
    page = messages.page
    offer(store, "second")
    pass_seconds(page, 6)
    page.locator("tr.dq-new", has_text="second").wait_for()
    page.get_by_text("Live: 1 new, marked").wait_for()
    assert page.locator("tr.dq-new").count() == 1
    pass_seconds(page, 6)
    page.locator("tr.dq-new").wait_for(state="detached")


def test_keys_search_and_pause_but_not_while_something_is_typed(messages):
    page = messages.page
    page.keyboard.press("p")
    page.get_by_role("button", name="Resume").wait_for()
    page.keyboard.press("/")
    box = page.get_by_label("Id, key, task, schedule or flow")
    page.keyboard.type("p/first")
    assert box.input_value() == "p/first"
    page.get_by_role("button", name="Resume").wait_for()
    box.fill("first")
    page.keyboard.press("Enter")
    page.get_by_text("Why is it not running?").wait_for()


def test_keys_can_be_switched_off(messages):
    page = messages.page
    switch = page.get_by_role("button", name="Shortcuts: / search, p pause")
    switch.click()
    assert switch.get_attribute("aria-pressed") == "false"
    page.keyboard.press("p")
    assert page.get_by_role("button", name="Resume").count() == 0


def test_a_list_that_is_paused_or_has_ticks_does_not_change(store, messages):
    asked = []
    messages.page.on("request", lambda request: asked.append(request.url))
    messages.tick("first")
    pass_seconds(messages.page, 6)
    assert "waits while messages are ticked" in messages.text()
    messages.page.locator(".action-select").first.uncheck()
    messages.page.get_by_role("button", name="Pause", exact=True).click()
    pass_seconds(messages.page, 20)
    assert asked == []


def test_a_message_opens_beside_the_list_and_closes(messages):
    messages.follow("first")
    pane = messages.page.locator("dialog[open]")
    pane.get_by_text("Why is it not running?").wait_for()
    assert messages.page.url.endswith("/message/")
    messages.page.keyboard.press("Escape")
    pane.wait_for(state="detached")


def test_an_input_says_how_far_away_its_time_is_while_it_is_typed(messages):
    confirmation = messages.tick("first").choose("Reschedule to a time")
    field = messages.page.get_by_label("New time")
    assert messages.page.locator(".dq-eta").inner_text().startswith(("in 4 h", "in 3 h 59"))
    field.fill("2126-01-01T00:00:00")
    messages.page.locator(".dq-eta", has_text=" d").wait_for()
    field.blur()
    messages.page.get_by_text("2126-01-01 00:00:00 EST").first.wait_for()
    assert "2126-01-01" in confirmation.text()
