"""Plans on PostgreSQL: each statement of the queue goes by an index, whatever is in the table and in its statistics.

The statements are those that the store really sent, captured and explained.
"""

from __future__ import annotations

import json
import re
from functools import partial
from math import inf

import pytest
from django.db import NotSupportedError, ProgrammingError, transaction

from delayedq.store.postgresql import database
from delayedq.store.postgresql import store as postgresql
from delayedq.store.protocol import ClaimRequest, Lane
from tests.autovacuum import outlast_autovacuum
from tests.store.given import KIND, LANE, LEASE, NOW, at, claim, claim_one, message, settle, succeed, undone

pytestmark = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)

DUE, PRIMARY, KEY = "delayedq_due", "delayedq_message_pkey", "delayedq_key"

FILL = """
INSERT INTO delayedq_message (queue, kind, key, priority, max_attempts, payload, scheduled_at, scheduled_at_initially,
    created_at, attempt, generation)
SELECT 'mail', 'tests.remind', {key}, {priority}, 1, '{{}}', at, at, %(now)s, 0, 0
FROM (SELECT n, %(now)s::timestamptz + n * interval '1 {unit}' AS at FROM generate_series({first}, {last}) AS n) AS made
"""
HISTORY = """
INSERT INTO delayedq_finishedmessage (id, finished_at, scheduled_at, scheduled_at_initially, created_at, priority,
    attempts, max_attempts, outcome, queue, kind, payload)
SELECT -n, %(now)s::timestamptz + n * interval '1 second', %(now)s, %(now)s, %(now)s, 0,
    1, 1, 'succeeded', 'mail', 'k', ''
FROM generate_series(1, 50000) AS n
"""


@pytest.fixture
def table(store, connection):
    """Runs SQL on a message table that was never analysed, is not vacuumed behind the test's back, and is new after."""

    def run(statement):
        with connection.cursor() as cursor:
            cursor.execute(statement, {"now": NOW})

    run("TRUNCATE delayedq_message; ALTER TABLE delayedq_message SET (autovacuum_enabled = off)")
    run("TRUNCATE delayedq_channelmessage")  # which others have analysed
    run("ALTER TABLE delayedq_channelmessage SET (autovacuum_enabled = off)")
    run("DELETE FROM pg_statistic WHERE starelid::regclass::text IN ('delayedq_message', 'delayedq_channelmessage')")
    yield run
    run("TRUNCATE delayedq_message; ALTER TABLE delayedq_message RESET (autovacuum_enabled)")
    run("ALTER TABLE delayedq_channelmessage RESET (autovacuum_enabled)")
    run("TRUNCATE delayedq_finishedmessage; ANALYZE delayedq_finishedmessage")


def fill(table, first, last, *, unit="second", priority=0, key="'key-' || n"):
    table(FILL.format(first=first, last=last, unit=unit, priority=priority, key=key))


class Plan:
    """How a verb's statement was carried out: the nodes that were executed, and how many blocks it touched.

    any_values: by the plan that the server makes of a prepared statement.
    """

    def __init__(self, connection, act, *, any_values=False):
        sql, parameters = _sent(connection, act)
        with undone(connection.alias), connection.cursor() as cursor:
            if any_values:
                numbered, names = database._numbered(sql)
                cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
                cursor.execute(f"PREPARE verb AS {numbered}", None)
                sql, parameters = f"EXECUTE verb ({', '.join(['%s'] * len(names))})", [parameters[n] for n in names]
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", parameters)
            answer = cursor.fetchone()[0]
            if any_values:
                cursor.execute("DEALLOCATE verb")
        explained = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
        self.blocks = explained["Shared Hit Blocks"] + explained["Shared Read Blocks"]
        self.nodes = [node for node in _nodes(explained) if node["Actual Loops"]]

    @property
    def indexes(self):
        return {node["Index Name"] for node in self.nodes if "Index Name" in node}

    @property
    def scanned(self):
        """The tables that were read from end to end, but for those that never have more than a few rows."""
        read = {node["Relation Name"] for node in self.nodes if node["Node Type"] == "Seq Scan"}
        return read - {"delayedq_pausedqueue", "delayedq_pausedtask", "delayedq_pipeline_archivebatch"}

    @property
    def visited(self):
        """How many index entries of messages were looked at, kept or not."""
        scans = [node for node in self.nodes if "Index Name" in node]
        return sum((n["Actual Rows"] + n.get("Rows Removed by Filter", 0)) * n["Actual Loops"] for n in scans)


def _sent(connection, act):
    """The one statement about messages that a verb sends, and its parameters; what it does is undone."""
    sent = []

    def hear(execute, sql, parameters, many, context):
        sent.append((sql, parameters))
        return execute(sql, parameters, many, context)

    with undone(connection.alias), connection.execute_wrapper(hear):
        act()
    (statement,) = [(sql, given) for sql, given in sent if re.search(r"(?<!')delayedq_(finished)?message\b", sql)]
    return statement


def _nodes(plan):
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def verbs(store, batch=5):
    """Each verb about messages that are there, with the indexes it may use."""
    done = claim(store, batch)
    held = [(claimed.id, claimed.token) for claimed in done]
    outcomes = [succeed(claimed) for claimed in done]
    return {
        "claim": (partial(claim, store, batch), {DUE, PRIMARY}),
        "scan": (partial(store.at(NOW).scan, None), {DUE}),
        "finish": (partial(settle, store, *outcomes), {PRIMARY}),
        "settle_and_claim": (
            partial(store.at(NOW).settle_and_claim, outcomes, ClaimRequest([LANE], batch, LEASE, "w")),
            {DUE, PRIMARY},
        ),
        "renew": (partial(store.at(NOW).renew, held, LEASE), {PRIMARY}),
        "release": (partial(store.release, held), {PRIMARY, "delayedq_channelmessage_pkey"}),
        "unschedule": (partial(store.at(NOW).unschedule, KIND, "key--3"), {KEY}),
    }


def ways(name, number):
    """In which ways this verb is planned for so many messages."""
    return [False, True] if name in {"claim", "finish", "settle_and_claim"} and number <= database.FEW else [False]


def assert_by_index(store, connection, blocks, batch=5):
    for name, (act, indexes) in verbs(store, batch).items():
        for any_values in ways(name, batch):
            plan = Plan(connection, act, any_values=any_values)
            assert not plan.scanned, f"{name} reads {plan.scanned} from end to end"
            assert plan.indexes == indexes, f"{name} uses {plan.indexes}"
            assert plan.blocks < blocks, f"{name} touches {plan.blocks} blocks"


# Few, new and many messages


def test_every_verb_touches_a_few_blocks_of_a_small_table(store, connection, table):
    fill(table, -9, 0)
    blocks = {
        (name, any_values): Plan(connection, act, any_values=any_values).blocks
        for name, (act, _) in verbs(store).items()
        for any_values in ways(name, 5)
    }
    assert {name: number for name, number in blocks.items() if number > 80} == {}


def test_every_verb_goes_by_index_on_a_table_that_was_analysed_when_empty(store, connection, table):
    table("ANALYZE delayedq_message")
    fill(table, -20_000, 0)
    assert_by_index(store, connection, 200)


def test_every_verb_goes_by_index_on_a_table_that_was_full_and_is_vacuumed(store, connection, table):
    """Its indexes are deep, and the planner thinks it empty: the due index looked as good as the primary key."""
    fill(table, -60_000, 0)
    table("DELETE FROM delayedq_message")
    outlast_autovacuum()
    table("VACUUM ANALYZE delayedq_message")
    fill(table, -20_000, 0)
    assert_by_index(store, connection, 200)


@pytest.mark.parametrize(("few", "plans"), [(3, []), (4, [(5, 1)])])
def test_a_batch_of_many_is_planned_for_its_length_and_one_of_few_is_not(store, connection, monkeypatch, few, plans):
    """Even if the connection prepares all statements. The first is not prepared, as it may be the only one."""
    connection.close()
    connection.ensure_connection()
    monkeypatch.setattr(connection.connection, "prepare_threshold", 0)
    monkeypatch.setattr(database, "PLANS_LAST", inf)
    monkeypatch.setattr(postgresql, "FEW", few)
    store.at(NOW).offer_many([message(key=None) for _ in range(40)])
    done = claim(store, 4)
    for _ in range(7):
        store.at(NOW).renew([(claimed.id, claimed.token) for claimed in done], LEASE)
        done = (
            store.at(NOW)
            .settle_and_claim([succeed(claimed) for claimed in done], ClaimRequest([LANE], 4, LEASE, "w"))
            .claimed
        )
    assert ends_planned(connection) == plans


def ends_planned(connection):
    """How often the prepared statements that end messages were planned for their values, and how often not."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT custom_plans, generic_plans FROM pg_prepared_statements "
            "WHERE NOT from_sql AND statement LIKE '%%DELETE FROM delayedq_message%%'"
        )
        return cursor.fetchall()


@pytest.fixture
def ends_by_themselves(store, connection, monkeypatch):
    """Ends messages one by one, as exactly-once tasks do: the first is not prepared."""
    connection.close()
    monkeypatch.setattr(database, "PLANS_LAST", inf)

    def run():
        for _ in range(9):
            store.at(NOW).offer(message(key=None))
            settle(store, succeed(claim_one(store)))
        return ends_planned(connection)

    return run


def test_an_end_by_itself_is_not_planned_again_on_a_large_table(table, ends_by_themselves):
    fill(table, -20_000, -10_000)
    table("ANALYZE delayedq_message")
    assert ends_by_themselves() == [(5, 3)]


def test_its_plan_does_not_outlive_the_time_when_the_table_was_empty(
    store, connection, table, ends_by_themselves, monkeypatch
):
    """PostgreSQL would read a table from end to end that had one page when it planned."""
    table("VACUUM ANALYZE delayedq_message")
    assert ends_by_themselves() == [(5, 3)]
    fill(table, -20_000, 0)
    done = claim(store, 1)

    monkeypatch.setattr(database._USES[connection.connection], "planned_at", -inf)
    read = "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'delayedq_message'"
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute(read)
        before = cursor.fetchone()
        settle(store, *map(succeed, done))
        cursor.execute(read)
        assert cursor.fetchone() == before


def test_nothing_is_prepared_again_where_sessions_change_unseen(store, connection, monkeypatch, caplog):
    """As behind a pooler that tells its clients the process of a session: one statement fails, and that is told."""
    connection.close()
    monkeypatch.setattr(database, "_POOLED", set())
    monkeypatch.setattr(database, "PLANS_LAST", inf)
    store.at(NOW).offer_many([message(key=None) for _ in range(9)])
    claim(store)
    claim(store)
    assert prepared(connection) > 0
    with connection.cursor() as cursor:
        cursor.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")  # psycopg does not learn of it

    with pytest.raises(ProgrammingError, match="does not exist"):
        claim(store)
    assert len([claim_one(store) for _ in range(3)]) == 3
    assert prepared(connection) == 0
    assert "not prepared any more" in caplog.text
    connection.close()


def test_a_session_is_given_up_that_knows_statements_of_other_types(store, connection, monkeypatch):
    """As after a migration: PostgreSQL refuses a prepared statement whose columns have other types, as long as its
    session lasts.
    """
    connection.close()
    monkeypatch.setattr(database, "PLANS_LAST", inf)
    store.at(NOW).offer_many([message(key=None) for _ in range(9)])
    claim(store)
    claim(store)
    change = "ALTER TABLE delayedq_message ALTER COLUMN payload TYPE {}".format
    with connection.cursor() as cursor:
        cursor.execute(change("varchar(99)"))
    try:
        with pytest.raises(NotSupportedError, match="cached plan"):
            claim(store)
        assert len([claim_one(store) for _ in range(3)]) == 3
    finally:
        with connection.cursor() as cursor:
            cursor.execute(change("text"))
        connection.close()


def prepared(connection):
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE NOT from_sql")
        return cursor.fetchone()[0]


def test_renewals_beside_locked_rows_are_looked_up_for_expired_leases_alone(store, connection, table):
    fill(table, -30, 0)
    claim(store, 3)
    claim(store, 2, lease=-LEASE)
    plan = Plan(connection, partial(claim, store, 9))
    lookups = [node["Actual Loops"] for node in plan.nodes if node.get("Relation Name") == "delayedq_lockedrenewal"]
    assert 1 <= sum(lookups) <= 2


def test_every_verb_goes_by_index_on_a_fresh_table(store, connection, table):
    fill(table, -25_000, 25_000)
    assert_by_index(store, connection, 200)


def test_every_verb_goes_by_index_on_a_large_analysed_backlog(store, connection, table):
    fill(table, -200_000, 0)
    table("ANALYZE delayedq_message")
    assert_by_index(store, connection, 200)


@pytest.mark.parametrize("analysed", [True, False], ids=["analysed", "never analysed"])
def test_a_large_batch_goes_by_index_too(store, connection, table, analysed):
    fill(table, -50_000, 0)
    if analysed:
        table("ANALYZE delayedq_message")
    assert_by_index(store, connection, 12_000, batch=500)


def test_a_claim_from_an_empty_table_visits_nothing(store, connection, table):
    plan = Plan(connection, partial(claim, store))

    assert (plan.visited, plan.blocks < 10) == (0, True)


# The claim of one message, in the cases that have hurt other queues


def claims_one_in_a_few_blocks(store, connection, lanes):
    for any_values in ways("claim", 1):
        plan = Plan(connection, partial(claim, store, 1, lanes=lanes), any_values=any_values)
        assert plan.indexes == {DUE, PRIMARY}
        assert plan.blocks <= 40, f"{plan.blocks} blocks"
        assert plan.visited <= 4, f"{plan.visited} index entries"
    return claim_one(store, lanes=lanes)


@pytest.mark.parametrize("analysed", [True, False], ids=["analysed", "never analysed"])
def test_a_claim_is_not_slowed_by_future_messages_of_a_higher_priority(store, connection, table, analysed):
    fill(table, 1, 200_000, priority=100)
    store.at(NOW).offer(message("due", priority=-1))
    if analysed:
        table("ANALYZE delayedq_message")

    lanes = [Lane("mail", 100), Lane("mail", -1)]
    assert claims_one_in_a_few_blocks(store, connection, lanes).key == "due"


@pytest.mark.parametrize("analysed", [True, False], ids=["analysed", "never analysed"])
def test_a_claim_is_not_slowed_by_a_backlog(store, connection, table, analysed):
    fill(table, -200_000, 0)
    if analysed:
        table("ANALYZE delayedq_message")

    assert claims_one_in_a_few_blocks(store, connection, [LANE]).key == "key--200000"


def test_a_claim_is_not_slowed_by_many_priorities(store, connection, table):
    fill(table, 0, 99_999, priority="n %% 1000", unit="microsecond")
    table("ANALYZE delayedq_message")
    lanes = [Lane("mail", priority) for priority in range(999, -1, -1)]

    assert claims_one_in_a_few_blocks(store, connection, lanes[-1:]).priority == 0
    looked = Plan(connection, partial(store.at(NOW).scan, None))
    assert looked.indexes == {DUE}
    assert looked.visited <= 2 * 1000 + 2


def test_a_scan_visits_two_entries_of_each_lane_however_full_it_is(store, connection, table):
    fill(table, -50_000, 50_000, priority="n %% 5")
    table("ANALYZE delayedq_message")

    looked = Plan(connection, partial(store.at(NOW).scan, None))
    assert (looked.indexes, looked.visited <= 2 * 9 + 2) == ({DUE}, True)
    assert looked.blocks <= 120


# What has ended


def test_a_claim_is_as_cheap_after_many_messages_have_been_processed(store, connection, table):
    fill(table, -20_000, -1)
    before = Plan(connection, partial(claim, store)).blocks
    while claimed := claim(store, 1000):
        settle(store, *map(succeed, claimed))
    outlast_autovacuum()
    table("VACUUM delayedq_message")
    store.at(NOW).offer(message("last"))

    assert Plan(connection, partial(claim, store)).blocks <= before
    assert claim_one(store).key == "last"


def test_with_watermarks_claims_and_scans_ahead_stay_cheap_beside_a_transaction_that_keeps_dead_rows_alive(
    store, connection, table
):
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM delayedq_message")
        fill(table, -20_000, -1)
        while claimed := claim(store, 1000):
            settle(store, *map(succeed, claimed))
            watermark = claimed[-1].scheduled_at
        store.at(NOW).offer(message("last"))

        from_the_start = Plan(connection, partial(claim, store)).blocks
        known = [LANE._replace(watermark=watermark)]
        from_the_floor = max(
            Plan(connection, partial(claim, store, lanes=known), any_values=any_values).blocks
            for any_values in ways("claim", 1)
        )
        scan, ahead = (Plan(connection, act).blocks for act in (store.scan, partial(store.scan_ahead, known)))
    finally:
        other.close()
    assert from_the_floor <= 40
    assert ahead <= 40
    assert scan > 10 * ahead
    assert from_the_start > 10 * from_the_floor, "the dead rows are gone: this test shows nothing"


def test_history_is_read_by_index_only(store, connection, table):
    table(HISTORY)
    table("ANALYZE delayedq_finishedmessage")

    pruned = Plan(connection, partial(store.at(at(999_999)).prune, LEASE, 10))
    history = {name for name in pruned.indexes if "finishedmessage" in name}
    assert (pruned.scanned, len(history)) == (set(), 2), pruned.indexes
    assert pruned.blocks <= 60
    found = Plan(connection, partial(store.in_history, [-1, -2]))
    assert (found.scanned, found.indexes) == (set(), {"delayedq_finishedmessage_pkey"})


# The table itself


UPDATES = """
SELECT pg_stat_get_xact_tuples_updated(oid), pg_stat_get_xact_tuples_hot_updated(oid)
FROM pg_class WHERE oid = 'delayedq_message'::regclass
"""


def test_a_claim_writes_no_index(store, connection, alias, table):
    fill(table, -999, 0)
    with transaction.atomic(using=alias), connection.cursor() as cursor:
        cursor.execute(UPDATES)
        updated, heap_only = cursor.fetchone()
        claim(store, 100)
        cursor.execute(UPDATES)
        after = cursor.fetchone()
    assert after[0] - updated == 100
    assert after[1] - heap_only > 75, "the last rows of a page may find no room in it"


def test_each_message_is_in_three_indexes_and_the_lease_is_in_none(connection):
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'delayedq_message'")
        definitions = [row[0] for row in cursor.fetchall()]
    (made_by,) = (definition for definition in definitions if "delayedq_made_by" in definition)
    assert "WHERE (metadata ~~ " in made_by, "only messages that a task has made have an entry"
    assert len(definitions) == 3 + 1
    assert not [definition for definition in definitions if "lease" in definition or "attempt" in definition]
