"""The search box: what it finds, where it goes, and what each user may find."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from delayedq import chain
from tests.admin.given import MESSAGES, dead, offer, text_of
from tests.app.tasks import remind

FIND = "/admin/delayedq/dashboard/find/"
REMIND = "tests.app.tasks.remind"


def goes_to(client, text):
    page = client.get(FIND, {"q": text})
    assert page.status_code == 302, text_of(page)
    return page.url


def found(client, text):
    return [(str(row.what), row.name) for row in client.get(FIND, {"q": text}).context["rows"]]


@pytest.fixture
def nightly(settings):
    """A schedule of the settings."""
    settings.DELAYEDQ = {"CRON": {"nightly": {"task": REMIND, "args": [1], "cron": "30 2 * * *"}}}


def test_it_goes_straight_to_the_one_that_is_meant(operator, store, nightly):
    live, ended = offer(store, "UA1545"), dead(store, "LH400")
    flow = chain(remind.s(1)).enqueue(name="refund of Ann")
    assert goes_to(operator, "UA15") == goes_to(operator, f"#{live}") == f"{MESSAGES}{live}/change/"
    assert (
        goes_to(operator, f"#{ended}")
        == goes_to(operator, "LH400")
        == f"/admin/delayedq/finishedmessage/{ended}/change/"
    )
    assert goes_to(operator, "refund of") == f"/admin/delayedq/flow/{flow.id}/change/"
    assert goes_to(operator, "nightly") == "/admin/delayedq/cronschedule/schedule/?name=nightly"
    assert (
        goes_to(operator, REMIND)
        == goes_to(operator, "app.tasks.remind")
        == f"/admin/delayedq/dashboard/task/?name={REMIND}"
    )


def test_of_several_it_goes_to_the_one_that_is_exactly_so(operator, store):
    exact = offer(store, "UA1")
    offer(store, "UA1545")
    assert goes_to(operator, "UA1") == f"{MESSAGES}{exact}/change/"
    assert found(operator, "UA") == [("message", "UA1"), ("message", "UA1545")]


def test_what_is_not_found_leads_on_to_the_searches_of_the_lists(operator, store):
    page = operator.get(FIND, {"q": "UA<b>&"})
    assert "No message, task, schedule or flow" in text_of(page)
    assert f'{MESSAGES}?q=UA%3Cb%3E%26"' in page.content.decode()


@pytest.mark.parametrize("text", ["", " ", "\0", "x" * 201, "9" * 30, "%", "\ud800".encode("utf-8", "surrogatepass")])
def test_garbage_finds_nothing(operator, store, text):
    page = operator.get(FIND, {"q": text})
    assert page.status_code == 200
    assert page.context["rows"] == []


def test_who_may_not_view_a_thing_does_not_find_it(member, store, nightly):
    offer(store, "UA1545")
    chain(remind.s(1)).enqueue(name="nightly refund")
    client = member("view_cronschedule", name="eve")
    assert found(client, "i") == [] or all(what != "flow" for what, _ in found(client, "i"))
    assert goes_to(client, "nightly") == "/admin/delayedq/cronschedule/schedule/?name=nightly"


def test_who_may_view_nothing_may_not_search(store, member):
    client = member()
    User.objects.get().user_permissions.clear()
    assert client.get(FIND, {"q": "UA1545"}).status_code == 403


def test_every_page_has_the_box_and_a_pane_has_not(operator, store):
    id_ = offer(store, "UA1545")
    box = f'action="{FIND}"'
    for page in (MESSAGES, f"{MESSAGES}{id_}/change/", "/admin/delayedq/dashboard/", "/admin/delayedq/cronschedule/"):
        assert box in operator.get(page).content.decode()
    assert box not in operator.get(MESSAGES, headers={"X-Delayedq-Fragment": "yes"}).content.decode()
