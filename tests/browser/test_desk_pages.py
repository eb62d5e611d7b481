"""The pages of the desk in a browser: for every reader, by keyboard alone, live, and in two browsers at once."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from delayedq.desk.models import Item, State
from tests.browser.accessibility import EACH_READER, READERS, problems
from tests.browser.conftest import PATIENCE, SCREENSHOTS, log_in
from tests.browser.site import pass_seconds, stop_clock
from tests.desk.given import ALL, QUEUE, opened, person, refund, reviewed

pytestmark = pytest.mark.slow

sqlite = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)

DESK, ADMIN = "/desk/", "/admin/delayedq_desk/item/desk/"
PAGES = {
    "mine": "",
    "team": "team/?queue=refunds",
    "late": "team/?only=late",
    "review": "review/",
    "figures": "figures/",
    "automation": "automation/",
    "held": "{held}/",
    "waiting": "{waiting}/",
    "reviewing": "{reviewing}/",
    "done": "{done}/",
}


@pytest.fixture
def browser(chromium, server, alias):
    """Opens a page for a user, in a browser of their own."""
    with ExitStack() as stack:

        def for_user(user, **look):
            context = chromium.new_context(base_url=server, reduced_motion="reduce", **look)
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE)
            log_in(context, user)
            return context.new_page()

        yield for_user


@pytest.fixture
def ann(alias):
    return person("ann", *ALL)


@pytest.fixture
def bob(alias):
    return person("bob", *ALL)


@pytest.fixture
def items(ann, bob):
    """Something on every page: one item in each state, comments, a reason, and earlier decisions on a key."""
    done, waiting = opened(refund, 100), opened(refund, 500)
    done.take(bob)
    done.finish({"amount": 70, "paid": True}, by=bob)
    Item.objects.filter(pk=done.pk).update(key="order/7", agreed=True)
    Item.objects.filter(pk=waiting.pk).update(
        reason="500 is above 100, \u05e9\u05dc\u05d5\u05dd", due_at=timezone.now() - timedelta(hours=2), priority=5
    )
    pending = opened(reviewed, 80)
    pending.take(bob)
    pending.finish({"amount": 80, "paid": False}, by=bob)
    later = opened(refund, 60)
    later.postpone(timezone.now() + timedelta(days=1), "the invoice is to come")
    held = opened(refund, 90)
    Item.objects.filter(pk=held.pk).update(key="order/7")
    held.take(ann)
    held.comments.create(by=bob, at=timezone.now(), text="She called twice.", attachment="desk/letter.pdf")
    return {"held": held.pk, "waiting": waiting.pk, "reviewing": pending.pk, "done": done.pk}


def refused(page, root, items):
    """A form whose fields are refused, and one that is unfolded."""
    page.goto(f"{root}{items['held']}/")
    page.get_by_text("Postpone", exact=True).first.click()
    page.get_by_label("Follow-up date").fill("2001-01-01T10:00")
    page.locator("form[action$='/postpone/'] button").click()
    page.locator(".errorlist").wait_for()


@sqlite
@pytest.mark.parametrize("name", EACH_READER)
@pytest.mark.timeout(600)
def test_each_page_of_the_desk_can_be_read_and_used_by_everybody(browser, axe, ann, items, name):
    window, theme, language, rules = READERS[name]
    page = browser(ann, viewport=window, color_scheme=theme, locale=language)
    ann.is_superuser = True
    ann.save()
    folder, wrong = SCREENSHOTS / name, {}
    folder.mkdir(parents=True, exist_ok=True)
    visits = [(DESK, title) for title in PAGES] + [(ADMIN, title) for title in ("mine", "automation", "held")]
    for root, title in visits:
        assert page.goto(root + PAGES[title].format(**items)).status == 200, title
        (folder / f"desk-{title}{'-admin' * (root == ADMIN)}.png").write_bytes(page.screenshot(full_page=True))
        if found := problems(page, axe, rules):
            wrong[root + title] = found
    if language == "en":
        refused(page, DESK, items)
        if found := problems(page, axe, rules):
            wrong["refused"] = found
    assert wrong == {}


def focused(page):
    return page.evaluate("document.activeElement.textContent.trim() || document.activeElement.name")


def press_until(page, name):
    """Press Tab until the element with this text or name has the focus, at most once around the page."""
    for _ in range(60):
        if focused(page) == name:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{name} is not reached by Tab")


@sqlite
@pytest.mark.parametrize("root", [DESK, ADMIN], ids=["own", "admin"])
def test_two_items_are_taken_and_decided_by_keyboard_alone(browser, ann, root):
    first, second = opened(refund, 10), opened(refund, 20)
    page = browser(ann)
    page.goto(root)
    page.wait_for_function("document.activeElement.textContent.trim() === 'Next of refunds'")
    page.keyboard.press("Enter")
    for item, button in ((first, "Finish, and take the next"), (second, "Finish")):
        page.wait_for_url(f"**{root}{item.pk}/")
        page.wait_for_function("document.activeElement.name === 'amount'")
        page.keyboard.type("70")
        press_until(page, button)
        page.keyboard.press("Enter")
    page.locator(".messagelist", has_text="Decided.").first.wait_for()
    page.wait_for_url(f"**{root}")
    decided = Item.objects.in_order().values_list("state", "decision", "decided_by")
    assert list(decided) == [(State.DONE, '{"amount":70,"paid":false}', ann.pk)] * 2


@sqlite
@pytest.mark.parametrize("root", [DESK, ADMIN], ids=["own", "admin"])
def test_an_item_is_postponed_by_keyboard_alone(browser, ann, root):
    item = opened(refund, 10)
    item.take(ann)
    page = browser(ann)
    page.goto(f"{root}{item.pk}/")
    press_until(page, "Postpone")  # which unfolds its form
    page.keyboard.press("Enter")
    press_until(page, "until")
    year = timezone.now().year + 1
    page.keyboard.type(f"0102{year}")
    page.keyboard.press("Tab")
    page.keyboard.type("0930AM")
    press_until(page, "why")
    page.keyboard.type("no receipt yet")
    page.keyboard.press("Tab")
    assert focused(page) == "pause_clock"
    page.keyboard.press("Tab")
    assert focused(page) == "Postpone"
    page.keyboard.press("Enter")
    page.locator(".messagelist", has_text="Postponed.").wait_for()
    item.refresh_from_db()
    assert (item.state, item.why) == (State.POSTPONED, "no receipt yet")
    until = timezone.localtime(item.until)
    assert (until.year, until.month, until.day, until.hour) == (year, 1, 2, 9)


@sqlite
@pytest.mark.parametrize("root", [DESK, ADMIN], ids=["own", "admin"])
def test_decisions_are_reviewed_by_keyboard_alone(browser, ann, bob, root):
    approved, sent_back = opened(reviewed, 80), opened(reviewed, 90)
    for item in (approved, sent_back):
        item.take(bob)
        item.finish({"amount": 80, "paid": False}, by=bob)
    page = browser(ann)
    page.goto(root)
    press_until(page, "Review")
    page.keyboard.press("Enter")
    for item, button, said in ((approved, "Approve", "Approved."), (sent_back, "Send back", "Sent back.")):
        page.wait_for_url(f"**{root}review/")
        press_until(page, f"#{item.message_id}")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{root}{item.pk}/")
        if item == sent_back:
            press_until(page, "why")
            page.keyboard.type("too much")
        press_until(page, button)
        page.keyboard.press("Enter")
        page.locator(".messagelist", has_text=said).wait_for()
    approved.refresh_from_db()
    sent_back.refresh_from_db()
    assert (approved.state, approved.reviewed_by) == (State.DONE, ann)
    assert (sent_back.state, sent_back.why, sent_back.holder) == (State.REJECTED, "too much", bob)


@sqlite
def test_what_was_refused_has_the_focus_and_is_decided_after_all(browser, ann):
    item = opened(refund, 10)
    item.take(ann)
    page = browser(ann)
    page.goto(f"{DESK}{item.pk}/")
    page.get_by_label("Amount").fill("-1")
    page.locator("form[action$='/finish/']").evaluate("form => { form.noValidate = true; }")
    page.keyboard.press("Enter")
    page.locator(".errorlist", has_text="greater than or equal to 0").wait_for()
    page.wait_for_function("document.activeElement.name === 'amount'")
    assert page.get_by_label("Amount").get_attribute("aria-invalid") == "true"
    page.get_by_label("Amount").fill("1")
    page.keyboard.press("Enter")
    page.locator(".messagelist", has_text="Decided.").wait_for()


def test_of_two_browsers_that_take_an_item_at_once_one_has_it_and_the_other_reads_who(browser, ann, bob):
    item, waiting = opened(refund, 10), []
    pages = {user: browser(user) for user in (ann, bob)}
    for page in pages.values():
        page.goto(f"{DESK}{item.pk}/")
        page.route("**/take/", lambda route: waiting.append(route))  # noqa: PLW0108 - a builtin has no signature
        page.evaluate("document.querySelector('form[action$=\"/take/\"]').requestSubmit()")
    deadline = time.monotonic() + PATIENCE / 1000
    while len(waiting) < len(pages):
        assert time.monotonic() < deadline, f"{len(waiting)} of {len(pages)} browsers have sent it"
        pages[ann].wait_for_timeout(20)  # both have sent it, and none has arrived
    for request in waiting:
        request.continue_()
    said = {user: page.locator(".messagelist").inner_text() for user, page in pages.items()}

    item.refresh_from_db()
    winner, loser = (ann, bob) if item.holder == ann else (bob, ann)
    assert "You hold it now." in said[winner]
    assert re.search(rf"Taken by {winner} \d+ s ago\.", said[loser])
    assert f"{winner} holds it." in pages[loser].locator(".dq-desk-do").inner_text()
    assert pages[loser].get_by_role("button", name="Finish").count() == 0
    assert item.assignment == 2  # opened, and taken once


@pytest.fixture
def stopped(browser, ann):
    """A page whose clock moves only by `pass_seconds`."""
    page = browser(ann)
    stop_clock(page)

    def go(path):
        page.goto(path)
        page.wait_for_load_state("load")
        return page

    return go


@sqlite
def test_an_item_is_renewed_while_its_page_is_open_and_who_has_lost_it_keeps_what_they_typed(stopped, ann, bob):
    item = opened(refund, 10)
    item.take(ann)
    Item.objects.filter(pk=item.pk).update(until=timezone.now() + timedelta(minutes=6))
    page = stopped(f"{DESK}{item.pk}/")
    page.get_by_label("Amount").fill("55")
    with page.expect_response("**/renew/") as renewed:
        pass_seconds(page, 301)
    assert renewed.value.status == 204
    item.refresh_from_db()
    assert item.until > timezone.now() + timedelta(hours=1)

    item.assign(bob)
    pass_seconds(page, 301)
    lost = page.get_by_role("alert").filter(has_text="Taken by bob")
    lost.wait_for()
    assert page.get_by_label("Amount").input_value() == "55"


@sqlite
def test_a_page_renews_three_times_in_a_hold(stopped, ann, monkeypatch):
    item = opened(refund, 10)
    item.take(ann)
    hold = timedelta(seconds=90)
    monkeypatch.setattr("delayedq.desk.item_pages._desk", lambda item: replace(refund.desk, hold=hold))
    page = stopped(f"{DESK}{item.pk}/")
    for _ in range(3):
        with page.expect_response("**/renew/") as renewed:
            pass_seconds(page, 30)
        assert renewed.value.status == 204


@sqlite
@pytest.mark.parametrize("loss", ["permission", "deleted", "signed out"])
def test_who_may_not_renew_an_item_is_told_that_it_is_no_longer_theirs(stopped, ann, loss):
    item = opened(refund, 10)
    item.take(ann)
    page = stopped(f"{DESK}{item.pk}/")
    page.get_by_label("Amount").fill("55")
    if loss == "permission":
        ann.user_permissions.clear()  # 404
    elif loss == "deleted":
        item.delete()
    else:
        page.context.clear_cookies()  # 403: nor is there a token
    pass_seconds(page, 301)
    page.get_by_role("alert").filter(has_text="it is no longer yours, or you are signed out").wait_for()
    assert page.get_by_label("Amount").input_value() == "55"


def sign_in_again(page, user):
    """As in another tab of the same browser."""
    user.set_password("wonderland")
    user.save()
    page.goto("/admin/login/")  # who has changed their password is signed out
    page.get_by_label("Username:").fill(user.username)
    page.get_by_label("Password:").fill("wonderland")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Site administration").wait_for()
    page.close()


@sqlite
@pytest.mark.parametrize("root", [DESK, ADMIN], ids=["own", "admin"])
@pytest.mark.parametrize("is_hidden", [False, True], ids=["cookie", "refresh"])
def test_what_was_typed_is_saved_after_signing_in_again_in_another_tab(stopped, ann, settings, root, is_hidden):
    """At once where a script may read the cookie of the token, else with the next refresh."""
    settings.CSRF_COOKIE_HTTPONLY = is_hidden
    item = opened(refund, 10)
    item.take(ann)
    page = stopped(f"{root}{item.pk}/")
    token = page.locator("[name=csrfmiddlewaretoken]").first.get_attribute("value")
    page.get_by_label("Amount").fill("70")
    sign_in_again(page.context.new_page(), ann)
    if is_hidden:
        pass_seconds(page, 11)
        page.locator(f"[name=csrfmiddlewaretoken][value='{token}']").first.wait_for(state="detached")
    page.get_by_role("button", name="Finish", exact=True).click()
    page.locator(".messagelist", has_text="Decided.").wait_for()
    item.refresh_from_db()
    assert item.decision == '{"amount":70,"paid":false}'


@sqlite
def test_a_link_keeps_the_focus_when_its_part_is_refreshed(stopped, ann):
    opened(refund, 10)
    page = stopped(f"{DESK}figures/")
    page.locator("#desk-figures-queues a").focus()
    opened(refund, 20)
    pass_seconds(page, 11)
    page.locator("#desk-figures-queues .dq-number", has_text="2").first.wait_for()
    assert focused(page) == "refunds"


@sqlite
@pytest.mark.parametrize("root", [DESK, ADMIN], ids=["own", "admin"])
def test_my_desk_shows_what_came_after_it_was_opened_and_keeps_the_focus(stopped, ann, root):
    opened(refund, 10)
    page = stopped(root)
    page.locator("#next-refunds").focus()
    for order in (20, 30):
        opened(refund, order)
    pass_seconds(page, 11)
    page.locator(".dq-desk-number", has_text="3").wait_for()
    assert focused(page) == "Next of refunds"
    page.keyboard.press("Enter")  # the token of the page before still holds
    page.get_by_role("heading", name="Decide", exact=True).wait_for()
    assert Item.objects.assigned(ann).filter(queue=QUEUE).count() == 1


@sqlite
def test_a_page_that_is_paused_asks_for_nothing(stopped, ann):
    page = stopped(f"{DESK}team/")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("button", name="Pause").click()
    pass_seconds(page, 60)
    assert page.locator(".dq-live").inner_text().startswith("Paused")
    assert asked == []
