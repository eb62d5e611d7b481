"""Export: all that a filter selects, streamed, safe for spreadsheets, masked like the pages."""

from __future__ import annotations

import csv
import io
import json

import pytest
from django.contrib.admin.models import LogEntry

from delayedq.models import FinishedMessage, Message
from tests.admin.given import HISTORY, MESSAGES, choose_all, dead, keys_on, offer, said
from tests.app.tasks import echo, pay
from tests.store.given import message


def export(client, where=MESSAGES, query="", form="json"):
    return client.post(f"{where}export/", {"query": query, "format": form})


def body(answer):
    return b"".join(answer.streaming_content).decode()


def rows_of(answer):
    return [json.loads(line) for line in body(answer).splitlines()]


def table_of(answer):
    return [*csv.DictReader(io.StringIO(body(answer), newline=""))]


def test_what_a_filter_selects_is_exported_and_logged(operator, store):
    offer(store, "a", '{"args":[1]}', queue="mail", priority=3)
    offer(store, "b", queue="slow")
    answer = export(operator, query="queue=mail")
    assert answer["Content-Disposition"] == 'attachment; filename="message.jsonl"'
    (row,) = rows_of(answer)
    assert (row["key"], row["payload"], row["priority"]) == ("a", '{"args":[1]}', 3)
    assert LogEntry.objects.get().change_message == "Export: queue=mail"
    assert [row["key"] for row in table_of(export(operator, form="csv"))] == ["a", "b"]


def test_ended_messages_are_exported(operator, store):
    dead(store, "a"), dead(store, "b")
    FinishedMessage.objects.filter(key="b").update(outcome="succeeded", result="7")
    found = {row["key"]: row["outcome"] for row in rows_of(export(operator, HISTORY))}
    assert found == {"a": "failed", "b": "succeeded"}
    assert [row["key"] for row in table_of(export(operator, HISTORY, "outcome=failed", "csv"))] == ["a"]


def test_more_than_a_page_is_exported_once_each(operator, store):
    store.offer_many([message(f"{number}", queue=f"q{number % 3}") for number in range(2_500)])
    found = [row["key"] for row in rows_of(export(operator))]
    assert sorted(map(int, found)) == [*range(2_500)]


def test_a_search_is_exported_as_far_as_it_goes(operator, store, monkeypatch):
    """Also what the page of the list has no room for."""
    monkeypatch.setattr("delayedq.operations.browsing.CHUNK", 50)
    store.offer_many([message(f"UA{number:03}", kind=f"kind{number % 2}") for number in range(130)])
    store.offer(message("KL1"))
    found = [row["key"] for row in rows_of(export(operator, query="q=UA"))]
    assert sorted(found) == [f"UA{number:03}" for number in range(130)]
    assert "130" in operator.get(f"{MESSAGES}?q=UA").content.decode()
    one = Message.objects.get(key="UA007").pk
    assert [row["id"] for row in rows_of(export(operator, query=f"q={one}"))] == [one]


def test_what_is_found_by_an_argument_is_exported_too(operator, member, store):
    store.offer_many([message(f"{number}", payload=f'{{"args":["room {number % 3}"]}}') for number in range(9)])
    found = [row["key"] for row in rows_of(export(operator, query="q=room+2"))]
    assert sorted(found) == ["2", "5", "8"]
    assert body(export(member("export_message"), query="q=room+2")) == ""


@pytest.mark.parametrize("key", ["=1+1", "+1", "-1", "@x", "\t=1", "|cmd", "\uff1d1+1", '=HYPERLINK("x")'])
def test_no_cell_is_a_formula(operator, store, key):
    offer(store, key, key)
    (row,) = table_of(export(operator, form="csv"))
    assert row["key"][0] in "'\\"
    assert row["payload"][0] in "'\\"


def test_what_turns_texts_around_is_spelled_out(operator, store):
    offer(store, "a\u202eb\x1b", '{"args":["\u202e"]}')
    for form in ("csv", "json"):
        text = body(export(operator, form=form))
        assert not {"\u202e", "\x1b"} & {*text}
        assert "\\u202e" in text


def test_payloads_are_masked_without_the_permission_and_secrets_always(member, operator, store):
    offer(store, "a", '{"args":[7,"tok_4c11e9"]}', kind=pay.module_path)
    offer(store, "b", '{"args":["other"]}', kind=echo.module_path)
    assert "tok_4c11e9" not in (text := body(export(operator)))
    assert "other" in text
    assert "other" not in body(export(member("export_message")))


def test_who_lacks_the_permission_exports_nothing(member, store):
    offer(store, "a")
    looker = member()
    assert export(looker).status_code == 403
    assert export(looker, HISTORY).status_code == 403
    assert export(member("export_message", name="carl"), HISTORY, "error=x").status_code == 403
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("where", [MESSAGES, HISTORY])
def test_an_invalid_filter_exports_nothing(operator, store, where):
    offer(store, "a")
    answer = operator.post(f"{where}export/", {"query": "nothing=1", "format": "csv"}, follow=True)
    assert "There is no filter nothing." in said(answer)[0]
    assert operator.get(f"{where}export/").status_code == 405


# Filters


def test_live_messages_are_filtered_by_priority_and_worker(operator, store):
    offer(store, "a", priority=3), offer(store, "b", priority=4), offer(store, "c")
    Message.objects.filter(key="c").update(leased_by="host:1", lease_token=1, leased_until=store.now())

    assert keys_on(operator.get(MESSAGES, {"priority": 3})) == ["a"]
    assert keys_on(operator.get(MESSAGES, {"worker": "host:1"})) == ["c"]
    assert keys_on(operator.get(MESSAGES, {"worker": "host:1", "priority": 3})) == []
    assert choose_all(operator, "run_now", "priority=4").context["preview"].changing.number == 1
    assert [row["key"] for row in rows_of(export(operator, query="worker=host:1"))] == ["c"]


def test_ended_messages_are_filtered_by_priority_and_worker(operator, store):
    dead(store, "a"), dead(store, "b")
    FinishedMessage.objects.filter(key="a").update(priority=3, worker="host:1")
    assert keys_on(operator.get(HISTORY, {"priority": 3})) == ["a"]
    assert keys_on(operator.get(HISTORY, {"worker": "host:1", "outcome": "failed"})) == ["a"]
    assert keys_on(operator.get(HISTORY, {"priority": 0})) == ["b"]
