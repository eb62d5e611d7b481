"""One reading for a whole page: what several of its parts ask for is read once.

with one_reading():
    ...  # `lanes_of` and `all_workers` ask the database once, at most

Outside of it each call reads anew, so whoever waits for a change sees it.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

from delayedq.store import operator_store, store_for
from delayedq.store.operator import ALL_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from delayedq.core.conditions import KeyRange
    from delayedq.store.base import Store
    from delayedq.store.protocol import Lane

_known: ContextVar[dict[tuple[str, str], list[Any]] | None] = ContextVar("delayedq_one_reading", default=None)


@contextmanager
def one_reading() -> Iterator[None]:
    """Within it, what was read is kept. One that is inside another keeps to that."""
    if _known.get() is not None:
        yield
        return
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def of_one_reading[**Given, Answer](view: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """A view, or another function, that is one reading as a whole."""

    @wraps(view)
    def read(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        with one_reading():
            return view(*args, **kwargs)

    return read


def read_once[Row](store: Store, name: str, read: Callable[[], list[Row]]) -> list[Row]:
    """What `read` answers, as a list of its own; within one reading, what it has answered before for this database."""
    known = _known.get()
    if known is None:
        return read()
    place = (store.alias, name)
    if place not in known:
        known[place] = read()
    return [*known[place]]


def lanes_of(store: Store) -> list[Lane]:
    """The lanes that have messages."""
    return read_once(store, "lanes", store.lanes)


def keyed_kinds_of(alias: str, keys: KeyRange = ALL_KEYS) -> list[str]:
    """The kinds of the live messages whose keys are in this range, and perhaps more; MySQL asks for each kind."""
    return read_once(store_for(alias), f"kinds {keys}", lambda: operator_store(alias).keyed_kinds(keys))
