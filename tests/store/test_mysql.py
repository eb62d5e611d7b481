"""What only MariaDB and MySQL have: packets, collations, and ids that no statement returns."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from delayedq.models import FinishedMessage, Message
from delayedq.store.mysql import database as mysql_values
from delayedq.store.protocol import OfferOutcome, OnConflict
from tests.store.given import (
    LANE,
    NOTHING_AMISS,
    NOW,
    at,
    claim,
    history,
    live,
    message,
    settle,
    succeed,
    together,
)

pytestmark = pytest.mark.parametrize("alias", ["mariadb"], indirect=True)

KEEP, REPLACE = OnConflict.KEEP, OnConflict.REPLACE
CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED


# Locks


def test_an_open_transaction_that_offers_a_key_keeps_no_worker_from_ending_a_replaced_attempt(store, alias):
    """Its id is drawn from the table of messages, where the transaction has locked gaps beside its keys."""
    store.at(NOW).offer_many([message(key, "1") for key in "abc"])
    claims = claim(store, 3)
    store.at(NOW).offer_many([message(key, "2") for key in "abc"])
    with transaction.atomic(using=alias):
        for key in "ac":
            store.at(NOW).offer(message(key, "3"))
        ((settled),) = together(partial(settle, store, *map(succeed, claims)))
    assert (settled.superseded, settled.busy) == ({claims[1].id}, {claims[0].id, claims[2].id})


# Ids and outcomes


def test_ids_of_replaced_attempts_come_from_where_those_of_messages_come_from(store):
    store.at(NOW).offer_many([message(key, "1") for key in "abc"])
    claims = claim(store, 3)
    store.at(NOW).offer_many([message(key, "2") for key in "abc"])
    before = store.at(NOW).offer(message("before")).id
    settle(store, *map(succeed, claims))
    after = store.at(NOW).offer(message("after")).id

    assert all(before < row.id < after for row in FinishedMessage.objects.superseded())
    assert FinishedMessage.objects.superseded().count() == 3
    assert Message.objects.filter(queue="").count() == 0


@pytest.mark.parametrize("step", [1, 7])
def test_ids_and_outcomes_are_told_also_where_ids_are_far_apart(store, connection, step):
    """As in a cluster of several masters."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION auto_increment_increment = %s", [step])
    try:
        store.at(NOW).offer(message("known", "1"))
        offers = [message("x"), message("known", "2"), message(), message(), message("y"), message("x", "2")]
        offered = store.at(NOW).offer_many(offers)
    finally:
        connection.close()
    assert [one.outcome for one in offered] == [CREATED, UPDATED, CREATED, CREATED, CREATED, UPDATED]
    unkeyed = Message.objects.filter(key=None).order_by("id").values_list("id", flat=True)
    assert [one.id for one in offered] == [live("x").pk, live("known").pk, *unkeyed, live("y").pk, live("x").pk]


def test_a_key_that_appears_while_a_batch_is_stored_is_not_told_as_created(store, connection):
    def appear(execute, sql, params, many, context):
        if "INSERT INTO" in sql:
            together(partial(store.at(NOW).offer, message("same")), partial(store.at(NOW).offer, message("other", "1")))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(appear):
        results = store.at(NOW).offer_many([message("same"), message("other", "2"), message("new")])
    assert [result.outcome for result in results] == [IGNORED, UPDATED, CREATED]


def test_a_key_that_appears_and_is_replaced_while_a_batch_is_stored_is_told_as_kept(store, connection):
    def appear(execute, sql, params, many, context):
        if "INSERT INTO" in sql:
            together(lambda: [store.at(NOW).offer(message("kept", payload)) for payload in "12"])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(appear):
        results = store.at(NOW).offer_many([message("kept", "3"), message("new")], KEEP)
    assert [result.outcome for result in results] == [IGNORED, CREATED]
    assert live("kept").payload == "2"


# Packets


def test_a_batch_of_large_payloads_is_split_between_statements(store, connection, monkeypatch):
    monkeypatch.setattr(mysql_values, "CHARACTERS", 1_000)
    offers = [message(f"{number}", "é" * 400, metadata="m" * 50) for number in range(7)]
    with CaptureQueriesContext(connection) as captured:
        store.at(NOW).offer_many([*offers, message("huge", "x" * 5_000)])
    assert sum("INSERT" in query["sql"] for query in captured) == 5
    assert Message.objects.count() == 8


def test_a_batch_may_take_more_than_a_packet_holds(store, connection):
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        packet = cursor.fetchone()[0]
    size = 900_000
    count = packet // size + 3

    store.at(NOW).offer_many(message(payload='"' * size) for _ in range(count))
    assert Message.objects.count() == count


@pytest.mark.parametrize("what", ["result", "errors"])
def test_a_batch_of_ends_may_take_more_than_a_packet_holds(store, what):
    store.at(NOW).offer_many(message() for _ in range(20))
    ends = [succeed(claimed, **{what: "x" * 900_000}) for claimed in claim(store, 20)]
    assert settle(store, *ends) == NOTHING_AMISS
    assert FinishedMessage.objects.count() == 20


def test_a_batch_of_replaced_attempts_may_take_more_than_a_packet_holds(store):
    names = [f"large {number}" for number in range(20)]
    store.at(NOW).offer_many(message(name, "x" * 900_000) for name in names)
    claims = claim(store, 20)
    store.at(NOW).offer_many(message(name, "y") for name in names)
    assert len(settle(store, *map(succeed, claims)).superseded) == 20
    assert FinishedMessage.objects.superseded().count() == 20


# Sessions


@pytest.mark.parametrize("policy", [KEEP, REPLACE])
def test_a_batch_in_an_old_snapshot_finds_keys_that_were_created_since(store, connection, policy):
    """A session at REPEATABLE READ, which the system checks warn of."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        with transaction.atomic(using=store.alias):
            assert Message.objects.count() == 0
            ((created),) = together(partial(store.at(NOW).offer, message("new")))
            offered = store.at(NOW).offer_many([message("new"), message("newer")], policy)
    finally:
        connection.close()
    assert [one.outcome for one in offered] == [IGNORED, CREATED]
    assert offered[0].id == created.id


# Texts


@pytest.mark.parametrize(
    "table",
    ["message", "finishedmessage", "cronschedule", "pausedqueue", "pausedtask", "worker", "edit", "editedmessage"],
)
def test_every_text_has_a_collation_that_compares_exactly(connection, table):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT collation_name FROM information_schema.columns"
            " WHERE table_schema = database() AND table_name = %s AND collation_name IS NOT NULL",
            [f"delayedq_{table}"],
        )
        assert cursor.fetchall() == (("utf8mb4_nopad_bin",),)


@pytest.mark.parametrize("pair", [("a", "A"), ("a", "a "), ("e", "é")])
def test_kinds_queues_and_payloads_compare_exactly_too(store, pair):
    for text in pair:
        assert store.at(NOW).offer(message("k", kind=text)).outcome == CREATED
        assert store.at(NOW).offer(message(queue=text, priority=5)).outcome == CREATED
    assert {head.queue for head in store.at(NOW).scan()} == {"mail", *pair}
    first, second = pair
    assert store.at(NOW).offer(message("p", first)).outcome == CREATED
    assert store.at(NOW).offer(message("p", second)).outcome == UPDATED


def test_texts_of_any_script_travel_through_every_verb(store):
    text = '"\U0001f6eb \\" \\\\ ключ 航班 %s"'
    store.at(NOW).offer(message(text[:-1], text, kind=text, queue=text, metadata=text, max_attempts=3))
    lane = LANE._replace(queue=text)
    settle(store, *(succeed(one, result=text, errors=text) for one in claim(store, lanes=[lane], worker=text)))

    row = history()
    assert {row.kind, row.queue, row.payload, row.metadata, row.result, row.errors, row.worker} == {text}
    assert row.key == text[:-1]


# Wake-ups


def test_a_moved_message_is_not_heard_of_but_seen_by_a_scan(store):
    store.at(NOW).offer(message("a", scheduled_at=at(60)))
    listener = store.listener()
    try:
        store.at(NOW).offer(message("a"))
        assert not listener.heard()
        assert [head.due_in for head in store.at(NOW).scan()] == [0.0]
        assert listener.interval >= 0.5, "an idle worker asks no more than twice a second"
    finally:
        listener.close()


@pytest.mark.parametrize("policy", OnConflict)
def test_an_offer_is_one_statement_and_tells_its_id(store, connection, policy):
    """Also when it is ignored: nothing is looked up."""
    for payload in "122":
        with CaptureQueriesContext(connections[store.alias]) as captured:
            assert store.at(NOW).offer(message("a", payload), policy).id == live("a").pk
        assert sum("INSERT" in query["sql"] for query in captured) == 1
        assert len(captured) == 2, "the other one is the test's"
