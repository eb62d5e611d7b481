"""A search of the list says where it looked, and offers the history."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from delayedq.models import FinishedMessage, Message
from delayedq.operations import browsing
from tests.admin.given import HISTORY, MESSAGES, choose_all, confirm, dead, keys_on, offer, run, text_of
from tests.store.given import message


@pytest.fixture
def backlog(store, monkeypatch):
    """More due than a look reads."""
    monkeypatch.setattr(browsing, "DEPTH", 60)
    for number in range(120):
        offer(store, f"{number}", seconds=number - 60)


def test_the_list_of_what_runs_does_not_ask_to_search_further(operator, store, backlog):
    run(store)
    page = operator.get(MESSAGES, {"state": "running"})
    assert keys_on(page) == ["0"]
    assert not page.context["is_cut"]
    assert page.context["next"] is None
    assert "What workers ran at their last heartbeat" in page.content.decode()


def test_a_search_that_finds_nothing_says_where_it_looked_and_offers_the_history(operator, store):
    offer(store, "a")
    page = operator.get(MESSAGES, {"q": "UA 1545"})
    assert keys_on(page) == []
    text = text_of(page)
    assert "No live message has “UA 1545” as its id, at the beginning of its key, or in its payload." in text
    assert 'href="/admin/delayedq/finishedmessage/?q=UA%201545"' in page.content.decode()


def test_a_bounded_look_says_how_far_it_went(operator, store, backlog):
    assert "none of the first 10,000 that are due has it" in text_of(operator.get(MESSAGES, {"q": "Berlin"}))


def test_an_argument_is_found_and_said_to_be_one(operator, store):
    offer(store, "a", '{"args":["Berlin"]}')
    page = operator.get(MESSAGES, {"q": "Berlin"})
    assert keys_on(page) == ["a"]
    assert "these messages have it in their payload" in text_of(page)


# Pages and counts of a search by the beginning of keys


@pytest.fixture
def many(store):
    """120 live messages of three tasks, whose keys begin alike, and some others."""
    store.offer_many([message(f"UA/{n:03}", kind=f"tests.task{n % 3}") for n in range(120)])
    store.offer_many([message("UA", kind="tests.task1"), message("ua/000"), message("UB/000")])


def test_a_search_by_the_beginning_of_keys_has_pages_in_their_order(operator, store, many):
    found, after = [], ""
    while after is not None:
        page = operator.get(MESSAGES, {"q": "UA", "after": after})
        found += keys_on(page)
        after = page.context["next"]
        store.unschedule("tests.task0", found[-3])  # what is gone leaves no gap
    assert found == ["UA", *(f"UA/{n:03}" for n in range(120))]
    assert "No live message" not in text_of(operator.get(MESSAGES, {"q": "UA", "after": "1~ZZ"}))


def test_the_message_of_an_id_is_on_the_first_page_alone(operator, store):
    id_ = offer(store, "0")
    store.offer_many([message(f"{id_}-{n:03}") for n in range(60)])
    first = operator.get(MESSAGES, {"q": str(id_)})
    second = operator.get(MESSAGES, {"q": str(id_), "after": first.context["next"]})
    assert keys_on(first)[0] == "0"
    assert len({*keys_on(first), *keys_on(second)}) == len(keys_on(first)) + len(keys_on(second)) == 61


def test_all_that_a_search_by_keys_finds_can_be_chosen(operator, store, many):
    page = operator.get(MESSAGES, {"q": "UA/"})
    assert "all whose key begins with “UA/” (120)" in text_of(page)
    confirmation = choose_all(operator, "cancel", "q=UA/")
    assert confirmation.context["preview"].changing == (120, True)
    confirm(operator, confirmation)
    assert {*Message.objects.values_list("key", flat=True)} == {"UA", "ua/000", "UB/000"}


def test_what_is_found_by_its_id_or_its_payload_is_not_offered_as_all(operator, store):
    id_ = offer(store, "a", '{"args":["Berlin"]}')
    for text in ("Berlin", str(id_), "nothing"):
        assert 'name="everything"' not in operator.get(MESSAGES, {"q": text}).content.decode()


def test_all_dead_letters_whose_key_begins_so_are_those_of_that_case(operator, store):
    for key in ("UA/1", "UA/2", "ua/3"):
        dead(store, key)
    page = operator.get(HISTORY, {"q": "UA", "outcome": "failed"})
    assert "all whose key begins with “UA” (2)" in text_of(page)
    confirm(operator, choose_all(operator, "discard", "outcome=failed&q=UA", where=HISTORY), where=HISTORY)
    assert [*FinishedMessage.objects.failed().values_list("key", flat=True)] == ["ua/3"]


def test_the_count_of_a_search_in_the_history_is_that_of_the_search(operator, store, monkeypatch, connection):
    rows = [_ended(n, f"UA/{n}" if n % 4 == 0 else f"{n}") for n in range(400)]
    FinishedMessage.objects.bulk_create(rows)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE delayedq_finishedmessage")
    assert operator.get(HISTORY, {"q": "UA"}).context["count"] == (100, True)
    monkeypatch.setattr("delayedq.operations.counting.SCANNED_BOUND", 60)
    assert operator.get(HISTORY, {"q": "UA"}).context["count"] == (60, None)
    assert "at least 60 messages" in text_of(operator.get(HISTORY, {"q": "UA"}))


def _ended(number, key):
    at = timezone.now() - timedelta(minutes=number)
    return FinishedMessage(
        id=number + 1, key=key, kind="tests.remind", queue="mail", priority=0, payload="{}", outcome="succeeded",
        created_at=at, scheduled_at=at, scheduled_at_initially=at, finished_at=at, attempts=1, max_attempts=1,
    )  # fmt: skip
