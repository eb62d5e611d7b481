"""The lease protocol and all the raw SQL. `store_for(alias)` is the way in."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router

if TYPE_CHECKING:
    from delayedq.store.protocol import Store

__all__ = ["default_store", "store_for"]


def default_store() -> Store:
    """The store of the database that the router gives to `Message`."""
    from delayedq.models import Message  # tasks are defined before the models are loaded

    return store_for(router.db_for_write(Message))


@cache
def store_for(alias: str) -> Store:
    """The store of one database.

    Raises ImproperlyConfigured for an engine that delayedq does not support.
    """
    match connections[alias].vendor:
        case "postgresql":
            from delayedq.store.postgresql import PostgreSQLStore

            return PostgreSQLStore(alias)
        case "sqlite":
            from delayedq.store.sqlite import SQLiteStore

            return SQLiteStore(alias)
        case "mysql":
            from delayedq.store.mysql import MySQLStore

            return MySQLStore(alias)
        case vendor:
            raise ImproperlyConfigured(f"DATABASES[{alias!r}]: delayedq has no store for {vendor}.")
