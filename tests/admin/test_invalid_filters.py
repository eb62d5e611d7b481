"""A filter that is not valid selects nothing and says why; what is confirmed is all that is done."""

from __future__ import annotations

import pytest

from delayedq.models import Message
from delayedq.operations import counting, edits
from delayedq.operations.counting import Count
from tests.admin.given import HISTORY, MESSAGES, choose_all, confirm, dead, keys_on, offer, said, text_of

INVALID = {
    "unknown state": ("state=doomed", "Select a valid choice. doomed"),
    "misspelt filter": ("stat=due", "There is no filter stat."),
    "no time": ("since=yesterday", "From: Enter a date and a time"),
    "twice": ("queue=mail&queue=other", "The filter queue is given more than once."),
    "NUL": ("queue=%00", "Select a valid choice."),
    "NUL in a search": ("q=%00", "Null characters are not allowed."),
    "too long": (f"kind={'x' * 201}", "Task: Ensure this value has at most 200 characters"),
}
EACH = pytest.mark.parametrize(("query", "why"), INVALID.values(), ids=INVALID)


@EACH
def test_an_invalid_filter_shows_nothing_and_says_why(operator, store, query, why):
    offer(store, "a")
    page = operator.get(f"{MESSAGES}?{query}")
    assert keys_on(page) == []
    assert page.context["count"] == Count(0, exact=True)
    assert why.partition(": ")[2] or why in text_of(page)


@EACH
def test_an_invalid_filter_never_means_everything(operator, store, query, why):
    offer(store, "a")
    page = operator.post(f"{MESSAGES}act/", {"action": "cancel", "everything": "on", "query": query}, follow=True)
    (note,) = said(page)
    assert note.startswith("Nothing was chosen, for the filter is not valid: ")
    assert why in note
    assert Message.objects.count() == 1


@pytest.mark.parametrize("query", ["outcome=lost", "group=xyz", "stat=1", "error=%00"])
def test_the_history_too(operator, store, query):
    dead(store, "a")
    assert keys_on(operator.get(f"{HISTORY}?{query}")) == []
    page = operator.post(f"{HISTORY}act/", {"action": "retry", "everything": "on", "query": query}, follow=True)
    assert said(page)[0].startswith("Nothing was chosen")
    assert not Message.objects.exists()


def test_a_filter_of_other_outcomes_retries_no_dead_letter(operator, store):
    dead(store, "a")
    given = {"action": "retry", "everything": "on", "query": "outcome=succeeded"}
    assert "Only dead letters can be chosen" in said(operator.post(f"{HISTORY}act/", given, follow=True))[0]


def test_a_search_is_no_less_a_condition_than_a_filter(operator, store):
    for key in ("UA1/a", "UA1/b", "UA2/a"):
        offer(store, key)
    offer(store, "UA1/other", queue="other")
    confirmation = choose_all(operator, "cancel", "q=UA1&queue=mail")
    text = text_of(confirmation)
    assert "To be changed: 2 messages ." in text
    assert "All that match: Key or id UA1, Queue mail" in text
    confirm(operator, confirmation)
    assert set(Message.objects.values_list("key", flat=True)) == {"UA2/a", "UA1/other"}


def test_a_search_for_an_argument_can_not_be_chosen_as_a_whole(operator, store):
    offer(store, "a", '{"args":["Berlin"]}')
    offer(store, "b")
    confirm(operator, choose_all(operator, "cancel", "q=Berlin"))
    assert Message.objects.count() == 2


def test_an_action_stops_at_what_was_confirmed(operator, store, monkeypatch):
    monkeypatch.setattr(counting, "SCANNED_BOUND", 2)
    monkeypatch.setattr(counting, "BOUND", 4)
    monkeypatch.setattr(Count, "most", 5)
    monkeypatch.setattr(edits, "CHUNKS", 1)
    for number in range(8):
        offer(store, f"{number}", kind="tests.other")
    confirmation = choose_all(operator, "cancel", "kind=tests.other")
    assert "At most 5 are changed now, and then it stops." in text_of(confirmation)
    (note,) = said(confirm(operator, confirmation))
    assert note.startswith("Cancel: 5 messages changed.")
    assert Message.objects.count() == 3


def test_a_dead_letter_that_failed_later_does_not_take_the_place_of_a_confirmed_one(operator, store):
    for number in range(3):
        dead(store, f"{number}")
    confirmation = choose_all(operator, "retry", "", HISTORY)
    assert "At most" not in text_of(confirmation)
    (note,) = said(confirm(operator, confirmation, HISTORY, amount=0, unit="minutes", jitter=0))
    assert note.startswith("Retry: 3 messages changed.")


@pytest.mark.parametrize(
    ("count", "most"),
    [
        (Count(7, exact=True), 7),
        (Count(62_000, exact=False), 130_000),
        (Count(0, exact=None), 10_000),
        (Count(5_000, exact=None), 50_000),
    ],
)
def test_how_many_are_changed_at_most(count, most):
    assert count.most == most
