"""`manage.py delayedq doctor` and `check-pending`: each condition is created, and named with its cure."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
import time_machine
from django.core.management import call_command
from django.db import connections

from delayedq.operations import doctor
from delayedq.operations.doctor import diagnose
from delayedq.operations.pending import check_pending
from delayedq.store import worker_registry
from tests.admin.given import offer
from tests.app import tasks
from tests.store.given import message
from tests.store.test_worker_registry import worker

on_postgresql = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
ECHO = tasks.echo.module_path


def conditions(store):
    return [one.condition for one in diagnose(store)]


def execute(store, *statements):
    with connections[store.alias].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_nothing_is_wrong_with_a_new_database(store):
    assert diagnose(store) == []


def test_what_the_dashboard_says_is_said_with_a_command(store):
    offer(store, "due", seconds=-300, queue="mail")
    (no_worker,) = diagnose(store)
    assert (no_worker.condition, no_worker.cure) == ("no worker", "manage.py run_workers")

    worker_registry(store.alias).heartbeat([worker("w1", queues="other", problems="deaf listener")])
    assert conditions(store) == ["unserved queue", "worker"]


def test_pending_migrations(store):
    with connections[store.alias].cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'delayedq'")
    try:
        assert conditions(store)[0] == "migrations"
    finally:
        call_command("migrate", "delayedq", fake=True, database=store.alias, verbosity=0)


DEFINITIONS = {
    "sqlite": "SELECT sql FROM sqlite_master WHERE name = 'delayedq_dead'",
    "postgresql": "SELECT pg_get_indexdef('delayedq_dead'::regclass)",
}


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_a_missing_index(store):
    with connections[store.alias].cursor() as cursor:
        cursor.execute(DEFINITIONS[connections[store.alias].vendor])
        ((definition,),) = cursor.fetchall()
    execute(store, "DROP INDEX delayedq_dead")
    try:
        (lost,) = diagnose(store)
    finally:
        execute(store, definition)

    assert (lost.condition, "delayedq_dead" in lost.sentence) == ("missing index", True)


def test_a_table_that_is_gone(store):
    execute(store, "ALTER TABLE delayedq_message RENAME TO elsewhere")
    try:
        assert "database" in conditions(store)
    finally:
        execute(store, "ALTER TABLE elsewhere RENAME TO delayedq_message")


@on_postgresql
def test_a_clock_that_is_wrong(store):
    with time_machine.travel(store.now() + timedelta(hours=1)):
        (skew,) = doctor.clocks(store)

    assert skew.condition == "clock skew"
    assert "differs by 36" in skew.sentence


@on_postgresql
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


@on_postgresql
def test_storage_that_was_changed(store):
    execute(store, "ALTER TABLE delayedq_message SET (fillfactor = 100, autovacuum_enabled = false)")
    try:
        assert conditions(store) == ["fillfactor", "autovacuum"]
    finally:
        execute(store, "ALTER TABLE delayedq_message SET (fillfactor = 45)")
        execute(store, "ALTER TABLE delayedq_message RESET (autovacuum_enabled)")


@on_postgresql
def test_an_invalid_index(store):
    execute(store, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'delayedq_due'::regclass")
    try:
        assert conditions(store) == ["invalid index"]
    finally:
        execute(store, "UPDATE pg_index SET indisvalid = true WHERE indexrelid = 'delayedq_due'::regclass")


@on_postgresql
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


# check-pending


def test_messages_that_this_version_can_run(store):
    offer(store, "a", kind=ECHO, payload='{"args": [1]}')

    assert check_pending(store) == (1, [])


def test_messages_of_unknown_tasks_and_arguments_that_do_not_fit(store):
    offer(store, "a", kind="gone.task", payload='{"args": [1]}')
    offer(store, "b", kind="gone.task", payload='{"args": [2]}')
    offer(store, "c", kind=tasks.report.module_path, payload='{"args": [1, 2]}')
    checked, found = check_pending(store)

    assert checked == 3
    assert {(one.kind, one.number) for one in found} == {("gone.task", 2), (tasks.report.module_path, 1)}


def said(*arguments):
    out = StringIO()
    try:
        call_command("delayedq", *arguments, stdout=out)
    except SystemExit as ended:
        return ended.code, out.getvalue()
    return 0, out.getvalue()


def test_the_commands_have_an_exit_code_and_json(store):
    assert said("doctor") == (0, "Nothing is wrong.\n")
    assert said("check-pending") == (0, "This version can run all 0 messages that wait.\n")
    offer(store, "a", kind="gone.task", seconds=-300)

    code, text = said("doctor", "--json")
    assert (code, json.loads(text)[0]["condition"]) == (1, "no worker")
    code, text = said("check-pending", "--json")
    assert (code, json.loads(text)[0]["kind"]) == (1, "gone.task")
    assert "Cure: manage.py run_workers" in said("doctor")[1]
