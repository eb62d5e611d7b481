"""The lease protocol and all the raw SQL. `store_for(alias)` is the way in for queues and workers.

`base.Store` declares their verbs, `operator.OperatorStore` those of an operator, and `registry` knows which
workers live. A folder for each database implements them.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router

from delayedq.store.requirements import usable_vendor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayedq.store.base import Store
    from delayedq.store.operator import OperatorStore
    from delayedq.store.registry import WorkerRegistry

__all__ = ["default_store", "operator_store", "serve", "served_store", "serving", "store_for", "worker_registry"]


def default_store() -> Store:
    """The store of the database that the router gives to `Message`."""
    from delayedq.models import Message  # tasks are defined before the models are loaded

    return store_for(router.db_for_write(Message))


_served: list[str] = []


def serve(alias: str) -> None:
    """Have the workers of this process and of those that it forks serve this database."""
    _served[:] = [alias]


@contextmanager
def serving(alias: str) -> Iterator[None]:
    """While this lasts, this process serves this database."""
    before = _served[:]
    serve(alias)
    try:
        yield
    finally:
        _served[:] = before


def served_store() -> Store:
    """The store that a worker of this process serves: of the database that `serve` has named, else the default."""
    return store_for(_served[0]) if _served else default_store()


@cache
def store_for(alias: str) -> Store:
    """The store of one database.

    Raises ImproperlyConfigured for an engine that delayedq does not support, and ExtraMissing without its driver.
    """
    match usable_vendor(alias):
        case "postgresql":
            from delayedq.store.postgresql.database import PostgreSQLDatabase
            from delayedq.store.postgresql.store import PostgreSQLStore

            return PostgreSQLStore(PostgreSQLDatabase(alias))
        case "sqlite":
            from delayedq.store.sqlite.database import SQLiteDatabase
            from delayedq.store.sqlite.store import SQLiteStore

            return SQLiteStore(SQLiteDatabase(alias))
        case "mysql":
            from delayedq.store.mysql.database import MySQLDatabase
            from delayedq.store.mysql.store import MySQLStore

            return MySQLStore(MySQLDatabase(alias))
        case vendor:
            raise ImproperlyConfigured(f"DATABASES[{alias!r}]: delayedq has no store for {vendor}.")


def operator_store(alias: str) -> OperatorStore:
    """What an operator does to the messages of one database: edits, keyset scans, figures.

    Raises ImproperlyConfigured as `store_for` does.
    """
    store = store_for(alias)
    match connections[alias].vendor:
        case "postgresql":
            from delayedq.store.postgresql.store import PostgreSQLOperatorStore

            return PostgreSQLOperatorStore(store)
        case "sqlite":
            from delayedq.store.sqlite.store import SQLiteOperatorStore

            return SQLiteOperatorStore(store)
        case _:
            from delayedq.store.mysql.store import MySQLOperatorStore

            return MySQLOperatorStore(store)


def worker_registry(alias: str) -> WorkerRegistry:
    """Which workers of one database live. Raises ImproperlyConfigured as `store_for` does."""
    from delayedq.store.registry import WorkerRegistry

    return WorkerRegistry(store_for(alias).database)
