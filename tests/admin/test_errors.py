"""The dead letters by error: told apart, found by their text, and retried as a group."""

from __future__ import annotations

import json
import re
from copy import copy
from datetime import timedelta

import pytest
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq.admin.finished import query_of
from delayedq.core.errors import fingerprint
from delayedq.models import Edit, FinishedMessage, Message
from delayedq.operations import error_groups
from delayedq.operations.group_names import name_of
from tests.admin.given import EDITS, HISTORY, confirm, keys_on, offer, said, text_of
from tests.admin.given import dead as dead_letter

ERRORS = f"{HISTORY}errors/"


def dead(store, key, line="app.Full: Seat 7 is taken", **fields):
    name, _, message = line.partition(": ")
    errors = json.dumps([{"attempt": 1, "exception": name, "message": message}])
    return dead_letter(store, key, errors=errors, **fields)


def patterns(page):
    return [f"{row.name}: {row.pattern}" for row in page.context["rows"]]


def test_dead_letters_are_grouped_by_class_and_normalised_message(operator, store):
    for number in range(3):
        dead(store, f"full-{number}", f"app.Full: Seat {number} is taken")
    dead(store, "late", "app.Late: UA1545 <b>", kind="tests.other")

    page = operator.get(ERRORS)

    assert patterns(page) == ["app.Full: Seat <n> is taken", "app.Late: UA<n> <b>"]
    full, late = page.context["rows"]
    assert (late.size, full.size, late.kind) == ("1", "3", "tests.other")
    assert full.trend == "3 in the last 24 hours"
    assert keys_on(operator.get(full.url)) == ["full-2", "full-1", "full-0"]
    assert "&lt;n&gt; &lt;b&gt;" in page.content.decode()


def test_groups_are_filtered_by_class_and_searched_by_text(operator, store):
    dead(store, "a", "app.Full: Seat 7 is taken")
    dead(store, "b", "app.Late: UA1545", kind="tests.other")

    assert patterns(operator.get(ERRORS, {"class_name": "app.Full"})) == ["app.Full: Seat <n> is taken"]
    assert patterns(operator.get(ERRORS, {"q": "SEAT"})) == ["app.Full: Seat <n> is taken"]
    assert patterns(operator.get(ERRORS, {"q": "tests.other"})) == ["app.Late: UA<n>"]
    nothing = operator.get(ERRORS, {"q": "berlin"})
    assert patterns(nothing) == []
    assert "No error of a dead letter fits." in text_of(nothing)


def test_the_list_shows_class_and_first_line_and_is_searched_by_them(operator, store):
    dead(store, "a", "app.Full: Seat 7 is <i>taken")
    dead(store, "b", "app.Late: UA1545")
    text = text_of(operator.get(HISTORY, {"outcome": "failed"}))
    assert "app.Full Seat 7 is <i>taken" in text
    assert keys_on(operator.get(HISTORY, {"outcome": "failed", "error": "seat 7"})) == ["a"]
    assert keys_on(operator.get(HISTORY, {"group": name_of(fingerprint("app.Late: UA9"))})) == ["b"]


def buttons(page):
    """The forms of the page, each as the fields that a click sends."""
    forms = re.findall(r'<form method="post" action="([^"]+)".*?</form>', page.content.decode(), re.DOTALL)
    assert forms
    return forms


def test_five_hundred_dead_letters_of_one_error_are_retried_within_four_clicks(operator, store):
    """The history, the dead letters, Retry, and the confirmation."""
    made = FinishedMessage.objects.get(pk=dead(store, "0", "app.Full: Seat 0 is taken"))
    rows = []
    for number in range(1, 500):
        made.pk, made.key, made.error = 10_000 + number, f"{number}", f"app.Full: Seat {number} is taken"
        rows.append(FinishedMessage(**{field.attname: getattr(made, field.attname) for field in made._meta.fields}))
    FinishedMessage.objects.bulk_create(rows)
    other = dead(store, "other", "app.Late: UA1545")

    assert ERRORS in operator.get(HISTORY).content.decode()
    page = operator.get(ERRORS)
    (row,) = [row for row in page.context["rows"] if row.name == "app.Full"]
    assert set(buttons(page)) == {f"{HISTORY}act/"}
    confirmation = operator.post(f"{HISTORY}act/", {"action": "retry", "everything": "on", "query": row.query})
    assert "To be changed: 500 messages ." in text_of(confirmation)
    assert "Error group" in text_of(confirmation)
    (note,) = said(confirm(operator, confirmation, HISTORY, amount=0, unit="minutes", jitter=0))

    assert note.startswith("Retry: 500 messages changed.")
    assert Message.objects.count() == 500
    assert FinishedMessage.objects.get().pk == other

    before = dict(operator.get(ERRORS).context["rows"][0]._asdict())
    operator.post(f"{EDITS}{Edit.objects.get().pk}/undo/", follow=True)
    assert {row.name: row.size for row in operator.get(ERRORS).context["rows"]} == {"app.Full": "500", "app.Late": "1"}
    assert before["size"] == "1"


def test_who_may_not_retry_sees_no_button_and_is_refused(member, store):
    dead(store, "a")
    client = member()
    page = client.get(ERRORS)
    assert page.context["actions"] == []
    assert '<form method="post" action' not in page.content.decode().replace("/admin/logout/", "")
    given = {"action": "retry", "everything": "on", "query": query_of(fingerprint("app.Full: Seat 1 is taken"))}
    assert client.post(f"{HISTORY}act/", given).status_code == 403


def test_the_page_takes_as_many_statements_for_any_number_of_errors(operator, store, connection, monkeypatch):
    monkeypatch.setattr(error_groups, "SHOWN", 5)
    counts = []
    for letters in ("a", "bcdefgh"):
        for letter in letters:
            dead(store, letter, f"app.{letter * 3}")
        with CaptureQueriesContext(connection) as captured:
            page = operator.get(ERRORS)
        counts.append(sum("fingerprint" in query["sql"] for query in captured))
    by_fingerprint = connection.vendor == "mysql"  # so the dead letters of the tab are counted there
    assert counts[0] == counts[1] == 4 + by_fingerprint
    assert len(page.context["rows"]) == 5
    assert "3 more errors follow." in text_of(page)


def test_the_error_of_most_dead_letters_comes_first_and_all_can_be_reached(operator, store, monkeypatch):
    monkeypatch.setattr("delayedq.operations.error_groups.SHOWN", 2)
    monkeypatch.setattr("delayedq.admin.finished.SHOWN", 2)
    monkeypatch.setattr("delayedq.operations.error_groups.LEAST", 1)
    for number, letter in enumerate("aaabbcdd"):
        dead(store, f"{number}", f"app.{letter * 3}: of a kind")
    first = operator.get(ERRORS)
    second = operator.get(f"{ERRORS}?after={first.context['next']}")
    assert [(row.name, row.size) for row in first.context["rows"]] == [("app.aaa", "3"), ("app.ddd", "2")]
    assert [(row.name, row.size) for row in second.context["rows"]] == [("app.bbb", "2"), ("app.ccc", "1")]
    assert (second.context["next"], second.context["is_first"]) == (None, False)
    latest = operator.get(ERRORS, {"sort": "last"}).context["rows"]
    oldest = operator.get(ERRORS, {"sort": "first", "q": "a kind"}).context["rows"]
    assert ([row.name for row in latest], [row.name for row in oldest]) == (
        ["app.ddd", "app.ccc"],
        ["app.aaa", "app.bbb"],
    )
    assert operator.get(ERRORS, {"sort": "nothing"}).context["rows"] == []


def test_of_more_than_a_thousand_errors_the_largest_comes_first_and_all_can_be_reached(operator, store, monkeypatch):
    monkeypatch.setattr("delayedq.operations.error_groups.SHOWN", 500)
    monkeypatch.setattr("delayedq.admin.finished.SHOWN", 500)
    like = FinishedMessage.objects.get(pk=dead(store, "a"))
    copies = [copy(like) for _ in range(1_200)]
    for number, row in enumerate(copies, 1):
        row.pk, row.fingerprint = like.pk + number, min(number, 1_198)  # the last three are of one error
        row.error = f"app.E{row.fingerprint}: of a kind"
    FinishedMessage.objects.bulk_create(copies, batch_size=500)
    found, after = [], 0
    while after is not None:
        page = operator.get(ERRORS, {"after": after})
        found, after = found + page.context["rows"], page.context["next"]
    assert (found[0].name, found[0].size) == ("app.E1198", "3")
    assert {row.name for row in found} == {"app.Full", *(f"app.E{number}" for number in range(1, 1_199))}
    assert "not all are listed" not in text_of(page)


def test_a_group_is_counted_up_to_a_bound(operator, store, monkeypatch):
    monkeypatch.setattr(error_groups, "FULL", 2)
    monkeypatch.setattr(error_groups, "LEAST", 2)
    for number in range(4):
        dead(store, f"{number}", f"app.Full: Seat {number} is taken")
    (row,) = operator.get(ERRORS).context["rows"]
    assert row.size == "at least 2"


def test_a_failure_without_an_error_has_a_group_too(operator, store):
    dead_letter(store, "a")
    assert patterns(operator.get(ERRORS)) == ["No error was recorded: "]


def test_trends_leave_out_what_is_older(operator, store):
    id_ = dead(store, "a")
    FinishedMessage.objects.filter(pk=id_).update(finished_at=timezone.now() - timedelta(days=2))
    (row,) = operator.get(ERRORS).context["rows"]
    assert row.trend == "0 in the last 24 hours"


@pytest.mark.parametrize("query", [{"q": "a\x00b"}, {"q": "x" * 999}, {"class_name": "\x00"}])
def test_nonsense_finds_nothing(operator, store, query):
    offer(store, "a")
    dead(store, "b")
    page = operator.get(ERRORS, query)
    assert page.status_code == 200
    assert page.context["rows"] == []
