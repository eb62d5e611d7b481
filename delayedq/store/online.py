"""Migrations of tables that workers use: no claim waits for one longer than about a second.

`ALTER TABLE` needs its table for itself for a moment. It waits for all transactions that use the table, also for one
that somebody has left open, and every later statement waits behind it. So it gives up after LOCK_WAIT, lets the others
go on, and tries again. Each migration of delayedq after the first one is an `OnlineMigration`.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import OperationalError
from django.db.migrations import Migration
from django.db.migrations.operations import AddIndex

from delayedq.core.backoff import Exponential
from delayedq.store.migrating import database_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState
    from django.db.models import Index, Model

    from delayedq.store.database import Database

logger = logging.getLogger("delayedq")

#: Between two tries, and how long (seconds) it is tried at all.
PAUSES = Exponential(initial=timedelta(seconds=1), factor=2, maximum=timedelta(seconds=10))
PATIENCE = 600.0


class OnlineMigration(Migration):
    """One operation on a table that exists, or any number of new tables: so no lock is kept while another is waited
    for, and MySQL, which can't roll back a change of a table, has nothing half done.

    An index of a table that exists is added by `AddIndexOnline`, with `atomic = False`.
    """

    def apply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        def work() -> ProjectState:
            return super(OnlineMigration, self).apply(project_state.clone(), schema_editor, collect_sql)

        return work() if collect_sql else self._done(schema_editor, work)

    def unapply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        def work() -> ProjectState:
            return super(OnlineMigration, self).unapply(project_state, schema_editor, collect_sql)

        return work() if collect_sql else self._done(schema_editor, work)

    def _done(self, schema_editor: BaseDatabaseSchemaEditor, work: Callable[[], ProjectState]) -> ProjectState:
        if (database := database_at(schema_editor.connection.alias)) is None:
            return work()
        if not schema_editor.connection.features.can_rollback_ddl:
            return _by_statement(database, schema_editor, work)
        return _as_a_whole(database, schema_editor, work) if self.atomic else work()


def _as_a_whole(
    database: Database, schema_editor: BaseDatabaseSchemaEditor, work: Callable[[], ProjectState]
) -> ProjectState:
    """In a savepoint of the migration's transaction: rolling back to it gives back all locks. What Django defers is
    done here too, so the migration is recorded in the same transaction.
    """

    def once() -> ProjectState:
        schema_editor.deferred_sql.clear()  # of the try before
        state = work()
        _do_deferred(schema_editor)
        return state

    return patiently(database, once)


def patiently[R](database: Database, work: Callable[[], R]) -> R:
    """Do it in a transaction, or in a savepoint of the one that is open; again if it had to wait for a lock for long.

    Raises OperationalError after PATIENCE.
    """
    patience = _Patience(database)
    while True:
        try:
            with database.atomic(), database.short_lock_waits():
                return work()
        except OperationalError as error:
            patience.pause(error)


def _by_statement(
    database: Database, schema_editor: BaseDatabaseSchemaEditor, work: Callable[[], ProjectState]
) -> ProjectState:
    """Where each change of a table commits by itself."""

    def patiently(execute: Callable[..., Any], *words: Any) -> Any:
        patience = _Patience(database)
        while True:
            try:
                return execute(*words)
            except OperationalError as error:
                patience.pause(error)

    with database.short_lock_waits(), schema_editor.connection.execute_wrapper(patiently):
        state = work()
        _do_deferred(schema_editor)
    return state


def _do_deferred(schema_editor: BaseDatabaseSchemaEditor) -> None:
    for statement in schema_editor.deferred_sql:
        schema_editor.execute(statement, None)
    schema_editor.deferred_sql.clear()


class _Patience:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._tries, self._until = 0, time.monotonic() + PATIENCE

    def pause(self, error: OperationalError) -> None:
        """Wait before the next try. Raises the error if it is another one than of a lock, or if it lasts too long."""
        if not self._database.is_lock_timeout(error):
            raise error
        if time.monotonic() > self._until:
            error.add_note("A transaction has held a table of delayedq for 10 minutes: end it, then migrate again.")
            raise error
        self._tries += 1
        seconds = PAUSES(self._tries).total_seconds()
        said = "A table is held by a transaction. Messages go on, and this migration is tried again in %.1f s."
        logger.warning(said, seconds)
        time.sleep(seconds)


class AddIndexOnline(AddIndex):
    """Without a lock that claims wait for. On PostgreSQL it is built beside them, and alone in its migration: nothing
    else may be in its transaction. What an interrupted run has left of it is removed first.
    """

    atomic = False

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if (model := self._built_beside(app_label, schema_editor, to_state)) is None:
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        if _partitions(schema_editor, model):
            with _database(schema_editor).partitions_kept():
                if _partitions(schema_editor, model):  # it may have become one table again meanwhile
                    self._drop(schema_editor, model)
                    _add_by_partition(schema_editor, model, self.index)
                    return
        self._drop(schema_editor, model)
        schema_editor.add_index(model, self.index, concurrently=True)  # type: ignore[call-arg]  # of PostgreSQL's

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if (model := self._built_beside(app_label, schema_editor, from_state)) is None:
            super().database_backwards(app_label, schema_editor, from_state, to_state)
        else:
            self._drop(schema_editor, model)

    def _built_beside(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState
    ) -> type[Model] | None:
        """The model whose index is built beside claims here; None: Django's own operation does it, or nothing."""
        alias = schema_editor.connection.alias
        database = database_at(alias)
        if database is None or not database.builds_indexes_beside:
            return None
        model = state.apps.get_model(app_label, self.model_name)
        return model if self.allow_migrate_model(alias, model) else None

    def _drop(self, schema_editor: BaseDatabaseSchemaEditor, model: type[Model]) -> None:
        if _partitions(schema_editor, model):  # that of the table is dropped with those of its partitions
            _patiently(schema_editor, f"DROP INDEX IF EXISTS {schema_editor.quote_name(self.index.name)}")
            return
        schema_editor.remove_index(model, self.index, concurrently=True)  # type: ignore[call-arg]  # of PostgreSQL's


def _database(schema_editor: BaseDatabaseSchemaEditor) -> Database:
    database = database_at(schema_editor.connection.alias)
    assert database is not None
    return database


def _partitions(schema_editor: BaseDatabaseSchemaEditor, model: type[Model]) -> list[str]:
    return _database(schema_editor).partitions(model._meta.db_table)  # noqa: SLF001


def _add_by_partition(schema_editor: BaseDatabaseSchemaEditor, model: type[Model], index: Index) -> None:
    """PostgreSQL builds none beside claims for a whole table of partitions: first there is one without any, then that
    of each partition is built and made a part of it. The last of them makes the whole index valid, so none may be made
    or dropped meanwhile; one that is made later gets its own by itself.
    """
    table, quote = model._meta.db_table, schema_editor.quote_name  # noqa: SLF001
    of_all = str(index.create_sql(model, schema_editor))
    _patiently(schema_editor, of_all.replace(f" ON {quote(table)} ", f" ON ONLY {quote(table)} ", 1))
    for part in _partitions(schema_editor, model):
        name = quote(f"{index.name}{part.removeprefix(table)}")
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        beside = index.create_sql(model, schema_editor, concurrently=True)
        parts: dict[str, Any] = beside.parts
        parts |= {"name": name, "table": quote(part)}
        schema_editor.execute(beside, None)
        _patiently(schema_editor, f"ALTER INDEX {quote(index.name)} ATTACH PARTITION {name}")


def _patiently(schema_editor: BaseDatabaseSchemaEditor, statement: str) -> None:
    patiently(_database(schema_editor), lambda: schema_editor.execute(statement, None))
