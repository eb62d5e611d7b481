"""What the doctor says of PostgreSQL: each condition is created, and named with its cure."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import timedelta

import pytest
import time_machine
from django.db import connections

from delayedq.operations import doctor
from delayedq.operations.doctor import diagnose
from delayedq.operations.verdict import verdict
from delayedq.store.postgresql.partitions import month
from tests.app import tasks
from tests.operations.test_doctor import conditions, execute, said
from tests.partitioned import plain_afterwards
from tests.server import standby_socket
from tests.store.given import message

pytestmark = [
    pytest.mark.parametrize("alias", ["postgresql"], indirect=True),
    pytest.mark.usefixtures("no_statistics_of_other_tests"),
]
ECHO = tasks.echo.module_path


def later(store):
    return message(scheduled_at=store.now() + timedelta(days=1), kind=ECHO, payload='"' + "x" * 500 + '"')


def test_a_clock_that_is_wrong(store):
    with time_machine.travel(store.now() + timedelta(hours=1)):
        (skew,) = doctor.clocks(store)

    assert skew.condition == "clock skew"
    assert "differs by 3,6" in skew.sentence


def test_a_transaction_that_pins_vacuum(store, monkeypatch):
    monkeypatch.setattr(doctor, "PINNED", 0.0)
    other = connections[store.alias].copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT pg_backend_pid() FROM delayedq_message RIGHT JOIN (SELECT 1) AS one ON true LIMIT 1")
            (pid,) = cursor.fetchone()
        (pinned,) = diagnose(store)
    finally:
        other.close()

    assert pinned.condition == "pinned vacuum"
    assert f"pg_terminate_backend({pid})" in pinned.cure


def test_storage_that_was_changed(store):
    execute(store, "ALTER TABLE delayedq_message SET (fillfactor = 100, autovacuum_enabled = false)")
    try:
        assert conditions(store) == ["fillfactor", "autovacuum"]
    finally:
        execute(store, "ALTER TABLE delayedq_message SET (fillfactor = 45)")
        execute(store, "ALTER TABLE delayedq_message RESET (autovacuum_enabled)")


def test_an_invalid_index(store):
    execute(store, "TRUNCATE delayedq_message")  # Of a short table, no plan is bad.
    execute(store, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'delayedq_due'::regclass")
    try:
        assert conditions(store) == ["invalid index"]
    finally:
        execute(store, "UPDATE pg_index SET indisvalid = true WHERE indexrelid = 'delayedq_due'::regclass")


def test_updates_that_write_indexes_and_dead_rows(store, monkeypatch):
    monkeypatch.setattr(doctor, "DEAD", 1_000)
    store.offer_many([message(scheduled_at=store.now() + timedelta(days=1), kind=ECHO)] * 10)
    execute(
        store,
        "ALTER TABLE delayedq_message SET (autovacuum_enabled = false)",
        "SELECT pg_stat_reset_single_table_counters('delayedq_message'::regclass)",
        "CREATE INDEX yours ON delayedq_message (generation)",
    )
    try:
        for _ in range(200):
            execute(store, "UPDATE delayedq_message SET generation = generation + 1")
        execute(store, "SELECT pg_stat_force_next_flush()", "SELECT 1")
        assert set(conditions(store)) == {"autovacuum", "heap-only updates", "dead rows"}
    finally:
        execute(store, "DROP INDEX yours", "ALTER TABLE delayedq_message RESET (autovacuum_enabled)")
        execute(store, "SELECT pg_stat_reset_single_table_counters('delayedq_message'::regclass)")


def test_planner_settings_that_keep_the_claim_from_its_index(store):
    store.offer_many(
        [message(scheduled_at=store.now() + timedelta(days=1), kind=ECHO, payload='"' + "x" * 500 + '"')] * 2_000
    )
    execute(store, "SET enable_indexscan = off", "SET enable_bitmapscan = off")
    try:
        (plan,) = diagnose(store)
    finally:
        connections[store.alias].close()

    assert plan.condition == "plan of the claim"
    assert "Seq Scan delayedq_message" in plan.sentence
    assert "enable_indexscan" in plan.cure


AVAILABLE = "SELECT 1 FROM pg_available_extensions WHERE name = 'pgstattuple'"
FILL = "INSERT INTO {} (n, text) SELECT n, repeat('x', 500) FROM generate_series(1, 5000) AS n"


@pytest.fixture
def others(store):
    """A table of the project's own, as bloated as ours, and with a name like ours."""
    execute(
        store,
        "CREATE TABLE delayedq_yours (n bigint PRIMARY KEY, text text)",
        FILL.format("delayedq_yours"),
        "DELETE FROM delayedq_yours WHERE n < 5000",
        "VACUUM delayedq_yours",
        "UPDATE pg_index SET indisvalid = false WHERE indrelid = 'delayedq_yours'::regclass",
    )
    yield
    execute(store, "DROP TABLE delayedq_yours")


def bloated(store):
    """The cure for each table and index; other tests leave bloat in tables that are not asked for here."""
    return {one.sentence.split()[0]: one.cure for one in diagnose(store) if one.condition == "bloat"}


@pytest.fixture
def measuring(store):
    """With pgstattuple: the server of the wheel has none, that of CI's second run has."""
    if not connections[store.alias].cursor().execute(AVAILABLE).fetchone():
        pytest.skip("this server has no extension pgstattuple")
    execute(store, 'CREATE SCHEMA "Extra tools"', 'CREATE EXTENSION pgstattuple SCHEMA "Extra tools"')
    yield
    execute(store, 'DROP SCHEMA "Extra tools" CASCADE')


@pytest.mark.parametrize("measured", [False, True], ids=["estimated", "measured"])
def test_bloat_of_our_tables_and_no_others(store, others, monkeypatch, measured, request):
    if measured:
        request.getfixturevalue("measuring")
    monkeypatch.setattr(doctor, "BLOATED", 2**16)
    execute(store, "TRUNCATE delayedq_message", "CREATE INDEX own ON delayedq_message USING hash (id)")
    store.offer_many([later(store)] * 5_000)
    assert bloated(store).keys() & {"delayedq_message", "delayedq_due"} == set()
    # The last row stays: vacuum returns to the system only what is empty at the end of a table.
    execute(store, "DELETE FROM delayedq_message WHERE id < (SELECT max(id) FROM delayedq_message)")
    execute(store, "VACUUM delayedq_message", "SELECT pg_stat_force_next_flush()", "SELECT 1")
    try:
        cures = bloated(store)
    finally:
        execute(store, "TRUNCATE delayedq_message", "DROP INDEX own")

    assert cures["delayedq_message"].startswith("VACUUM (FULL) delayedq_message while workers are stopped")
    assert cures["delayedq_due"] == "REINDEX INDEX CONCURRENTLY delayedq_due"
    assert not any("yours" in name for name in cures)


@contextmanager
def plain_user(store, *revoked):
    """Connect as a user who may do with the tables what a worker does, and nothing else."""
    connection = connections[store.alias]
    superuser = connection.settings_dict["USER"]
    tables = "ALL TABLES IN SCHEMA public TO plain"
    execute(
        store,
        "CREATE ROLE plain LOGIN",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables}",
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO plain",
        *(f"REVOKE ALL ON {table} FROM plain" for table in revoked),
    )
    connection.close()
    connection.settings_dict["USER"] = "plain"
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["USER"] = superuser
        execute(store, "DROP OWNED BY plain", "DROP ROLE plain")


def test_what_a_user_may_not_see_could_not_be_checked(store):
    other = connections[store.alias].copy()
    try:
        other.ensure_connection()
        with plain_user(store, "delayedq_pipeline_archivebatch"):
            hidden, refused = diagnose(store)
            (unread,) = verdict(store)
        with plain_user(store):
            alone = said("doctor")
    finally:
        other.close()

    assert (hidden.condition, hidden.cure) == ("hidden sessions", "GRANT pg_read_all_stats TO plain")
    assert alone == (0, f"{store.alias}: {hidden.sentence}\n  Cure: {hidden.cure}\n")
    assert (refused.condition, "permission denied" in refused.sentence) == ("unchecked", True)
    assert "archives" in refused.sentence
    assert (unread.subject, "permission denied" in unread.sentence) == ("unread archive", True)


@pytest.mark.parametrize("measured", [False, True], ids=["without", "with pgstattuple"])
def test_bloat_is_estimated_for_a_user_who_may_not_measure(store, monkeypatch, measured, request):
    """Of all tables; one of the pipeline's has no primary key."""
    if measured:
        request.getfixturevalue("measuring")
    monkeypatch.setattr(doctor, "BLOATED", 0)
    with plain_user(store):
        assert "unchecked" not in conditions(store)


def test_a_user_who_may_not_claim(store):
    with plain_user(store, "delayedq_message"):
        (refused,) = diagnose(store)

    assert (refused.condition, "permission denied" in refused.sentence) == ("database", True)


def test_a_database_that_does_not_answer(store):
    connection = connections[store.alias]
    connection.close()
    name = connection.settings_dict["NAME"]
    connection.settings_dict["NAME"] = "nowhere"
    try:
        (refused,) = diagnose(store)
    finally:
        connection.close()
        connection.settings_dict["NAME"] = name

    assert (refused.condition, "nowhere" in refused.sentence) == ("database", True)


def test_a_listener_whose_address_is_wrong(store, settings):
    settings.DELAYEDQ = {"LISTENER_DSN": "host=/nowhere dbname=nothing"}
    (deaf,) = diagnose(store)

    assert (deaf.condition, deaf.sentence.startswith("No listener can connect: ")) == ("deaf listener", True)


@pytest.fixture
def standby(connection):
    """The connection of the test leads to a streaming standby of its server."""
    primary = connection.settings_dict["HOST"]
    with standby_socket(primary) as socket:
        connection.close()
        connection.settings_dict["HOST"] = socket
        yield
        connection.close()
        connection.settings_dict["HOST"] = primary


def test_a_standby_is_called_one(store, standby):
    (found,) = diagnose(store)

    assert (found.condition, "is a standby" in found.sentence) == ("standby", True)
    assert "the primary" in found.cure
    code, text = said("doctor", "--json")
    assert (code, json.loads(text)[0]["condition"]) == (1, "standby")


# Of a history in partitions


@pytest.fixture
def in_partitions(store, connection):
    with plain_afterwards(connection):
        [*store.partition_history(None)]
        yield store


def test_a_history_in_partitions_is_well(in_partitions):
    assert conditions(in_partitions) == []


def test_a_constraint_that_was_left(store, connection):
    with plain_afterwards(connection):
        next(store.partition_history(None))
        (left,) = diagnose(store)
        execute(store, left.cure.partition(": ")[2])
        assert conditions(store) == []
    assert (left.condition, "refuses rows" in left.sentence) == ("left constraint", True)


def test_months_that_nobody_has_made(in_partitions):
    store = in_partitions
    second = month(store.now(), 2)
    execute(store, f"DROP TABLE delayedq_finishedmessage_{second:%Y%m}")
    a_day = timedelta(days=1)
    (missing,) = doctor.partitions(store.at(month(store.now()) + 2 * a_day))

    assert (missing.condition, f"{second:%Y-%m}" in missing.sentence) == ("missing partition", True)
    assert "manage.py delayedq partition" in missing.cure
    assert [*doctor.partitions(store.at(month(store.now()) + a_day / 2))] == []  # a keeper does it today


FILL_HISTORY = """
INSERT INTO delayedq_finishedmessage (id, finished_at, scheduled_at, scheduled_at_initially, created_at, priority,
    attempts, max_attempts, outcome, queue, kind, payload)
SELECT -n - {first}, {finished_at}, now(), now(), now(), 0, 1, 1, 'succeeded', 'mail', 'k', repeat('x', 500)
FROM generate_series(1, 3000) AS n
"""


def test_bloat_of_all_partitions_together(in_partitions, monkeypatch):
    """Of two of the same size, one bloated part is no bloat of the whole."""
    store, table = in_partitions, "delayedq_finishedmessage"
    monkeypatch.setattr(doctor, "BLOATED", 2**21)
    full, empty = FILL_HISTORY.format(first=0, finished_at="now()"), f"DELETE FROM {table} WHERE id < -1 AND id > -3000"
    execute(store, full, FILL_HISTORY.format(first=9000, finished_at="now() + interval '10 years'"), empty)
    vacuum = f"VACUUM {table}", "SELECT pg_stat_force_next_flush()", "SELECT 1"
    execute(store, *vacuum)
    assert not [name for name in bloated(store) if name.startswith(table)]

    execute(store, f"DELETE FROM {table} WHERE id < -9001 AND id > -12000", *vacuum)
    assert bloated(store)[table].startswith(f"VACUUM (FULL) {table} while")


def test_an_invalid_index_of_a_partition(in_partitions):
    index = "delayedq_finishedmessage_rest_pkey"
    execute(in_partitions, f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{index}'::regclass")
    (invalid,) = diagnose(in_partitions)
    assert (invalid.condition, invalid.cure) == ("invalid index", f"REINDEX INDEX CONCURRENTLY {index}")
