"""Two transactions that store the same keys in chunks: sorted keys never deadlock, and others are told what to do."""

from __future__ import annotations

import json
from functools import partial
from threading import Barrier, Event

import pytest
from django.db import OperationalError, transaction

from delayedq import Call
from delayedq.models import Message
from delayedq.store import base
from tests.app.tasks import remind
from tests.store.given import NOW, at, message, together

BESIDE = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)  # SQLite has one writer at a time
DEADLOCK = ("deadlock", "Deadlock")


def given(writer, *keys):
    return [Call((writer,), key=f"bulk {key}") for key in keys]


def stored():
    return {key[-1]: json.loads(payload)["args"][0] for key, payload in Message.objects.values_list("key", "payload")}


@BESIDE
@pytest.mark.parametrize("own", [False, True], ids=["in its own transaction", "in that of the caller"])
def test_of_two_that_write_keys_in_opposite_orders_one_stores_nothing_and_says_what_to_do(alias, own):
    """Both keys stand already: MariaDB locks the gap beside a new one if a deleted row of it is not purged yet."""
    remind.enqueue_bulk(given(2, 1, 2))
    met = Barrier(2)

    def calls(first, second):
        yield first
        met.wait(30)  # both have stored their first chunk
        yield second

    def write(writer, *keys):
        try:
            if own:
                return remind.enqueue_bulk(calls(*given(writer, *keys)), chunk_size=1)
            with transaction.atomic(using=alias):
                return remind.enqueue_bulk(calls(*given(writer, *keys)), chunk_size=1)
        except OperationalError as error:
            return error

    results = together(partial(write, 0, 1, 2), partial(write, 1, 2, 1))
    (undone,) = [result for result in results if isinstance(result, OperationalError)]
    assert any(word in str(undone) for word in DEADLOCK)
    (said,) = undone.__notes__
    assert said.startswith("enqueue_bulk() stored nothing")
    assert "in sorted order" in said
    other = results.index(2)
    assert stored() == {"1": other, "2": other}


@BESIDE
def test_of_two_that_write_sorted_keys_the_later_one_waits_and_replaces_all(alias):
    begun = Event()

    def earlier():
        first, *others = given(0, 1, 2, 3)
        yield first
        begun.set()  # it is stored
        yield from others

    def later():
        assert begun.wait(30)
        return remind.enqueue_bulk(given(1, 1, 2, 3), chunk_size=1)

    assert together(lambda: remind.enqueue_bulk(earlier(), chunk_size=1), later) == [3, 3]
    assert stored() == {"1": 1, "2": 1, "3": 1}


@pytest.mark.parametrize("verb", ["offer_many", "offer_counted"])
def test_what_takes_several_statements_is_sorted_over_all_of_them(store, monkeypatch, verb):
    monkeypatch.setattr(base, "CHUNK", 2)
    getattr(store.at(NOW), verb)([message(key) for key in "dbca"])
    chunks = [*Message.objects.order_by("id").values_list("key", flat=True)]
    assert [sorted(chunks[:2]), sorted(chunks[2:])] == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
@pytest.mark.parametrize("times", [lambda _: NOW, at], ids=["at one time", "at their own times"])
def test_a_statement_locks_in_the_order_of_the_keys(store, times):
    keys = ["d", "b", "\u00e9", "c", "a"]
    offers = [message(key, scheduled_at=times(number)) for number, key in enumerate(keys)]
    with store.database.connection.cursor() as cursor:
        cursor.execute("TRUNCATE delayedq_message CASCADE")  # what is stored then follows each other in the file
        store.at(NOW).offer_counted(offers)
        cursor.execute("SELECT key FROM delayedq_message ORDER BY ctid")
        assert [key for (key,) in cursor.fetchall()] == sorted(keys)
