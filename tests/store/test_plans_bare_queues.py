"""What bare queues alone ask goes by an index, and visits a limited number of rows, however long the queue is.

Counted as in the plans of each store: index entries, instructions, or rows that the engine was asked for.
"""

from __future__ import annotations

from functools import partial

import pytest

from delayedq.core.conditions import Condition, KeyRange
from delayedq.store.bare_queues import Matching
from delayedq.store.protocol import Lane
from tests.store import test_plans_mysql, test_plans_sqlite
from tests.store.given import LEASE, NOW, at, message
from tests.store.test_plans_postgresql import DUE, KEY, PRIMARY, Plan, table  # noqa: F401  fixture

QUEUE = "contacts|json"
BARE = Lane(QUEUE, 0)
ONE = (Condition(("n",), ("1",)),)
RARE = KeyRange.of_prefix("rare")
PAGE = 50
#: Rows that are due before those of the test.
MANY = 4_000


@pytest.fixture
def long_queue(store, connection):
    """4,000 due messages, of which 3 have keys that begin with `rare`, at the end."""

    def fill(first, last):
        store.at(NOW).offer_many(bare(f"key-{n}", scheduled_at=at(n - 10_000)) for n in range(first, last))

    store.at(NOW).offer_many(bare(f"rare-{n}", scheduled_at=at(-n)) for n in range(3))
    return fill


def bare(key, **fields):
    return message(key, '{"n":1}', queue=QUEUE, kind=QUEUE, **fields)


def rare(store):
    return store.at(NOW).claim_matching(BARE, ONE, 2, LEASE, "w", RARE)


def deep(store, last):
    """The last page but one."""
    return partial(store.at(NOW).browse, BARE, store.browse(BARE, limit=last)[-1].position, PAGE)


@pytest.mark.parametrize("alias", ["sqlite", "mariadb"], indirect=True)
def test_a_deep_page_and_a_rare_prefix_cost_what_they_cost_in_a_short_queue(store, connection, long_queue, alias):
    counting = test_plans_mysql if alias == "mariadb" else test_plans_sqlite
    long_queue(0, 100)
    few = [counting.cost(connection, act) for act in (deep(store, 20), partial(rare, store))]
    long_queue(100, MANY)
    many = [counting.cost(connection, act) for act in (deep(store, MANY - 200), partial(rare, store))]

    assert [cost for cost, before in zip(many, few, strict=True) if cost > before + 2 * counting.SOME] == []
    assert len(rare(store)) == 2


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
@pytest.mark.parametrize("analysed", [True, False], ids=["analysed", "never analysed"])
@pytest.mark.usefixtures("table")
def test_a_deep_page_and_a_rare_prefix_visit_few_entries_on_postgresql(store, connection, long_queue, analysed):
    long_queue(0, MANY)
    if analysed:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE delayedq_message")

    page = Plan(connection, deep(store, MANY - 200))
    assert (page.scanned, page.indexes, page.visited <= PAGE) == (set(), {DUE}, True)

    counted = Plan(connection, partial(store._are_few, QUEUE, RARE))
    assert (counted.scanned, counted.indexes, counted.visited) == (set(), {KEY}, 3)
    matching = Matching(BARE, ONE, RARE, by_key=True)
    claimed = Plan(connection, partial(store.at(NOW)._claim_matching, matching, 2, LEASE, "w"))
    assert (claimed.scanned, claimed.indexes) == (set(), {KEY, PRIMARY})
    assert claimed.visited <= 3 + 2 * 2
