"""The connections of a process: none of them crosses a fork, and those of workers come from no pool.

A socket that two processes share mixes up the answers of both. So a process of ours closes its connections and pools
before it forks, and every process that is forked, by whomever, leaves behind what it inherits all the same: a site
under `gunicorn --preload`, a task that uses `multiprocessing`.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager, suppress
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from django.db import InterfaceError, connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

#: By the last part of the engine's name, options of the driver by which a connection that leads nowhere is noticed
#: (seconds; milliseconds), for whom OPTIONS say nothing of them: to a host that is gone, Linux would send for 15 min.
_POSTGRESQL = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_PATIENCE: dict[str, dict[str, Any]] = {
    "postgresql": _POSTGRESQL,
    "postgis": _POSTGRESQL,
    "mysql": {"connect_timeout": 10},
}
#: That of psycopg_pool, if OPTIONS name none.
POOL_SIZE = 4


class OpenedConnection(NamedTuple):
    """What other threads may know of a connection.

    raw: that of the driver; descriptor: of its socket (-1: it has none), which mysqlclient tells to no other thread
    while a statement runs; session: its number at the server (0: on others than PostgreSQL); at: when it was open, a
    moment of `time.monotonic()`.
    """

    wrapper: BaseDatabaseWrapper
    raw: Any
    descriptor: int
    session: int
    at: float


#: The connections of all threads of this process that were opened, and not yet collected; the values are the rest of
#: OpenedConnection.
_opened: WeakKeyDictionary[BaseDatabaseWrapper, tuple[Any, int, int, float]] = WeakKeyDictionary()
#: Also held during a fork, so that no child inherits it locked.
_lock = threading.Lock()
#: The same while a fork lasts: the threads of a child end at once, and their connections must not be closed by that.
_kept: list[BaseDatabaseWrapper] = []
#: What this process has inherited. A driver that collects it would tell the server that the session of the other
#: process is over.
_inherited: list[Any] = []


def close_for_fork() -> None:
    """Close the connections of the calling thread, and the pools of this process, before it forks."""
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        if connection.alias in _pools(connection):
            connection.close_pool()  # type: ignore[attr-defined]  # of PostgreSQL's


def use_worker_connections() -> None:
    """For a process of workers: from now on each of its threads opens connections of its own, and none waits for ever
    for a host that is gone.

    A thread of a worker keeps its connection while it has work, so a pool has nothing to lend, and one that is smaller
    than the number of threads would have them wait for each other.
    """
    for alias in connections:
        settings = connections.settings[alias]
        _take_no_pool(settings)
        settings["OPTIONS"] = _PATIENCE.get(settings["ENGINE"].rpartition(".")[2], {}) | settings["OPTIONS"]


def separate(alias: str) -> BaseDatabaseWrapper:
    """A connection beside that of the thread, of no pool: one that listens would go on to do so for whom it is lent."""
    connection = connections[alias].copy()
    _take_no_pool(connection.settings_dict)
    know_socket(connection)
    return connection


def know_socket(connection: BaseDatabaseWrapper) -> None:
    """Know its sockets as soon as they are connected: Django tells of a connection when its session is set up, by
    statements that may get no answer.
    """
    if "get_new_connection" in vars(connection):
        return
    seen = ref(connection)

    def get_new_connection(parameters: Any) -> Any:
        if (one := seen()) is None:
            raise InterfaceError("The connection is gone.")
        if one.connection is not None:  # one that somebody opens beside it
            return type(one).get_new_connection(one, parameters)
        with _opening(one):
            raw = type(one).get_new_connection(one, parameters)
        _know(one, raw)
        return raw

    if connection.vendor == "mysql":
        _tell_of_logins()
    connection.get_new_connection = get_new_connection  # type: ignore[assignment,method-assign]


class _Opening(threading.local):
    """The connection that the current thread opens."""

    connection: BaseDatabaseWrapper | None = None


_now_opening = _Opening()


@contextmanager
def _opening(connection: BaseDatabaseWrapper) -> Iterator[None]:
    _now_opening.connection = connection
    try:
        yield
    except BaseException:
        connection.connection = None  # which `_tell_of_logins` may have set
        raise
    finally:
        _now_opening.connection = None


@cache
def _tell_of_logins() -> None:
    """After its login mysqlclient asks on, for the character set and autocommit, before it returns the connection, and
    `connect_timeout` has no part in that: have it tell of the socket before.
    """
    from MySQLdb.connections import Connection

    original = Connection.set_character_set

    @wraps(original)
    def set_character_set(raw: Any, *args: Any, **kwargs: Any) -> Any:
        if (one := _now_opening.connection) is not None:
            one.connection = raw
            _know(one, raw)
        return original(raw, *args, **kwargs)

    Connection.set_character_set = set_character_set


def opened_by(thread: int) -> list[OpenedConnection]:
    """The connections of the thread with this identifier, also those beside the one that Django gives it."""
    with _lock:
        return [OpenedConnection(one, *known) for one, known in _opened.items() if one._thread_ident == thread]  # type: ignore[attr-defined]  # noqa: SLF001


def pool_size(alias: str) -> int | None:
    """How many connections Django's pool has at most for this database. None: it has no pool."""
    pool = connections.settings[alias].get("OPTIONS", {}).get("pool")
    if not pool:
        return None
    sizes = pool if isinstance(pool, dict) else {}
    size: int = sizes.get("max_size") or sizes.get("min_size", POOL_SIZE)
    return size


def _take_no_pool(settings: dict[str, Any]) -> None:
    settings["OPTIONS"] = {name: value for name, value in settings.get("OPTIONS", {}).items() if name != "pool"}


@receiver(connection_created)
def _remember(connection: BaseDatabaseWrapper, **_: object) -> None:
    _know(connection, connection.connection)


def _know(connection: BaseDatabaseWrapper, raw: Any) -> None:
    """It may be told of again when its session is set up, which may take its time."""
    with _lock:
        known = _opened.get(connection)
        at = time.monotonic() if known is None or known[0] is not raw else known[-1]
        _opened[connection] = raw, _descriptor(raw), _session(connection, raw), at


def _descriptor(raw: Any) -> int:
    try:
        return int(raw.fileno())
    except Exception:  # noqa: BLE001  SQLite has none, and each driver an error of its own
        return -1


def _session(connection: BaseDatabaseWrapper, raw: Any) -> int:
    """That of PostgreSQL, which a client is told as it connects."""
    if connection.vendor != "postgresql":
        return 0
    try:
        return int(raw.info.backend_pid)
    except Exception:  # noqa: BLE001  it is lost already, and each driver has an error of its own for that
        return 0


def _keep() -> None:
    _lock.acquire()
    _kept[:] = {*_opened, *connections.all(initialized_only=True)}


def _let_go() -> None:
    _kept.clear()
    _lock.release()


def _leave_behind() -> None:
    """The body of a child begins: what it has inherited stays the parent's."""
    for connection in _kept:
        if connection.connection is not None and not _is_copied(connection):
            _close_here(connection.connection)
            _inherited.append(connection.connection)
            connection.connection = None
            # A transaction that was open goes on in the parent alone: Django refuses its statements here.
            connection.closed_in_transaction = connection.needs_rollback = connection.in_atomic_block
        if pools := _pools(connection):
            _inherited.extend(pools.values())
            pools.clear()
    _let_go()


def _is_copied(connection: BaseDatabaseWrapper) -> bool:
    """A database in memory is a copy of the parent's, which tests in several processes rely on."""
    return connection.vendor == "sqlite" and connection.is_in_memory_db()  # type: ignore[attr-defined]  # of SQLite's


def _close_here(raw: Any) -> None:
    """Have its descriptor lead nowhere: the server would take a parent that was killed for alive."""
    with suppress(Exception):  # SQLite has none, and a connection that was lost has none any more
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, raw.fileno(), inheritable=False)
        os.close(nowhere)


def _pools(connection: BaseDatabaseWrapper) -> dict[str, Any]:
    """Those of Django, by alias; all connections to PostgreSQL share them."""
    return getattr(connection, "_connection_pools", {})


os.register_at_fork(before=_keep, after_in_parent=_let_go, after_in_child=_leave_behind)
