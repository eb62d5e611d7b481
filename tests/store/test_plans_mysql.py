"""Plans on MariaDB and MySQL: each verb visits few rows, whatever else is in the table and whatever the statistics say.

The cost of a verb is the number of rows and index entries that the server's storage engine was asked for.
"""

from __future__ import annotations

from functools import partial

import pytest
from django.db import transaction
from django.test.utils import CaptureQueriesContext

from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import ClaimRequest, Lane
from tests.store.given import KIND, LANE, LEASE, NOW, at, claim, claim_one, message, settle, succeed, undone

pytestmark = pytest.mark.parametrize("alias", ["mariadb"], indirect=True)

#: What chance and the small tables, which each statement opens, may add to a verb of five messages; walking over others
#: would add thousands.
SOME = 25


def visits(connection):
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%%'", [])
        return sum(int(value) for _, value in cursor.fetchall())


def cost(connection, act):
    """In rows and index entries; what it does is undone."""
    with undone(connection.alias):
        itself = visits(connection)
        before = visits(connection)
        act()
        return visits(connection) - before - (before - itself)


def fill(store, first, last, **fields):
    store.at(NOW).offer_many(message(f"key-{n}", scheduled_at=at(n), **fields) for n in range(first, last + 1))


def analyse(connection):
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE TABLE delayedq_message, delayedq_finishedmessage")
        cursor.fetchall()


def verbs(store):
    done = claim(store, 5, lease=LEASE * 10_000)
    held = [(claimed.id, claimed.token) for claimed in done]
    outcomes = [succeed(claimed) for claimed in done]
    ended = list(FinishedMessage.objects.values_list("id", flat=True)[:3])
    waiting = list(Message.objects.filter(lease_token=None).values_list("id", flat=True)[:3])
    again = [message(claimed.key, "2") for claimed in done]
    return {
        "claim": partial(claim, store, 5),
        "claim one": partial(store.at(NOW).claim_unchanged, waiting[0], 0, LEASE, "w"),
        "scan": partial(store.at(NOW).scan, None),
        "peek": partial(store.at(NOW).peek, [LANE]),
        "offer": partial(store.at(NOW).offer, again[0]),
        "offer many": partial(store.at(NOW).offer_many, again),
        "finish": partial(settle, store, *outcomes),
        "settle_and_claim": partial(store.at(NOW).settle_and_claim, outcomes, ClaimRequest([LANE], 5, LEASE, "w")),
        "renew": partial(store.at(NOW).renew, held, LEASE),
        "release": partial(store.release, held),
        "unschedule": partial(store.at(NOW).unschedule, KIND, "key--3"),
        "withdraw": partial(store.at(NOW).withdraw, waiting, None),
        "in_history": partial(store.in_history, ended),
        "prune": partial(store.at(at(999_999)).prune, LEASE, 5),
    }


def costs(store, connection):
    return {name: cost(connection, act) for name, act in verbs(store).items()}


@pytest.mark.parametrize("analysed", ["after", "before", "never"])
def test_no_verb_costs_more_when_the_backlog_is_a_hundred_times_as_long(store, connection, analysed):
    fill(store, -200, 0)
    settle(store, *map(succeed, claim(store, 20)))
    if analysed == "before":
        analyse(connection)
    few = costs(store, connection)
    fill(store, 1, 20_000)
    fill(store, -4_200, -201)
    settle(store, *map(succeed, claim(store, 2_000)))
    if analysed == "after":
        analyse(connection)
    many = costs(store, connection)

    assert {name: visited for name, visited in few.items() if visited > 200} == {}
    assert {name: (few[name], visited) for name, visited in many.items() if visited > few[name] + SOME} == {}


def test_statistics_of_an_empty_table_make_nothing_scan_the_full_one(store, connection):
    """The server would rather scan a table which it takes for empty: reading is dear then, and locking is worse."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE delayedq_message STATS_AUTO_RECALC = 0")
    try:
        analyse(connection)
        fill(store, -3_000, 3_000)
        found = costs(store, connection)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE delayedq_message STATS_AUTO_RECALC = DEFAULT")
    assert {name: visited for name, visited in found.items() if visited > 200} == {}


def test_a_scan_takes_one_probe_per_lane_and_not_per_message(store, connection):
    for priority in range(10):
        fill(store, 1_000 * priority + 1, 1_000 * priority + 1_000, priority=priority)

    assert cost(connection, partial(store.at(NOW).scan, None)) < 100


def test_a_claim_is_not_slowed_by_future_messages_of_a_higher_priority(store, connection):
    lanes = [Lane("mail", 100), Lane("mail", -1)]
    store.at(NOW).offer(message("due", priority=-1))
    fill(store, 1, 10_000, priority=100)

    assert cost(connection, partial(claim, store, lanes=lanes)) <= SOME


def test_a_watermark_saves_walking_over_what_is_leased(store, connection):
    fill(store, -5_000, 0)
    claim(store, 5_000)
    lane = LANE._replace(watermark=at(-1))

    assert cost(connection, partial(claim, store, lanes=[LANE])) > 5_000
    assert cost(connection, partial(claim, store, lanes=[lane])) <= SOME
    assert cost(connection, partial(store.at(NOW).peek, [lane])) <= SOME


def test_a_watermark_saves_walking_over_what_is_dead(store, connection, alias):
    """The old snapshot of another transaction keeps the server from clearing away what has ended."""
    fill(store, -5_000, 0)
    with transaction.atomic(using=alias):
        while claimed := claim(store, 1_000):
            settle(store, *map(succeed, claimed))
        store.at(NOW).offer(message("last"))

        assert cost(connection, partial(claim, store, lanes=[LANE._replace(watermark=NOW)])) <= SOME


def test_a_claim_reads_one_range_of_the_due_index(store, connection):
    fill(store, -10, 10)
    claim_one(store)
    with CaptureQueriesContext(connection) as captured, undone(connection.alias):
        claim(store, 5)
    (select,) = [query["sql"] for query in captured if "SKIP LOCKED" in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN " + select.replace("%", "%%"), [])
        step, *others = (dict(zip([c[0] for c in cursor.description], row, strict=True)) for row in cursor.fetchall())
    assert (step["type"], step["key"]) == ("range", "delayedq_due")
    assert "filesort" not in step["Extra"]
    assert {other["table"] for other in others} == {"delayedq_pausedqueue", "delayedq_pausedtask", "renewal"}
    # What is paused is looked up, or read once: it has few rows.
    assert {other["type"] for other in others} <= {"unique_subquery", "eq_ref", "index"}


def test_the_message_table_has_three_indexes_and_the_lease_is_in_none(connection):
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, "delayedq_message")
    indexes = {name: index["columns"] for name, index in found.items() if index["index"] or index["unique"]}
    assert indexes == {
        "PRIMARY": ["id"],
        "delayedq_key": ["kind", "key"],
        "delayedq_due": ["queue", "priority", "scheduled_at", "id"],
    }
