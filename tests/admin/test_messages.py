"""The list of live messages."""

from __future__ import annotations

from datetime import UTC, timedelta

import pytest
from django.db import connections
from django.utils import timezone

from delayedq.models import Message, PausedQueue
from delayedq.operations import browsing
from delayedq.store.protocol import ClaimRequest, GiveBack
from tests.admin.given import HISTORY, MESSAGES, dead, keys_on, offer, run, text_of
from tests.store.given import LEASE, Lane, message


def test_messages_are_listed_by_due_time(operator, store):
    for key, seconds in (("b", 60), ("a", -60), ("c", 7_250)):
        offer(store, key, seconds=seconds)

    page = operator.get(MESSAGES)

    assert keys_on(page) == ["a", "b", "c"]
    assert "in 2 h" in text_of(page)
    assert "3 messages" in text_of(page)


def test_times_with_microseconds_in_a_link_fill_the_datetime_inputs(operator):
    page = operator.get(MESSAGES, {"since": "2026-11-22T02:00:59.999999+00:00", "until": "whenever"})

    assert 'value="2026-11-21T21:00:59"' in page.content.decode()
    assert 'value="whenever"' in page.content.decode()


def test_an_empty_list_says_so(operator):
    assert "None." in text_of(operator.get(MESSAGES))


@pytest.fixture
def states(store):
    """One message in each state, named by it."""
    offer(store, "lost", queue="lost")
    store.claim(ClaimRequest([Lane("lost", 0)], 1, -LEASE, "worker-1"))
    offer(store, "running", queue="running")
    run(store, "running")
    offer(store, "retrying", queue="retrying", max_attempts=3)
    store.settle([GiveBack(run(store, "retrying"), charged=True, started=1.0, delay=600.0)], "worker-1")
    offer(store, "due")
    offer(store, "scheduled", seconds=600)


@pytest.mark.parametrize("state", ["due", "scheduled", "running", "retrying", "lost"])
def test_the_list_shows_the_state_of_each_message(operator, states, state):
    page = operator.get(MESSAGES)
    assert {row.key: row.state for row in page.context["rows"]}[state] == state


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("due", {"due", "lost"}),
        ("scheduled", {"scheduled"}),
        ("running", {"running"}),
        ("retrying", {"retrying", "lost"}),
        ("lost", {"lost"}),
        ("", {"due", "scheduled", "running", "retrying", "lost"}),
        ("nonsense", set()),
    ],
)
def test_messages_are_filtered_by_state(operator, states, state, expected):
    page = operator.get(MESSAGES, {"state": state})
    assert set(keys_on(page)) == expected
    assert str(page.context["count"]) == str(len(expected))


def test_running_messages_are_found_though_another_queue_exceeds_the_depth_of_a_page(operator, store, monkeypatch):
    monkeypatch.setattr(browsing, "PAGE", 5)
    monkeypatch.setattr(browsing, "DEPTH", 10)
    for number in range(9):
        offer(store, f"before-{number}", queue="busy", seconds=-100)
    offer(store, "runs", queue="quiet")
    run(store, "quiet")

    page = operator.get(MESSAGES, {"state": "running"})
    assert keys_on(page) == ["runs"]
    assert "Search further" not in text_of(page)
    assert not page.context["count"].exact


def test_the_count_is_unknown_if_a_page_found_nothing_within_its_depth(operator, store, monkeypatch):
    monkeypatch.setattr(browsing, "PAGE", 5)
    monkeypatch.setattr(browsing, "DEPTH", 5)
    for number in range(9):
        offer(store, f"other-{number}")
    if store.alias == "postgresql":  # its statistics may be those of another test
        with connections[store.alias].cursor() as cursor:
            cursor.execute("ANALYZE delayedq_message")
    assert "not yet known how many messages" in text_of(operator.get(MESSAGES, {"kind": "no.such.task"}))


@timezone.override(UTC)  # no clock changes
def test_a_range_of_time_includes_its_last_second_also_when_sent_again(operator, store):
    due = timezone.now().replace(microsecond=999_000) + timedelta(minutes=5)
    store.offer(message("late", scheduled_at=due))
    asked = {"until": f"{timezone.localtime(due):%Y-%m-%dT%H:%M:%S}"}
    page = operator.get(MESSAGES, asked)

    assert keys_on(page) == ["late"]
    assert f'value="{asked["until"]}"' in page.content.decode()


def test_a_due_message_of_a_paused_queue_says_so(operator, store):
    offer(store, "a")
    PausedQueue.objects.create(queue="mail", paused_at=timezone.now())
    assert "paused" in text_of(operator.get(MESSAGES))


@timezone.override(UTC)
def test_messages_are_filtered_by_queue_task_and_time(operator, store):
    offer(store, "a", queue="one", seconds=-86_400)
    offer(store, "b", queue="two", kind="tests.other")
    offer(store, "c", queue="two", seconds=86_400)
    now = timezone.localtime()

    assert keys_on(operator.get(MESSAGES, {"queue": "two"})) == ["b", "c"]
    assert keys_on(operator.get(MESSAGES, {"queue": "three"})) == []
    assert keys_on(operator.get(MESSAGES, {"kind": "tests.other"})) == ["b"]
    assert keys_on(operator.get(MESSAGES, {"since": f"{now - timedelta(hours=1):%Y-%m-%dT%H:%M}"})) == ["b", "c"]
    assert keys_on(operator.get(MESSAGES, {"until": f"{now + timedelta(hours=1):%Y-%m-%dT%H:%M}"})) == ["a", "b"]
    assert keys_on(operator.get(MESSAGES, {"since": "yesterday"})) == []


@pytest.mark.parametrize("key", ["UA1545/2013-01-01", "Ann ", "häß", "<b>", "1%_"])
def test_a_message_is_found_by_its_exact_key_before_those_that_begin_with_it(operator, store, key):
    offer(store, f"{key}2")
    offer(store, key)
    offer(store, key, kind="tests.other")
    offer(store, f"x{key}")

    assert keys_on(operator.get(MESSAGES, {"q": key})) == [key, key, f"{key}2"]


def test_a_message_is_found_by_its_id_and_by_a_key_that_looks_like_one(operator, store):
    id_ = offer(store, "a")
    offer(store, str(id_))
    assert set(keys_on(operator.get(MESSAGES, {"q": str(id_)}))) == {"a", str(id_)}
    assert keys_on(operator.get(MESSAGES, {"q": "9" * 40})) == []


def test_pages_have_no_gaps_though_messages_end_meanwhile(operator, store):
    store.offer_many([message(f"{n:03}", queue=f"q{n % 3}") for n in range(120)])
    seen, query = [], {}
    while query is not None:
        page = operator.get(MESSAGES, query)
        seen += keys_on(page)
        store.unschedule("tests.remind", seen[0])  # OFFSET paging would now miss a message
        query = {"after": page.context["next"]} if page.context["next"] else None
    assert sorted(seen) == [f"{n:03}" for n in range(120)]


def test_an_invalid_position_shows_the_first_page(operator, store):
    offer(store, "a")
    for after in ("x", "~", "2026-01-01~1", "2026-01-01T00:00:00+00:00~-1", "\0"):
        assert keys_on(operator.get(MESSAGES, {"after": after})) == ["a"]


def test_the_url_of_a_live_message_redirects_after_it_ended(operator, store):
    id_ = dead(store, "a")
    page = operator.get(f"{MESSAGES}{id_}/change/", follow=True)
    assert page.redirect_chain == [(f"{HISTORY}{id_}/change/", 302)]


@pytest.mark.parametrize("id_", ["4711", "0", "x", "9" * 30])
def test_an_unknown_message_is_a_404(operator, id_):
    assert operator.get(f"{MESSAGES}{id_}/change/").status_code == 404
    assert operator.get(f"{HISTORY}{id_}/change/").status_code == 404


def test_a_running_message_says_for_how_long_and_where(operator, store):
    offer(store, "a")
    Message.objects.filter(pk=run(store).id).update(claimed_at=timezone.now() - timedelta(minutes=12))
    assert "for 12 min on worker-1" in text_of(operator.get(MESSAGES, {"state": "running"}))
