"""A search of the list says where it looked, and offers the history."""

from __future__ import annotations

import pytest

from delayedq.operations import browsing
from tests.admin.given import MESSAGES, keys_on, offer, run, text_of


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
