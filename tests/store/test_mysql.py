"""What only MariaDB and MySQL have: deadlocks, packets, collations, and ids that no statement returns."""

from __future__ import annotations

from functools import partial
from threading import Barrier

import pytest
from django.db import OperationalError, connections, transaction
from django.test.utils import CaptureQueriesContext

from delayedq.core import deadlocks
from delayedq.models import FinishedMessage, Message
from delayedq.store.mysql import store as mysql_store
from delayedq.store.mysql import values as mysql_values
from delayedq.store.mysql.database import UNDONE
from delayedq.store.protocol import OfferOutcome, OnConflict, Released, Renewed
from tests.store.given import (
    KIND,
    LANE,
    LEASE,
    NOTHING_AMISS,
    NOW,
    at,
    claim,
    claim_one,
    history,
    keys,
    live,
    live_keys,
    message,
    settle,
    succeed,
    together,
)

pytestmark = pytest.mark.parametrize("alias", ["mariadb"], indirect=True)

KEEP, REPLACE = OnConflict.KEEP, OnConflict.REPLACE
CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED


# Tried again


class Undone:
    """Makes the next statements about messages fail, as if the server had undone their transaction."""

    def __init__(self, times, code):
        self.left, self.code = times, code

    def __call__(self, execute, sql, params, many, context):
        if self.left and "delayedq_message" in sql:
            self.left -= 1
            raise OperationalError(self.code, "as if")
        return execute(sql, params, many, context)


VERBS = {
    "offer": lambda store, _: store.at(NOW).offer(message("new")).outcome == CREATED,
    "offer_many": lambda store, _: len(store.at(NOW).offer_many(iter([message("x"), message("y")]))) == 2,
    "claim": lambda store, _: keys(claim(store)) == ["b"],
    "settle": lambda store, running: settle(store, succeed(running)).lost == frozenset(),
    "settle_and_claim": lambda store, running: (
        keys(store.at(NOW).settle_and_claim([succeed(running)], [LANE], 9, LEASE, "w").claimed) == ["b"]
    ),
    "renew": lambda store, running: store.at(NOW).renew([(running.id, running.token)], LEASE) == Renewed(),
    "release": lambda store, running: store.release([(running.id, running.token)]) == Released(),
    "offer_each": lambda store, _: len(store.at(NOW).offer_each([(message("x"), KEEP), (message("y"), REPLACE)])) == 2,
    "drop": lambda store, _: store.drop(KIND, "a", recorded=False) == 0,
    "unschedule": lambda store, _: store.at(NOW).unschedule(KIND, "a"),
    "withdraw": lambda store, running: store.at(NOW).withdraw(iter([running.id + 1])) == {running.id + 1},
}


@pytest.fixture
def running(store):
    """The claim of "a", beside which "b" waits."""
    store.at(NOW).offer_many([message("a"), message("b")])
    return claim_one(store)


@pytest.mark.parametrize("code", sorted(UNDONE))
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_verb_that_the_server_has_undone_is_tried_again(store, connection, running, verb, code):
    with connection.execute_wrapper(Undone(deadlocks.TRIES - 1, code)):
        assert verb(store, running)


@pytest.mark.parametrize(
    ("policy", "payload", "outcome"),
    [(REPLACE, "theirs", UPDATED), (REPLACE, "ours", IGNORED), (KEEP, "theirs", IGNORED)],
)
@pytest.mark.parametrize("theirs", ["a", "b", "ab"])
def test_a_batch_did_not_create_what_another_offer_created_meanwhile(
    store, connection, theirs, policy, payload, outcome
):
    """Between its look at the keys and its INSERT."""

    def come_first(execute, sql, params, many, context):
        if sql.startswith("INSERT INTO delayedq_message") and not Message.objects.exists():
            together(partial(store.at(NOW).offer_many, [message(key, payload) for key in theirs]))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(come_first):
        offered = store.at(NOW).offer_many([message(key, "ours") for key in "abc"], policy)
    expected = [outcome if key in theirs else CREATED for key in "abc"]
    assert [one.outcome for one in offered] == expected
    assert [one.id for one in offered] == [live(key).id for key in "abc"]


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_it_is_not_tried_for_ever(store, connection, running, verb):
    undone = Undone(100, 1213)
    with pytest.raises(OperationalError), connection.execute_wrapper(undone):
        verb(store, running)
    assert undone.left == 100 - deadlocks.TRIES


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_what_is_wrong_in_itself_is_tried_once(store, connection, running, verb):
    undone = Undone(100, 1054)
    with pytest.raises(OperationalError), connection.execute_wrapper(undone):
        verb(store, running)
    assert undone.left == 99


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_within_the_callers_transaction_the_error_is_the_callers(store, connection, running, verb):
    undone = Undone(100, 1213)
    with (
        pytest.raises(OperationalError),
        transaction.atomic(using=store.alias),
        connection.execute_wrapper(undone),
    ):
        verb(store, running)
    assert undone.left == 99


class Meeting:
    """Lets two transactions go on only when each has created its first key."""

    def __init__(self, met):
        self.met, self.tries = met, 0

    def __call__(self, execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if "INSERT INTO" in sql:
            self.tries += 1
            if self.tries == 1:
                self.met.wait(30)
        return result


def test_of_batches_that_create_the_same_keys_in_opposite_orders_one_is_undone_and_tried_again(store, monkeypatch):
    monkeypatch.setattr(mysql_store, "ROWS", 1)
    monkeypatch.setattr(mysql_store, "in_lock_order", lambda _, order: order)  # else they would not deadlock
    met, tries = Barrier(2), []

    def offer(first, second):
        meeting = Meeting(met)
        with connections[store.alias].execute_wrapper(meeting):
            outcomes = [offered.outcome for offered in store.at(NOW).offer_many([message(first), message(second)])]
        tries.append(meeting.tries)
        return outcomes

    # No other test has these keys: what is left of an ended message, until it is purged, is locked with its neighbours.
    results = together(partial(offer, "meet 1", "meet 2"), partial(offer, "meet 2", "meet 1"))
    assert sorted(results) == [[CREATED, CREATED], [IGNORED, IGNORED]]
    assert sum(tries) > 4
    assert live_keys() == {"meet 1", "meet 2"}


# What is in the way of whom


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
    "table", ["message", "finishedmessage", "cronschedule", "pausedqueue", "worker", "edit", "editedmessage"]
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
