"""Live messages are found by id, by key, by how the key begins, and by what stands in their payload."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test.utils import CaptureQueriesContext

from delayedq.operations import browsing
from delayedq.operations.browsing import Selection, find
from delayedq.sql.states import MessageState
from tests.admin.given import offer, run


@pytest.fixture
def everything(store):
    return Selection(as_of=store.now())


def keys(found):
    return [message.key for message in found.messages]


def test_a_key_is_found_by_how_it_begins(store, everything):
    for key in ("UA1545/2026-11-22/EWR", "UA1545/2026-11-23/EWR", "UA15", "ua1545", "XUA1545"):
        offer(store, key)
    offer(store, "UA1545/z", kind="tests.other")
    found = find(store, "UA1545", everything)
    assert keys(found) == ["UA1545/2026-11-22/EWR", "UA1545/2026-11-23/EWR", "UA1545/z"]
    assert not found.is_cut
    assert not found.by_argument


def test_an_id_comes_first_then_the_key_itself(store, everything):
    id_ = offer(store, "other")
    offer(store, f"{id_}0")
    offer(store, f"{id_}")
    assert keys(find(store, f"{id_}", everything)) == ["other", f"{id_}", f"{id_}0"]


def test_a_search_within_a_filter_stays_within_it(store, everything):
    offer(store, "UA1")
    offer(store, "UA2", queue="other")
    run(store)
    assert keys(find(store, "UA", replace(everything, queue="other"))) == ["UA2"]
    assert keys(find(store, "UA", replace(everything, as_of=store.now(), state=MessageState.RUNNING))) == ["UA1"]


def test_what_is_in_no_key_is_looked_for_in_payloads(store, everything):
    offer(store, "a", '{"args":["Zürich"]}')
    offer(store, "b", '{"args":["Z\\u00fcrich"]}')
    offer(store, "c")
    found = find(store, "Zürich", everything)
    assert set(keys(found)) == {"a", "b"}
    assert found.by_argument


def test_the_look_at_payloads_is_bounded_and_says_so(store, everything, monkeypatch):
    monkeypatch.setattr(browsing, "DEPTH", 60)
    for number in range(80):
        offer(store, f"{number}", seconds=number)
    found = find(store, "Berlin", everything)
    assert (found.messages, found.is_cut) == ([], True)


def test_of_many_keys_the_first_are_shown(store, everything):
    for number in range(browsing.PAGE + 5):
        offer(store, f"UA{number:03}")
    found = find(store, "UA", everything)
    assert keys(found) == [f"UA{number:03}" for number in range(browsing.PAGE)]
    assert found.is_cut


@pytest.mark.parametrize("text", ["", "a\x00", "\ud800", "x" * 300])
def test_what_no_message_can_have_is_not_found(store, everything, text):
    offer(store, "a")
    assert find(store, text, everything).messages == []


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_prefix_is_a_range_of_the_index_of_keys(store, everything, connection):
    for number in range(300):
        offer(store, f"K{number}")
    offer(store, "UA1")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE delayedq_message; SET enable_seqscan = off")
    try:
        with CaptureQueriesContext(connection) as captured:
            assert keys(find(store, "UA", everything)) == ["UA1"]
        (asked,) = [query["sql"] for query in captured if '"key" >=' in query["sql"]]
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN " + asked.replace("%", "%%"))
            plan = "\n".join(row[0] for row in cursor.fetchall())
        assert "delayedq_key" in plan
        assert "Index Cond" in plan
        assert "key" in plan.partition("Index Cond")[2].partition("\n")[0]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET enable_seqscan")


def explained(*arguments):
    out = StringIO()
    call_command("delayedq", "explain", *arguments, stdout=out)
    return out.getvalue()


def test_explain_takes_the_beginning_of_a_key_and_lists_candidates(store):
    one, other = offer(store, "UA1545/EWR"), offer(store, "UA1545/SFO")
    said = explained("UA1545")
    assert f"#{one} tests.remind UA1545/EWR" in said
    assert f"#{other} tests.remind UA1545/SFO" in said
    assert "2 messages have a key that begins with UA1545; name one to have it explained." in said
    assert "It is" not in said
    assert "\n  " in explained("UA1545/EWR")


def test_explain_explains_the_only_candidate(store):
    offer(store, "UA1545/EWR")
    assert "\n  " in explained("UA1545")


def test_explain_says_that_nothing_is_found(store):
    with pytest.raises(CommandError, match="nor one whose key begins with"):
        explained("nothing")
