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
    from django.db.models import Model

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
    patience = _Patience(database)
    while True:
        try:
            with database.atomic(), database.short_lock_waits():
                state = work()
                _do_deferred(schema_editor)
        except OperationalError as error:
            schema_editor.deferred_sql.clear()
            patience.pause(error)
        else:
            return state


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
        schema_editor.remove_index(model, self.index, concurrently=True)  # type: ignore[call-arg]  # of PostgreSQL's
