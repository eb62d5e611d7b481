"""What the store does for bare queues alone: its side of the protocol."""

from __future__ import annotations

import pytest
from django.test.utils import CaptureQueriesContext

from delayedq.core.conditions import Condition
from delayedq.exceptions import InvalidKey
from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import Discard, Lane, Settled
from tests.store.given import (
    LANE,
    LEASE,
    NOTHING_AMISS,
    NOW,
    at,
    claim,
    claim_one,
    keys,
    live,
    message,
    outcomes,
    put_back,
    settle,
    succeed,
)

EU = Condition(("region",), ('"eu"',))


def bare(key=None, payload="{}", **fields):
    return message(key, payload, queue="contacts|json", kind="contacts|json", **fields)


def test_a_discarded_message_leaves_no_history(store):
    store.at(NOW).offer_many([message("a"), message("b")])
    a, b = claim(store, 2)

    assert settle(store, Discard(a), succeed(b)) == NOTHING_AMISS
    assert (Message.objects.count(), outcomes()) == (0, ["succeeded"])


def test_a_discard_is_fenced_like_any_other_end(store):
    store.at(NOW).offer(message("a"))
    late = claim_one(store)
    holder = claim_one(store, now=at(61))

    assert settle(store, Discard(late)) == Settled(lost=frozenset({late.id}))
    assert settle(store, Discard(holder)) == NOTHING_AMISS


def test_a_discarded_attempt_whose_message_was_replaced_leaves_no_history_either(store):
    store.at(NOW).offer(message("a", "1"))
    running = claim_one(store)
    store.at(NOW).offer(message("a", "2"))

    assert settle(store, Discard(running)) == Settled(superseded=frozenset({running.id}))
    assert (claim_one(store).payload, outcomes()) == ("2", [])


@pytest.mark.parametrize(("given", "kept"), [(None, "1"), ("2", "2")])
def test_a_message_given_back_keeps_its_metadata_unless_it_gets_another(store, given, kept):
    store.at(NOW).offer(message("a", metadata="1"))
    settle(store, put_back(claim_one(store), metadata=given))
    assert live("a").metadata == kept


def test_matching_messages_are_claimed_from_the_watermark_of_their_lane_on(store):
    for seconds in (-2, -1):
        store.at(NOW).offer(message(f"{seconds}", '{"region":"eu"}', scheduled_at=at(seconds)))
    store.at(NOW).offer(message("us", '{"region":"us"}'))
    store.at(NOW).offer(message("urgent", '{"region":"eu"}', priority=5))

    lane = Lane("mail", 0, at(-1))
    assert keys(store.at(NOW).claim_matching(lane, [EU], 9, LEASE, "first")) == ["-1"]
    assert keys(store.at(NOW).claim_matching(LANE, [EU], 9, LEASE, "first")) == ["-2"]


def test_a_chosen_message_is_leased_only_while_it_is_free_and_the_same(store):
    offered = store.at(NOW).offer(message("a", scheduled_at=at(60)))

    assert store.at(NOW).claim_unchanged(offered.id, 1, LEASE, "first") is None
    claimed = store.at(NOW).claim_unchanged(offered.id, 0, LEASE, "first")
    assert (claimed.key, claimed.attempt) == ("a", 1)
    assert store.at(at(59)).claim_unchanged(offered.id, 0, LEASE, "second") is None
    assert store.at(at(60)).claim_unchanged(offered.id, 0, LEASE, "second").attempt == 2


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(("key", "dropped"), [("a", 1), ("b", 0), (None, 3)])
def test_a_queue_is_dropped_by_key_or_as_a_whole(store, key, dropped, recorded):
    store.at(NOW).offer_many([bare("a"), bare("c"), bare(), message("a")])

    assert store.at(NOW).drop("contacts|json", key, recorded=recorded) == dropped
    assert Message.objects.count() == 4 - dropped
    assert outcomes() == ["cancelled"] * (dropped if recorded else 0)
    assert set(FinishedMessage.objects.values_list("finished_at", flat=True)) <= {NOW}


def test_what_is_no_key_is_not_dropped(store):
    for recorded in (True, False):
        with pytest.raises(InvalidKey):
            store.drop("contacts|json", "", recorded=recorded)


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_filtered_claim_goes_by_the_due_index_and_sorts_nothing(store, connection):
    store.at(NOW).offer_many([bare(payload='{"region":"us"}') for _ in range(500)])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE delayedq_message")  # or it plans for what other tests had in the table
    with CaptureQueriesContext(connection) as captured:
        store.at(NOW).claim_matching(Lane("contacts|json", 0), [EU], 10, LEASE, "first")
    (statement,) = [query["sql"] for query in captured if "UPDATE" in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {statement}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "delayedq_due" in plan
    assert "Sort" not in plan
