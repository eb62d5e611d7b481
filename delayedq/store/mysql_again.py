"""Verbs that are tried again when MariaDB or MySQL has undone them."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Concatenate

from django.db import OperationalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from delayedq.store.base import BaseStore

#: This transaction was undone to end a deadlock; a lock did not come free in time.
PASSING = {1213, 1205}
#: How often a verb is tried.
TRIES = 5


def again[S: BaseStore, **P, R](verb: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Try a verb again that the server has undone, unless the transaction is the caller's."""

    @wraps(verb)
    def tried(store: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        own = not store.connection.in_atomic_block and store.connection.get_autocommit()
        for _ in range(TRIES - 1 if own else 0):
            try:
                return verb(store, *args, **kwargs)
            except OperationalError as error:
                if error.args[0] not in PASSING:
                    raise
        return verb(store, *args, **kwargs)

    return tried
