"""Plans on SQLite: each statement of the queue goes by an index, and its cost does not grow with the table.

The cost of a verb is the number of instructions that SQLite's machine runs for it: the same on every computer.
"""

from __future__ import annotations

from functools import partial

import pytest
from django.db import transaction
from django.test.utils import CaptureQueriesContext

from delayedq.store.protocol import ClaimRequest, Lane
from tests.store.given import KIND, LANE, LEASE, NOW, at, claim, message, settle, succeed, undone

pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)

#: How many instructions pass between two counts.
STEP = 20
#: What a few more levels of an index may cost, where one message more would cost about as much.
SOME = 400


def plans(connection, act):
    """The steps of the plans of all statements about messages that a verb sends; what it does is undone."""
    with undone(connection.alias), CaptureQueriesContext(connection) as captured:
        act()
    with connection.cursor() as cursor:
        for query in captured:
            sql = query["sql"].partition(" times: ")[2] or query["sql"]
            if "delayedq_" in sql:
                cursor.execute(f"EXPLAIN QUERY PLAN {sql.replace('%s', 'NULL')}")
                yield from (row[3] for row in cursor.fetchall())


def cost(connection, act):
    """In instructions; what it does is undone."""
    steps = 0

    def count():
        nonlocal steps
        steps += STEP

    connection.ensure_connection()
    with undone(connection.alias):
        connection.connection.set_progress_handler(count, STEP)
        try:
            act()
        finally:
            connection.connection.set_progress_handler(None, 0)
    return steps


def fill(store, first, last, **fields):
    store.at(NOW).offer_many(message(f"key-{n}", scheduled_at=at(n), **fields) for n in range(first, last + 1))


def verbs(store):
    done = claim(store, 5)
    held = [(claimed.id, claimed.token) for claimed in done]
    outcomes = [succeed(claimed) for claimed in done]
    return {
        "claim": partial(claim, store, 5),
        "scan": partial(store.at(NOW).scan, None),
        "finish": partial(settle, store, *outcomes),
        "settle_and_claim": partial(store.at(NOW).settle_and_claim, outcomes, ClaimRequest([LANE], 5, LEASE, "w")),
        "renew": partial(store.at(NOW).renew, held, LEASE),
        "release": partial(store.release, held),
        "unschedule": partial(store.at(NOW).unschedule, KIND, "key--3"),
        "in_history": partial(store.in_history, [1, 2, 3]),
        "prune": partial(store.at(at(999_999)).prune, LEASE, 5),
    }


@pytest.mark.parametrize("analysed", [True, False], ids=["analysed", "never analysed"])
def test_every_verb_goes_by_index(store, connection, analysed):
    fill(store, -500, 500)
    settle(store, *map(succeed, claim(store, 50)))
    if analysed:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")

    try:
        for name, act in verbs(store).items():
            for step in plans(connection, act):
                assert "TEMP B-TREE" not in step, f"{name}: {step}"
                assert not step.startswith("SCAN delayedq") or "USING COVERING INDEX delayedq_due" in step, (
                    f"{name}: {step}"
                )
    finally:
        if analysed:
            with connection.cursor() as cursor:
                cursor.execute("DELETE FROM sqlite_stat1")


def test_a_claim_searches_the_due_index_by_queue_priority_and_time(store, connection):
    fill(store, 0, 0)
    steps = list(plans(connection, partial(claim, store)))

    assert [
        step for step in steps if "delayedq_due (queue=? AND priority=? AND scheduled_at>? AND scheduled_at<?)" in step
    ]
    assert [step for step in steps if "INTEGER PRIMARY KEY (rowid=?)" in step]


def test_no_verb_costs_more_when_the_backlog_is_a_hundred_times_as_long(store, connection, alias):
    fill(store, -300, 0)
    few = {name: cost(connection, act) for name, act in verbs(store).items()}
    fill(store, -30_000, -301)
    fill(store, 1, 30_000)
    many = {name: cost(connection, act) for name, act in verbs(store).items()}

    assert {name: steps for name, steps in many.items() if steps > few[name] + SOME} == {}


def test_a_claim_is_not_slowed_by_future_messages_of_a_higher_priority(store, connection):
    lanes = [Lane("mail", 100), Lane("mail", -1)]
    store.at(NOW).offer(message("due", priority=-1))
    alone = cost(connection, partial(claim, store, lanes=lanes))
    fill(store, 1, 20_000, priority=100)

    assert cost(connection, partial(claim, store, lanes=lanes)) <= alone + SOME


def test_a_claim_is_as_cheap_after_many_messages_have_been_processed(store, connection, alias):
    fill(store, -5_000, -1)
    before = cost(connection, partial(claim, store))
    with transaction.atomic(using=alias):
        while claimed := claim(store, 1000):
            settle(store, *map(succeed, claimed))
    store.at(NOW).offer(message("last"))

    assert cost(connection, partial(claim, store)) <= before + SOME


def test_each_message_is_in_three_indexes_and_the_lease_is_in_none(connection):
    with connection.cursor() as cursor:
        cursor.execute("SELECT sql FROM sqlite_master WHERE tbl_name = 'delayedq_message' AND type = 'index'")
        definitions = [row[0] for row in cursor.fetchall()]
    (made_by,) = (definition for definition in definitions if "delayedq_made_by" in definition)
    assert "WHERE metadata LIKE " in made_by, "only messages that a task has made have an entry"
    assert len(definitions) == 2 + 1, "and the table itself is the index of its primary key"
    assert not [definition for definition in definitions if "lease" in definition or "attempt" in definition]
