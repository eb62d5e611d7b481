"""One process at a time migrates a database; what another one has done is left out of its run."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.core.management.base import CommandError
from django.db import connections
from django.db.migrations import Migration, RunPython
from django.db.migrations.operations import SeparateDatabaseAndState

from delayedq.store import migrating
from tests.missing import missing
from tests.server import NoServer, pgbouncer_socket

ON_POSTGRESQL = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)


def one_at_a_time(database):
    lock = database.migration_lock()
    assert database.migration_lock() is None
    lock.close()
    with database.migration_lock():
        assert database.migration_lock() is None


def test_the_lock_is_had_by_one_until_it_is_closed(store):
    one_at_a_time(store.database)


@ON_POSTGRESQL
def test_so_it_is_behind_pgbouncer_which_takes_sessions_back(store, alias, monkeypatch):
    settings = connections[alias].settings_dict
    try:
        with pgbouncer_socket(settings["HOST"]) as socket:
            monkeypatch.setitem(settings, "HOST", socket)
            monkeypatch.setitem(settings, "PORT", "6432")
            one_at_a_time(store.database)
    except NoServer as reason:
        missing("pgbouncer", reason)


@ON_POSTGRESQL
def test_whoever_holds_it_holds_up_no_vacuum(store, alias, monkeypatch):
    options = {"options": "-c default_transaction_isolation=serializable"}
    monkeypatch.setitem(connections[alias].settings_dict, "OPTIONS", options)
    held = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
    with store.database.migration_lock(), connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT backend_xmin, backend_xid FROM pg_stat_activity WHERE pid IN ({held})")
        assert cursor.fetchall() == [(None, None)]


def test_whoever_waits_for_too_long_is_told(store, monkeypatch):
    monkeypatch.setattr(migrating, "PATIENCE", -1.0)
    with store.database.migration_lock(), pytest.raises(CommandError, match="for an hour"):
        migrating.wait_for_others(store.database.alias, [], verbosity=0)


class Counted(Migration):
    operations = (RunPython(RunPython.noop, RunPython.noop),)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("applied", [False, True])
def test_what_is_done_already_changes_the_state_of_the_models_alone(backwards, applied):
    migration = Counted("0002", "app")

    done = migrating.leave_out([(migration, backwards)], [("app", "0002")] if applied else [])

    assert done == ([] if backwards is applied else [migration])
    assert isinstance(migration.operations[0], SeparateDatabaseAndState if done else RunPython)


def test_a_run_ends_after_its_last_app(store):
    alias, configs = store.database.alias, [one for one in apps.get_app_configs() if one.models_module]
    for _ in range(2):
        migrating.wait_for_others(alias, [], verbosity=0)
    migrating.let_go(configs[0], alias)
    assert store.database.migration_lock() is None
    migrating.let_go(configs[-1], alias)

    store.database.migration_lock().close()
    assert not migrating._running
