"""What the lists share: tabs with counts, filters as chips, previews of arguments, and the fragment of a page."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq.admin.base import FRAGMENT
from delayedq.models import Message, PausedQueue
from delayedq.operations import counting
from delayedq.operations.counting import state_counts
from delayedq.operations.pauses import pause_task
from delayedq.store import worker_registry
from delayedq.store.protocol import ClaimRequest, GiveBack
from tests.admin.given import HISTORY, MESSAGES, choose_all, confirm, dead, keys_on, offer, run, text_of, tick
from tests.store.given import LEASE, Lane
from tests.store.test_worker_registry import worker

AS_FRAGMENT = {f"HTTP_{FRAGMENT.upper().replace('-', '_')}": "yes"}


def tabs(page):
    return {tab.label: tab.number for tab in page.context["tabs"]}


@pytest.fixture
def states(store):
    """Messages in each state: 2 due and one more in a paused queue, 2 scheduled, 1 running, 1 retrying, 1 dead."""
    for number in range(2):
        offer(store, f"due-{number}")
        offer(store, f"later-{number}", seconds=3_600)
    offer(store, "stuck", queue="stopped")
    PausedQueue.objects.create(queue="stopped", paused_at=timezone.now())
    offer(store, "runs", queue="busy")
    run(store, "busy")
    offer(store, "again", queue="again", max_attempts=3)
    store.settle([GiveBack(run(store, "again"), charged=True, started=1.0, delay=600.0)], "worker-1")
    dead(store, "gone")


EXPECTED = {
    "All live": "7",
    "Due": "3",
    "Scheduled": "2",
    "Running": "1",
    "Retrying": "1",
    "Paused": "1",
    "Dead letters": "1",
    "History": "",
}


@pytest.mark.parametrize("url", [MESSAGES, HISTORY])
def test_each_state_has_a_tab_with_its_number(operator, states, url):
    assert tabs(operator.get(url)) == EXPECTED


@pytest.mark.parametrize("state", ["due", "scheduled", "running", "retrying", "paused"])
def test_a_tab_shows_as_many_messages_as_it_says(operator, states, state):
    page = operator.get(MESSAGES, {"state": state})
    (current,) = [tab for tab in page.context["tabs"] if tab.is_current]
    assert current.number == str(len(page.context["rows"]))


def lose(store, *keys):
    """Offer messages whose worker claimed them and was not seen since."""
    ids = [offer(store, key, queue="lost") for key in keys]
    then = timezone.now() - timedelta(minutes=5)
    Message.objects.filter(pk__in=ids).update(
        lease_token=7, leased_until=then, leased_by="w1", claimed_at=then, attempt=1
    )
    worker_registry(store.alias).at(then).heartbeat([worker("w1", running=f"{ids}")])


@pytest.mark.parametrize(("few", "number"), [(1, "2+"), (1_000, "2")])
def test_lost_messages_have_a_tab_while_there_are_some(operator, store, states, monkeypatch, few, number):
    monkeypatch.setattr(counting, "FEW", few)
    assert "Lost" not in tabs(operator.get(MESSAGES))
    lose(store, "a", "b")
    found = {tab.label: tab for tab in operator.get(MESSAGES).context["tabs"]}
    assert found["Lost"].number == number
    page = operator.get(found["Lost"].url)
    assert keys_on(page) == ["a", "b"]
    assert [tab.label for tab in page.context["tabs"] if tab.is_current] == ["Lost"]


def test_lost_messages_have_a_tab_while_it_is_chosen(operator, states):
    page = operator.get(MESSAGES, {"state": "lost"})
    assert [tab.label for tab in page.context["tabs"] if tab.is_current] == ["Lost"]
    assert "Lost" not in tabs(operator.get(HISTORY, {"state": "lost"}))


@pytest.mark.parametrize("few", [1, 1_000])
def test_who_has_lost_nothing_pays_no_statement_for_it(store, connection, states, monkeypatch, few):
    monkeypatch.setattr(counting, "FEW", few)

    def statements():
        with CaptureQueriesContext(connection) as captured:
            state_counts(store, store.now())
        return len(captured)

    registry = worker_registry(store.alias)
    registry.heartbeat([worker("worker-1", held=1, running="[1]")])
    before = statements()
    registry.at(store.now() - timedelta(minutes=5)).heartbeat([worker("silent", running="[]")])
    assert statements() == before
    lose(store, "a")
    assert statements() == before + (few == 1)


def tab_urls(page):
    return {tab.label: tab.url for tab in page.context["tabs"]}


def test_a_tab_keeps_the_filters_that_its_list_has(operator, states):
    asked = {"state": "due", "queue": "mail", "q": "due-", "priority": "0", "since": "2025-01-01T00:00", "after": "x"}
    urls = tab_urls(operator.get(MESSAGES, asked))
    kept = "q=due-&queue=mail&priority=0"
    assert urls["Running"] == f"{MESSAGES}?state=running&{kept}&since=2025-01-01T00%3A00"
    assert urls["All live"] == f"{MESSAGES}?{kept}&since=2025-01-01T00%3A00"
    assert urls["History"] == f"{HISTORY}?{kept}"
    assert urls["Dead letters"] == f"{HISTORY}?outcome=failed&{kept}"
    assert keys_on(operator.get(urls["Due"])) == ["due-0", "due-1"]
    assert keys_on(operator.get(urls["Scheduled"])) == []
    narrowed = operator.get(MESSAGES, {"queue": "mail"}).context["tabs"]
    assert {tab.number for tab in narrowed} == {""}  # the numbers are of all messages


def test_a_tab_beside_the_history_keeps_what_live_messages_have(operator, states):
    asked = {"outcome": "failed", "kind": "tests.remind", "error": "x", "until": "2030-01-01T00:00"}
    urls = tab_urls(operator.get(HISTORY, asked))
    assert urls["Due"] == f"{MESSAGES}?state=due&kind=tests.remind"
    assert urls["History"] == f"{HISTORY}?kind=tests.remind&until=2030-01-01T00%3A00"


def test_without_a_filter_the_dead_letters_come_by_error_whose_own_search_is_not_kept(operator, states):
    assert tab_urls(operator.get(MESSAGES))["Dead letters"] == f"{HISTORY}errors/"
    urls = tab_urls(operator.get(f"{HISTORY}errors/", {"q": "seat"}))
    assert (urls["All live"], urls["Dead letters"], urls["History"]) == (MESSAGES, f"{HISTORY}errors/", HISTORY)


def test_a_long_queue_is_not_counted_to_its_end(operator, store, states, monkeypatch):
    monkeypatch.setattr(counting, "FEW", 2)
    worker_registry(store.alias).heartbeat([worker("worker-1", held=1)])
    counts = state_counts(store, store.now())

    assert counts.live.exact is not True
    assert counts.live.number >= 2
    assert counts.due.number >= 2
    assert counts.running.number == 1
    assert counts.retrying.number == 1
    assert counts.paused == (1, True)


@pytest.mark.parametrize("few", [1, 1_000])
def test_what_is_due_of_a_paused_task_is_paused(operator, store, monkeypatch, few):
    monkeypatch.setattr(counting, "FEW", few)
    offer(store, "free")
    offer(store, "stuck", kind="tests.stopped")
    offer(store, "later", kind="tests.stopped", seconds=3_600)
    pause_task("tests.stopped")

    page = operator.get(MESSAGES)
    assert tabs(page)["Paused"].rstrip("+") == "1"
    assert {row.key: row.state for row in page.context["rows"]} == {
        "free": "due", "stuck": "paused", "later": "scheduled"
    }  # fmt: skip
    assert keys_on(operator.get(MESSAGES, {"state": "paused"})) == ["stuck"]
    confirmation = choose_all(operator, "cancel", "state=paused")
    assert confirmation.context["preview"].changing.number == 1
    confirm(operator, confirmation)
    assert keys_on(operator.get(MESSAGES)) == ["free", "later"]


def test_the_tabs_cost_the_same_however_much_there_is(operator, store, connection):
    offer(store)

    def statements():
        with CaptureQueriesContext(connection) as captured:
            state_counts(store, store.now())
        return len(captured)

    few = statements()
    for number in range(60):
        offer(store, f"{number}")
    assert statements() == few <= 4


def test_who_may_not_view_the_history_sees_no_tab_of_it(member, store, states):
    client = member(name="hal")
    permissions = User.objects.get(username="hal").user_permissions
    permissions.remove(permissions.get(codename="view_finishedmessage"))
    assert "Dead letters" not in tabs(client.get(MESSAGES))


# Chips


def test_filters_that_are_set_are_chips_that_can_be_removed_one_by_one(operator, store):
    offer(store, "a", queue="one")
    offer(store, "b", queue="two")
    page = operator.get(MESSAGES, {"queue": "one", "kind": "tests.remind", "state": "due", "after": "x"})

    chips = {chip.label: chip for chip in page.context["chips"]}
    assert {label: chip.value for label, chip in chips.items()} == {"Queue": "one", "Task": "tests.remind"}
    assert keys_on(operator.get(f"{MESSAGES}{chips['Queue'].url}")) == ["a", "b"]
    assert chips["Queue"].url == "?kind=tests.remind&state=due"


@pytest.mark.parametrize(("url", "is_open"), [
    (f"{MESSAGES}?queue=mail", True), (f"{MESSAGES}?state=due", False), (f"{MESSAGES}?q=a", False),
    (f"{MESSAGES}?priority=x", True), (f"{HISTORY}?outcome=failed", False), (f"{HISTORY}?outcome=expired", True),
    (f"{HISTORY}errors/?sort=last", True), ("/admin/delayedq/pausedqueue/channels/?queue=mail", True),
])  # fmt: skip
def test_the_panel_of_filters_is_open_while_one_of_them_is_set(operator, store, url, is_open):
    assert operator.get(url).context["filter"].is_panel_used is is_open
    assert ('<details class="dq-filters" open>' in operator.get(url).content.decode()) is is_open


def test_the_choice_of_all_that_match_stands_above_the_rows(operator, store):
    offer(store, "a")
    dead(store, "b")
    for url in (MESSAGES, f"{HISTORY}?outcome=failed"):
        page = operator.get(url).content.decode()
        assert 0 < page.find('name="everything"') < page.find('id="result_list"')


def test_a_chip_of_a_time_names_its_zone(operator, alias):
    (chip,) = operator.get(MESSAGES, {"since": "2026-11-22T03:04:05"}).context["chips"]
    assert chip.value == "Sun 2026-11-22 03:04:05 EST"


# The rows


@pytest.mark.parametrize(
    ("kind", "payload", "preview"),
    [
        ("tests.app.tasks.remind", '{"args":[1545],"kwargs":{"gate":"B7"}}', 'flight_id=1545, gate="B7"'),
        ("no.such.task", '{"args":[1545],"kwargs":{"gate":"B7"}}', '1545, gate="B7"'),
        ("no.such.task", '{"args":[],"kwargs":{}}', ""),
        ("no.such.task", "{", "{"),
        ("no.such.task", "7", "7"),
        ("no.such.task", '{"args":["\u202e"],"kwargs":{}}', '"\\u202e"'),
    ],
)
def test_a_row_shows_the_beginning_of_the_arguments(operator, store, kind, payload, preview):
    offer(store, "a", payload, kind=kind)
    (row,) = operator.get(MESSAGES).context["rows"]
    assert row.preview == preview


def test_a_long_payload_is_shown_as_stored_and_cut(operator, store):
    offer(store, "a", json.dumps({"args": ["x" * 900], "kwargs": {}}), kind="tests.app.tasks.echo")
    (row,) = operator.get(MESSAGES).context["rows"]
    assert row.preview.startswith('{"args": ["xxx')
    assert len(row.preview) == 160


def test_the_module_of_a_task_is_cut_at_dots(operator, store):
    offer(store, "a", kind="organisation.department.team.tasks.remind_the_passengers")
    text = text_of(operator.get(MESSAGES))
    assert "remind_ the_ passengers …department. team. tasks" in text


# The fragment, which refreshes a list and fills the pane beside it


def test_the_fragment_of_a_page_is_its_content_alone(operator, store):
    offer(store, "needle")
    page = operator.get(MESSAGES, **AS_FRAGMENT)
    assert "needle" in page.content.decode()
    assert "<html" not in page.content.decode()
    assert "site_header" not in text_of(page)


def test_a_refresh_is_one_request_that_costs_no_more_than_the_page(operator, store, connection):
    offer(store, "a")

    def statements(**headers):
        with CaptureQueriesContext(connection) as captured:
            operator.get(MESSAGES, **headers)
        return len(captured)

    assert statements(**AS_FRAGMENT) <= statements() <= 16


def test_without_scripts_the_refresh_is_a_link_to_the_page(operator, alias):
    page = operator.get(f"{MESSAGES}?state=due")
    assert '<a href="/admin/delayedq/message/?state=due" class="dq-reload">Reload</a>' in page.content.decode()


# Actions that are of use


def test_an_empty_list_offers_no_action(operator, store):
    assert 'name="action"' not in operator.get(MESSAGES).content.decode()
    assert 'name="action"' not in operator.get(HISTORY, {"outcome": "failed"}).content.decode()


def test_a_message_that_runs_can_not_be_changed_and_what_is_due_not_be_made_due(operator, store):
    waiting, due = offer(store, "a", seconds=3_600), offer(store, "b", queue="b")
    store.claim(ClaimRequest([Lane("mail", 0)], 1, LEASE, "worker-1"))

    def offered(id_):
        return {action.name for action in operator.get(f"{MESSAGES}{id_}/change/").context["actions"]}

    assert "run_now" in offered(waiting)
    assert offered(due) >= {"cancel", "shift"}
    assert "run_now" not in offered(due)
    run(store, "b")
    assert offered(due) == set()


def test_after_an_action_the_user_is_back_where_it_was_chosen(operator, store):
    id_ = offer(store, "a")
    for back in (f"{MESSAGES}?queue=mail", f"{MESSAGES}{id_}/change/"):
        confirmation = tick(operator, "priority", id_, back=back)
        assert f'href="{back}"' in confirmation.content.decode()
        given = {"action": "priority", "chosen": confirmation.context["chosen"], "confirmed": "yes", "priority": 3}
        assert operator.post(f"{MESSAGES}act/", given)["Location"] == back


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", "", "/\\evil.example"]
)
def test_nobody_is_sent_to_another_site(operator, store, back):
    confirmation = tick(operator, "priority", offer(store, "a"), back=back)
    assert confirmation.context["back"] == f"{MESSAGES}?"
