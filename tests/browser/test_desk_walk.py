"""A day on the desk in a browser: a colleague on the same item, a reply template, a paused clock, and a saved view."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from delayedq.desk.models import ReplyTemplate, SavedView, State
from tests.browser.accessibility import EACH_READER, NARROW, READERS, problems
from tests.browser.conftest import SCREENSHOTS
from tests.browser.site import pass_seconds
from tests.browser.test_desk_pages import ADMIN, DESK, ann, bob, browser, sqlite, stopped  # noqa: F401 - fixtures
from tests.desk.given import opened, refund
from tests.desk.test_replies import GERMAN, HEBREW, answered

pytestmark = pytest.mark.slow
TEXTS = {"en": "We will pay you back within a week.", "de": GERMAN, "he": HEBREW}
LETTER = "document.querySelector('[name=letter]').value"


def templates():
    for name, text in TEXTS.items():
        ReplyTemplate.objects.create(kind=answered.module_path, field="letter", name=f"Answer ({name})", text=text)


def insert(page, language):
    page.locator("[name='dq-template']").select_option(label=f"Answer ({language})")
    page.locator("[name='dq-insert']").click()
    page.wait_for_load_state("load")


@sqlite
@pytest.mark.parametrize("name", EACH_READER)
@pytest.mark.timeout(600)
def test_a_day_with_a_colleague_a_template_a_paused_clock_and_a_view(browser, axe, ann, bob, name):  # noqa: F811
    window, theme, language, rules = READERS[name]
    page = browser(
        ann, viewport=window | ({"width": 390} if window == NARROW else {}), color_scheme=theme, locale=language
    )
    folder, wrong = SCREENSHOTS / name, {}
    folder.mkdir(parents=True, exist_ok=True)

    def look(title):
        (folder / f"desk-walk-{title}.png").write_bytes(page.screenshot(full_page=True))
        if found := problems(page, axe, rules):
            wrong[title] = found

    templates()
    item, _other = opened(answered), opened(refund)
    item.take(ann)
    browser(bob).goto(f"{DESK}{item.pk}/")
    page.goto(f"{DESK}{item.pk}/")
    page.locator("#desk-present b", has_text="bob").wait_for()
    page.locator("[name=amount]").fill("70")
    insert(page, language)
    page.wait_for_function(f"{LETTER} !== ''")
    assert page.evaluate(LETTER) == TEXTS[language]
    assert page.locator("[name=amount]").input_value() == "70"
    page.locator("details:has([name=until]) summary").click()
    look("item")
    page.locator("[name=until]").fill(f"{timezone.localtime() + timedelta(days=2):%Y-%m-%dT%H:%M}")
    page.locator("[name=pause_clock]").check()
    page.locator("form[action$='/postpone/'] button").click()
    page.locator(".messagelist").wait_for()
    item.refresh_from_db()
    assert (item.state, item.is_clock_paused) == (State.POSTPONED, True)
    page.goto(f"{DESK}{item.pk}/")
    look("postponed")
    page.goto(f"{DESK}team/?only=postponed")
    page.locator("details.dq-desk-views summary").click()
    page.locator("#view_name").fill(TEXTS[language])
    page.locator("form[action$='/view/'] button").first.click()
    page.locator("nav.dq-desk-views a[aria-current]").wait_for()
    page.locator("details.dq-desk-views summary").click()
    assert page.locator("[data-label] .dq-pill-paused").count() == 1
    look("team")
    assert list(SavedView.objects.values_list("user", "name", "only")) == [(ann.pk, TEXTS[language], "postponed")]
    assert wrong == {}


@sqlite
@pytest.mark.parametrize("root", [DESK, ADMIN], ids=["own", "admin"])
def test_who_opens_an_item_later_is_named_on_the_page_that_is_open(stopped, browser, ann, bob, root):  # noqa: F811
    item = opened(answered)
    item.take(ann)
    page = stopped(f"{root}{item.pk}/")
    page.locator("[name=letter]").fill("Dear customer,")
    browser(bob).goto(f"{root}{item.pk}/")
    with page.expect_response("**/present/"):
        pass_seconds(page, 11)
    page.locator("#desk-present b", has_text="bob").wait_for()
    assert page.evaluate(LETTER) == "Dear customer,"


@sqlite
def test_a_template_is_inserted_without_scripts(browser, ann):  # noqa: F811
    templates()
    item = opened(answered)
    item.take(ann)
    page = browser(ann, java_script_enabled=False)
    page.goto(f"{DESK}{item.pk}/")
    page.locator("[name=letter]").fill("Dear customer,")
    insert(page, "he")
    assert page.locator("[name=letter]").input_value() == f"Dear customer,\n\n{HEBREW}"
    page.locator("[name=amount]").fill("5")
    page.locator("[name=amount]").press("Enter")  # the first button decides
    page.locator(".messagelist").wait_for()
    item.refresh_from_db()
    assert item.state == State.DONE
