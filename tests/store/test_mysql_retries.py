"""Transactions that MariaDB or MySQL has undone (deadlock, lock wait timeout) are tried again, if they are ours."""

from __future__ import annotations

from functools import partial
from threading import Barrier

import pytest
from django.db import OperationalError, connections, transaction

from delayedq.core import backoff
from delayedq.models import Message
from delayedq.store.mysql import store as mysql_store
from delayedq.store.mysql.database import UNDONE
from delayedq.store.protocol import ClaimRequest, OfferOutcome, OnConflict, Released, Renewed
from tests.store.given import (
    KIND,
    LANE,
    LEASE,
    NOW,
    claim,
    claim_one,
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
        keys(store.at(NOW).settle_and_claim([succeed(running)], ClaimRequest([LANE], 9, LEASE, "w")).claimed) == ["b"]
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
    with connection.execute_wrapper(Undone(backoff.TRIES - 1, code)):
        assert verb(store, running)


@pytest.mark.parametrize(
    ("policy", "payload", "outcome"),
    [(REPLACE, "theirs", UPDATED), (REPLACE, "ours", IGNORED), (KEEP, "theirs", IGNORED)],
)
@pytest.mark.parametrize("theirs", ["a", "b", "ab"])
def test_a_batch_did_not_create_what_another_offer_created_meanwhile(
    store, connection, theirs, policy, payload, outcome
):
    """The other offer comes between its SELECT of the keys and its INSERT."""

    def come_first(execute, sql, params, many, context):
        if sql.startswith("INSERT INTO delayedq_message") and not Message.objects.exists():
            together(partial(store.at(NOW).offer_many, [message(key, payload) for key in theirs]))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(come_first):
        offered = store.at(NOW).offer_many([message(key, "ours") for key in "abc"], policy)
    expected = [outcome if key in theirs else CREATED for key in "abc"]
    assert [one.outcome for one in offered] == expected
    assert [one.id for one in offered] == [live(key).id for key in "abc"]


def test_a_batch_that_replaces_one_did_not_create_what_another_offer_created_meanwhile(store, connection):
    """It creates nothing, and the row that it found last is the other's."""
    store.at(NOW).offer(message("a", "before"))

    def come_first(execute, sql, params, many, context):
        if sql.startswith("INSERT INTO delayedq_message") and Message.objects.count() == 1:
            together(partial(store.at(NOW).offer, message("b", "ours")))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(come_first):
        offered = store.at(NOW).offer_many([message("a", "ours"), message("b", "ours")])
    assert [one.outcome for one in offered] == [UPDATED, IGNORED]


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_it_is_not_tried_for_ever(store, connection, running, verb):
    undone = Undone(100, 1213)
    with pytest.raises(OperationalError), connection.execute_wrapper(undone):
        verb(store, running)
    assert undone.left == 100 - backoff.TRIES


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
