"""A change of a table waits for it a moment at a time: workers claim meanwhile, whoever holds the table."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules

import pytest
from django.db import OperationalError, connections
from django.db.migrations import AddField, CreateModel, RunPython
from django.db.migrations.state import ProjectState
from django.db.models import CharField

from delayedq.models import FinishedMessage, Message
from delayedq.store import online
from delayedq.store.connecting import separate
from delayedq.store.online import AddIndexOnline, OnlineMigration
from tests.app.tasks import nothing
from tests.upgrades.conftest import succeed
from tests.worker.conftest import eventually

WITH_LOCKS = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
ON_POSTGRESQL = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
TRIED_AGAIN = "A table is held by a transaction. Messages go on, and this migration is tried again in"


@contextmanager
def somebody_reads(alias):
    """A transaction that has read the live table, and stays open; yields its connection."""
    connection = separate(alias)
    try:
        connection.set_autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM delayedq_message")
        yield connection
    finally:
        connection.close()


def run_some(count=50):
    """Offer messages, and wait until workers have ended them."""
    before = FinishedMessage.objects.count()
    nothing.enqueue_many([((), {})] * count)
    eventually(lambda: FinishedMessage.objects.count() == before + count)


def columns(alias):
    with connections[alias].cursor() as cursor:
        found = connections[alias].introspection.get_table_description(cursor, Message._meta.db_table)
    return {one.name for one in found}


# With real workers


@pytest.mark.slow
@WITH_LOCKS
def test_claims_go_on_while_a_transaction_holds_the_table_that_a_migration_changes(alias, store, workers, later):
    workers("--threads", "2").ready()
    with somebody_reads(alias):
        process = later("0002")
        for line in process.stdout:
            if TRIED_AGAIN in line:
                break
        for _ in range(3):
            run_some()
        assert process.poll() is None
    succeed(process)

    assert "of_the_next_version" in columns(alias)
    run_some()


@pytest.mark.slow
@ON_POSTGRESQL
def test_an_index_is_built_beside_claims(alias, store, workers, later):
    """It waits for a transaction that may have rows of before, and an invalid one of an interrupted run goes first."""
    succeed(later("0002"))
    workers("--threads", "2").ready()
    with connections[alias].cursor() as cursor:
        cursor.execute("CREATE INDEX delayedq_next ON delayedq_message (id)")
    with somebody_reads(alias) as reader:
        with reader.cursor() as cursor:
            cursor.execute("DELETE FROM delayedq_message WHERE id = 0")
        process = later("0003")
        eventually(lambda: "INDEX CONCURRENTLY" in str(running(alias)))
        run_some()
        assert process.poll() is None
    succeed(process)

    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'delayedq_next'")
        assert "(of_the_next_version, id)" in cursor.fetchone()[0]
    succeed(later("0001"))
    assert "delayedq_next" not in store.database.constraints(Message._meta.db_table)


def running(alias):
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return cursor.fetchall()


# In this process


class Column(OnlineMigration):
    operations = (AddField("message", "of_the_next_version", CharField(max_length=20, null=True)),)


@pytest.fixture
def state(connection):
    """That of the models as they are."""
    return import_module("delayedq.migrations.0001_initial").Migration("0001", "delayedq").mutate_state(ProjectState())


def apply(connection, migration, state):
    with connection.schema_editor(atomic=migration.atomic) as editor:
        return migration.apply(state, editor)


@WITH_LOCKS
def test_a_change_waits_for_at_most_a_second_and_what_comes_after_it_as_before(connection, alias, store, state):
    statements = import_module(f"delayedq.store.{connection.vendor}.sql")
    seen = []

    def look(*_):
        seen.append(store.database.rows(statements.LOCK_TIMEOUT_NOW)[0][0])

    class Later(OnlineMigration):
        operations = (RunPython(look),)

    look()
    apply(connection, Later("0002", "delayedq"), state)
    look()

    before, within, after = seen
    assert within == {"postgresql": "500ms", "mysql": 1}[connection.vendor]
    assert before == after != within


@WITH_LOCKS
def test_after_ten_minutes_it_says_what_to_do_and_nothing_has_changed(connection, alias, state, monkeypatch):
    monkeypatch.setattr(online, "PATIENCE", -1.0)

    with somebody_reads(alias), pytest.raises(OperationalError) as raised:
        apply(connection, Column("0002", "delayedq"), state)

    assert "end it, then migrate again" in raised.value.__notes__[0]
    assert "of_the_next_version" not in columns(alias)


def test_what_fails_otherwise_is_not_tried_again(connection, state):
    tries = []

    def fail(*_):
        tries.append(1)
        raise OperationalError(2006, "The server is gone.")

    class Later(OnlineMigration):
        operations = (RunPython(fail),)

    with pytest.raises(OperationalError, match="is gone"):
        apply(connection, Later("0002", "delayedq"), state)
    assert len(tries) == 1


# All migrations there are


def wrong(migration):
    """What is wrong with a migration of ours after the first one."""
    operations = migration.operations
    changes = [one for one in operations if not isinstance(one, CreateModel)]
    if not issubclass(migration, OnlineMigration):
        return "is no OnlineMigration"
    if len(operations) > 1 and changes:
        return "changes a table beside something else"
    indexes = [one for one in changes if type(one).__name__ == "AddIndex"]
    if indexes or (any(isinstance(one, AddIndexOnline) for one in changes) == migration.atomic and changes):
        return "adds an index that is no AddIndexOnline, or this without atomic = False"
    return ""


@pytest.mark.parametrize("package", ["delayedq.migrations", "delayedq.desk.migrations", "delayedq.pipeline.migrations"])
def test_every_migration_after_the_first_leaves_claims_alone(package):
    names = [one.name for one in iter_modules(import_module(package).__path__) if one.name[0] != "_"]

    assert "0001_initial" in names
    found = {name: wrong(import_module(f"{package}.{name}").Migration) for name in names if name != "0001_initial"}
    assert not any(found.values()), found


def test_the_guard_sees_what_is_wrong():
    later = [import_module(f"tests.upgrades.later.{name}").Migration for name in ("0002_column", "0003_index")]
    assert [wrong(one) for one in later] == ["", ""]
    first = import_module("delayedq.migrations.0001_initial").Migration
    assert wrong(first) == "is no OnlineMigration"
    assert "beside something else" in wrong(type("Both", (OnlineMigration,), {"operations": Column.operations * 2}))
    assert "atomic = False" in wrong(type("InIt", (later[1],), {"atomic": True}))
