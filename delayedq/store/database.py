"""One database and the clock by which it is judged: what the store, the operator's store and the registry are made of.

A verb passes its statements here. Each of them may ask for `%(now)s`: the moment to which `at` has bound the clock, or
that of the database's own clock (SQLite: the host's).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from functools import partial, wraps
from threading import local
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Protocol, Self

from django.db import OperationalError, ProgrammingError, connections, transaction

from delayedq import clock
from delayedq.core.deadlocks import retry
from delayedq.store.unmigrated import cure, is_unmigrated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from datetime import datetime

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Model, QuerySet

    from delayedq.store.dialect import Dialect


class Database(ABC):
    """Threads share it; the connection is that of the thread."""

    dialect: ClassVar[Dialect]

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._moment: datetime | None = None
        #: What a thread tries again is tried as a whole, and not in its parts; copies share it.
        self._trying = local()

    def at(self, moment: datetime | None) -> Self:
        """The same database, judged at this moment; None: by its own clock."""
        bound = copy(self)
        bound._moment = moment  # noqa: SLF001 - a copy
        return bound

    @property
    def moment(self) -> datetime | None:
        """When it is judged; None: by its own clock. Whatever moves time for all verbs belongs here, and only here."""
        return self._moment or clock.chosen()

    def now(self) -> datetime:
        return self.moment or self._clock()

    def connections_left(self) -> int | None:
        """How many more connections this user may open; None: as many as it likes. Raises django.db.Error."""
        return None

    @abstractmethod
    def _clock(self) -> datetime:
        """What the database's own clock shows."""

    @property
    def now_parameter(self) -> Any:
        """`%(now)s`; None has the statement ask the database's clock."""
        moment = self.moment
        return None if moment is None else self.dialect.stored(moment)

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The connection of the current thread."""
        return connections[self.alias]

    def constraints(self, table: str) -> set[str]:
        """The names of the indexes and constraints of a table."""
        with self.connection.cursor() as cursor:
            return set(self.connection.introspection.get_constraints(cursor, table))

    @property
    def in_transaction(self) -> bool:
        """Is there a transaction of the caller's, who decides when it ends?"""
        return self.connection.in_atomic_block or not self.connection.get_autocommit()

    def unlocked[M: Model](self, rows: QuerySet[M]) -> QuerySet[M]:
        """Those of these rows that no other transaction has locked. They are locked here; SQLite locks no row."""
        return rows.select_for_update(skip_locked=self.connection.features.has_select_for_update_skip_locked)

    def atomic(self, *, savepoint: bool = True) -> AbstractContextManager[None]:
        return transaction.atomic(using=self.alias, savepoint=savepoint)

    def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """What one statement answers."""
        return self.retried(partial(self._rows, statement, {"now": self.now_parameter, **(parameters or {})}))

    def _rows(self, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def counted(self, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """`rows` of a statement that counts, after what its transaction has to say first (`Dialect.prepare`)."""
        if not self.dialect.prepare:
            return self.rows(statement, parameters)
        with self.atomic(savepoint=False):
            self.write(self.dialect.prepare)
            return self.rows(statement, parameters)

    def ids(self, statement: str, parameters: Mapping[str, Any] | None = None) -> set[int]:
        """The first column of what one statement answers."""
        return {row[0] for row in self.rows(statement, parameters)}

    def write(self, statement: str, parameters: Mapping[str, Any] | None = None) -> None:
        """One statement without an answer."""
        self.retried(partial(self._write, statement, {"now": self.now_parameter, **(parameters or {})}))

    def _write(self, statement: str, parameters: Mapping[str, Any]) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters)

    def retried[R](self, work: Callable[[], R]) -> R:
        """Do the work; again, a few times, if the database undid it to end a deadlock.

        Within the caller's transaction it is done once: that was undone as a whole, and the error is the caller's. An
        error of a database that was not migrated names the cure.
        """
        try:
            return self._retried(work)
        except (ProgrammingError, OperationalError) as error:
            if not is_unmigrated(error):
                raise
            told = f"The database {self.alias!r} lacks tables or columns of delayedq: {cure(self.alias)}"
            raise type(error)(told) from error

    def _retried[R](self, work: Callable[[], R]) -> R:
        if self.in_transaction or getattr(self._trying, "again", False):
            return work()
        self._trying.again = True
        try:
            return retry(work, self._was_undone)
        finally:
            self._trying.again = False

    def _was_undone(self, error: Exception) -> bool:
        return isinstance(error, OperationalError) and self.is_deadlock(error)

    @abstractmethod
    def is_deadlock(self, error: OperationalError) -> bool:
        """Whether this error says that the transaction was undone for the sake of another, and may be tried again."""


class HasDatabase(Protocol):
    @property
    def database(self) -> Database: ...


def retry_on_deadlock[S: HasDatabase, **P, R](verb: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A verb that is tried again when the database has undone it: see `Database.retried`."""

    @wraps(verb)
    def retried(store: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return store.database.retried(partial(verb, store, *args, **kwargs))

    return retried
