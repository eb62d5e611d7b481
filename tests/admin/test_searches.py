"""A search of the list says where it looked, and offers the history."""

from __future__ import annotations

import json
from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq.models import FinishedMessage, Message
from delayedq.operations import argument_search, browsing
from delayedq.store import worker_registry
from tests.admin.given import HISTORY, MESSAGES, choose_all, confirm, dead, keys_on, offer, run, text_of
from tests.app import tasks
from tests.store.given import message
from tests.store.test_worker_registry import worker


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


def test_the_list_of_what_runs_says_if_workers_ran_more_than_is_looked_up(operator, store, monkeypatch):
    monkeypatch.setattr("delayedq.operations.workers.MOST_RUNNING", 1)
    registry = worker_registry(store.alias)
    registry.heartbeat([worker("w1", running="[1]")])
    assert "are not looked up" not in text_of(operator.get(MESSAGES, {"state": "running"}))
    registry.heartbeat([worker("w2", running="[2]")])
    assert "the others are not looked up" in text_of(operator.get(MESSAGES, {"state": "running"}))


def test_a_search_that_finds_nothing_says_where_it_looked_and_offers_the_history(operator, store):
    offer(store, "a")
    page = operator.get(MESSAGES, {"q": "UA 1545"})
    assert keys_on(page) == []
    text = text_of(page)
    assert "No live message has “UA 1545” as its id, at the beginning of its key, or in its arguments." in text
    assert 'href="/admin/delayedq/finishedmessage/?q=UA%201545"' in page.content.decode()


def test_an_argument_is_found_and_said_to_be_one(operator, store):
    offer(store, "a", '{"args":["Berlin"]}')
    page = operator.get(MESSAGES, {"q": "Berlin"})
    assert keys_on(page) == ["a"]
    assert "these messages have it in their arguments" in text_of(page)


# Arguments


def pages(operator, url, query):
    """All pages of a list, the first one first."""
    found, after = [], ""
    while after is not None:
        found.append(operator.get(url, {**query, "after": after}))
        after = found[-1].context["next"]
    return found


def call(*args, **kwargs):
    return json.dumps({"args": args, "kwargs": kwargs})


@pytest.mark.parametrize("text", ["Berlin", "args:Berlin"])
def test_arguments_are_searched_as_far_as_one_likes_and_each_page_says_how_far(operator, store, backlog, text):
    offer(store, "far", call("Berlin"), seconds=100)
    found = pages(operator, MESSAGES, {"q": text})
    assert [keys_on(page) for page in found] == [[], [], ["far"]]
    assert "Searched as far as" in text_of(found[0])
    assert not found[2].context["is_cut"]


def test_the_value_of_an_argument_is_found_by_its_name(operator, store):
    kind = tasks.remind.module_path
    for key, payload in {"a": call(17, 4), "b": call(4, 17), "c": call(4, gate=17), "d": call(170, gate=4)}.items():
        offer(store, key, payload, kind=kind)
    offer(store, "e", call(17, 4), kind="unknown.task")
    offer(store, "f", call(17, gate="known"), kind="unknown.task")  # of which the names that were given are known
    assert keys_on(operator.get(MESSAGES, {"q": "args.gate:known"})) == ["f"]
    assert keys_on(operator.get(MESSAGES, {"q": "args.gate:17"})) == ["b", "c"]
    assert keys_on(operator.get(MESSAGES, {"q": "args.flight_id:17"})) == ["a"]
    assert keys_on(operator.get(MESSAGES, {"q": "args:17"})) == ["a", "b", "c", "d", "e", "f"]
    assert "Messages whose argument gate is “17”." in text_of(operator.get(MESSAGES, {"q": "args.gate:17"}))
    assert keys_on(operator.get(MESSAGES, {"q": "args.gate:17", "kind": "unknown.task"})) == []


def test_the_history_is_searched_for_arguments_too(operator, store, monkeypatch):
    monkeypatch.setattr(browsing, "DEPTH", 60)
    kind = tasks.remind.module_path
    rows = [_ended(n, f"{n}", kind=kind, payload=call(n, gate="x" if n % 50 else "é")) for n in range(200)]
    FinishedMessage.objects.bulk_create(rows)
    found = pages(operator, HISTORY, {"q": "args.gate:é"})
    assert [keys_on(page) for page in found] == [["0", "50"], ["100"], ["150"], []]
    assert "Search further" in text_of(found[0])
    assert found[0].context["count"] == (2, None)


def test_a_search_of_the_history_without_a_hit_offers_to_search_the_arguments(operator, store):
    FinishedMessage.objects.bulk_create([_ended(1, "a", payload=call("Berlin"))])
    page = operator.get(HISTORY, {"q": "Berlin"})
    assert keys_on(page) == []
    assert 'No id or key fits “Berlin”. <a href="?q=args%3ABerlin">' in page.content.decode()
    assert keys_on(operator.get(HISTORY, {"q": "args:Berlin"})) == ["a"]
    narrow = operator.get(HISTORY, {"outcome": "failed", "q": "Berlin"}).content.decode()
    assert '<a href="?outcome=failed&amp;q=args%3ABerlin">' in narrow
    live = operator.get(MESSAGES, {"queue": "mail", "q": "Berlin"}).content.decode()
    assert 'finishedmessage/?q=Berlin&amp;queue=mail"' in live


@pytest.mark.parametrize("url", [MESSAGES, HISTORY])
def test_a_search_that_takes_too_long_goes_on_with_the_next_page(operator, store, monkeypatch, url):
    for name, value in {"LOOKED_FOR": 0.0, "FIRST_LOOK": 30, "MOST_AT_ONCE": 30}.items():
        monkeypatch.setattr(argument_search, name, value)
    kind = tasks.remind.module_path
    payloads = [call(17, gate="x" if n % 25 else 17) for n in range(100)]
    store.offer_many([message(f"{n}", payload, kind=kind) for n, payload in enumerate(payloads)])
    FinishedMessage.objects.bulk_create(_ended(n, f"{n}", kind=kind, payload=one) for n, one in enumerate(payloads))
    found = pages(operator, url, {"q": "args.gate:17"})
    keys = [key for page in found for key in keys_on(page)]
    assert sorted(keys, key=int) == ["0", "25", "50", "75"]
    assert len(found) > 1


@pytest.mark.parametrize("url", [MESSAGES, HISTORY])
def test_what_is_masked_is_neither_found_nor_confirmed(operator, member, store, url):
    kind, payload = tasks.pay.module_path, call(17, token="tok_4c11e9")
    offer(store, "a", payload, kind=kind)
    FinishedMessage.objects.bulk_create([_ended(1, "a", kind=kind, payload=payload)])
    searches = ("args.amount:17", "args.token:tok_4c11e9", "args:tok_4c11e9", "args:17")
    assert [keys_on(operator.get(url, {"q": text})) for text in searches] == [["a"], [], [], ["a"]]
    client = member("view_message", "view_finishedmessage")
    assert [keys_on(client.get(url, {"q": text})) for text in searches] == [[]] * 4


@pytest.mark.parametrize("url", [MESSAGES, HISTORY])
@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_how_far_a_page_comes_does_not_tell_of_what_is_masked(operator, store, monkeypatch, url, seconds):
    monkeypatch.setattr(argument_search, "LOOKED_FOR", seconds)
    kind, payload = tasks.pay.module_path, call(17, token="tok_4c11e9")
    store.offer_many([message(f"{number}", payload, kind=kind) for number in range(1_100)])
    FinishedMessage.objects.bulk_create([_ended(n, f"{n}", kind=kind, payload=payload) for n in range(1_100)])
    for text in ("args:tok_4c11e9", "args:nothing"):
        assert operator.get(url, {"q": text}).context["next"] is None


def test_what_a_search_for_an_argument_finds_is_exported_and_not_chosen_as_a_whole(operator, store, backlog):
    kind = tasks.remind.module_path
    for seconds in (-70, 100):
        offer(store, f"at {seconds}", call(1, gate="B7"), kind=kind, seconds=seconds)
        offer(store, f"other {seconds}", call("B7", gate=1), kind=kind, seconds=seconds)
    assert 'name="everything"' not in operator.get(MESSAGES, {"q": "args.gate:B7"}).content.decode()
    told = operator.post(f"{MESSAGES}export/", {"query": "q=args.gate:B7", "format": "json"})
    lines = [json.loads(line) for line in b"".join(told.streaming_content).splitlines()]
    assert [line["key"] for line in lines] == ["at -70", "at 100"]
    confirm(operator, choose_all(operator, "cancel", "q=args.gate:B7"))
    assert Message.objects.count() == 124


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


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_a_search_asks_only_of_tasks_that_have_such_a_key(operator, store, alias):
    keys = [(f"{letter}{n}", n) for n in range(100) for letter in "az"]  # what is searched for is between them
    store.offer_many([message(key, kind=f"tests.task{n}", queue=f"q{n % 60}") for key, n in keys])
    for url in (MESSAGES, HISTORY, "/admin/delayedq/dashboard/find/"):
        with CaptureQueriesContext(connections[alias]) as statements:
            text = text_of(operator.get(url, {"q": "no key begins so"}))
        assert "no key begins so" in text
        assert len([one for one in statements if '"key" >=' in one["sql"]]) == 0
        assert len(statements) <= 20, url


def test_the_message_of_an_id_is_on_the_first_page_alone(operator, store):
    id_ = offer(store, "0")
    assert keys_on(operator.get(MESSAGES, {"q": f"#{id_}"})) == ["0"]  # as the rows of the list name it
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


def test_an_argument_of_the_history_is_not_chosen_as_a_whole(operator, store):
    dead(store, "a", call("Berlin"))
    query = {"outcome": "failed", "q": "args:Berlin"}
    page = operator.get(HISTORY, query)
    assert keys_on(page) == ["a"]
    assert 'name="everything"' not in page.content.decode()


def test_an_id_in_the_history_is_found_as_the_filters_want_it(operator, store):
    """By page, count and export alike; and what is chosen as a whole are keys."""
    id_ = dead(store, "a")
    dead(store, f"{id_}-b")
    FinishedMessage.objects.bulk_create([_ended(10 * id_, "other")])
    both = {"outcome": "failed", "q": str(id_)}
    page = operator.get(HISTORY, both)
    assert (keys_on(page), page.context["count"]) == (["a", f"{id_}-b"], (2, True))
    assert f"all whose key begins with “{id_}” (1)" in text_of(page)
    assert _exported(operator, both) == ["a", f"{id_}-b"]
    for further in ({"outcome": "succeeded"}, {"queue": "mail"}, {"since": "2100-01-01T00:00"}):
        page = operator.get(HISTORY, {**both, **further})
        assert (keys_on(page), page.context["count"]) == ([], (0, True))
        assert _exported(operator, {**both, **further}) == []


def _exported(client, query):
    told = client.post(f"{HISTORY}export/", {"query": urlencode(query), "format": "json"})
    return [json.loads(line)["key"] for line in b"".join(told.streaming_content).splitlines()]


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


def _ended(number, key, kind="tests.remind", payload="{}"):
    at = timezone.now() - timedelta(minutes=number)
    return FinishedMessage(
        id=number + 1, key=key, kind=kind, queue="mail", priority=0, payload=payload, outcome="succeeded",
        created_at=at, scheduled_at=at, scheduled_at_initially=at, finished_at=at, attempts=1, max_attempts=1,
    )  # fmt: skip


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_the_keys_of_150_tasks_are_found_by_a_statement_for_many_tasks(operator, store, connection):
    """On SQLite, each takes one of its own."""
    for number in range(150):
        offer(store, f"UA{number:03}", kind=f"shop.tasks.task_{number}")
    with CaptureQueriesContext(connection) as captured:
        page = operator.get(MESSAGES, {"q": "UA"})
    kinds = 150 if connection.vendor == "mysql" else 1  # which are asked for one by one there
    assert len(captured) <= kinds + 20
    assert keys_on(page) == [f"UA{number:03}" for number in range(50)]
    assert "150 messages" in text_of(page)
