"""The backends of TASKS that are delayedq's, and the databases that have their messages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from django.core.management.base import CommandError
from django.db import Error, connections

from delayedq.backend import DelayedQBackend
from delayedq.compat import InvalidTaskBackend, task_backends
from delayedq.store import default_store
from delayedq.store.connecting import use_worker_connections
from delayedq.store.database import cure, missing_tables
from delayedq.store.requirements import too_old
from delayedq.worker.silence import answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from django.core.management.base import OutputWrapper

    from delayedq.store.base import Store

#: Connections of a fleet: of its lease keeper; of each process for claims, scans, LISTEN and cron; and beside those of
#: its threads, also for progress and all async tasks together.
KEEPER, LEAST, BESIDE_THREADS = 1, 4, 6
#: Seconds in which a database answers a command.
ANSWERED = 10.0
SETTING = 'TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend"}}'


def backends(names: Iterable[str] = ()) -> list[DelayedQBackend]:
    """Those with these names in TASKS; without names all that are delayedq's. Raises CommandError if there are none."""
    known = {backend.alias: backend for backend in _ours()}
    if not known:
        raise CommandError(f"No backend of TASKS is delayedq's, so there is nothing to serve. Set {SETTING}.")
    for name in names:
        if name not in known:
            raise CommandError(f"TASKS has no backend {name!r} of delayedq; it has {', '.join(known)}.")
    return [known[name] for name in dict.fromkeys(names)] or list(known.values())


def all_stores() -> list[Store]:
    """The stores of all backends of delayedq; without one, that of the bare queues."""
    return [ours[0].store for ours in by_database(_ours()).values()] or [default_store()]


def by_database(chosen: Iterable[DelayedQBackend]) -> dict[str, list[DelayedQBackend]]:
    """Backends by the alias of the database that has their messages."""
    found: dict[str, list[DelayedQBackend]] = {}
    for backend in chosen:
        found.setdefault(backend.store.alias, []).append(backend)
    return found


def chosen_store(name: str | None) -> tuple[Store, list[DelayedQBackend]]:
    """The store of this backend, and all backends that use it; None: the only one there is.

    Without a backend in TASKS it is that of the bare queues. Raises CommandError if there are several databases, and
    for an unknown name.
    """
    if name is not None:
        (backend,) = backends([name])
        return backend.store, by_database(backends())[backend.store.alias]
    found = by_database(_ours())
    if not found:
        return default_store(), []
    if len(found) > 1:
        told = "; ".join(f"{', '.join(one.alias for one in ours)} on {alias!r}" for alias, ours in found.items())
        raise CommandError(f"The backends of TASKS have several databases ({told}). Choose with --backend NAME.")
    ((ours),) = found.values()
    return ours[0].store, ours


def side_by_side[T](stores: Sequence[Store], ask: Callable[[Store], T]) -> list[T]:
    """What `ask` returns for each of them. Several are asked at once, each in a thread of its own: one that is silent
    takes ANSWERED seconds.
    """
    if len(stores) == 1:
        return [ask(stores[0])]

    def asked(store: Store) -> T:
        try:
            return ask(store)
        finally:
            connections[store.alias].close()

    with ThreadPoolExecutor(len(stores)) as threads:
        return list(threads.map(asked, stores))


def check_tables(store: Store) -> bool:
    """Raises CommandError if the database is too old, or has not all tables of the queue.

    One that does not answer is not judged: False.
    """
    try:
        with answered("the look for its tables", store.alias, ANSWERED):
            if problem := too_old(store.alias):
                raise CommandError(problem)
            missing = missing_tables(store.alias)
    except Error:
        connections[store.alias].close()
        return False
    if missing:
        raise CommandError(
            f"The database {store.alias!r} has no table {min(missing)}. Create the tables: {cure(store.alias)}"
        )
    return True


def tell_of_connections(store: Store, processes: int, threads: int, stderr: OutputWrapper) -> None:
    """Warn if the database has no room for all connections that so many processes may open.

    It says how many are needed, and how many may be had. One that does not answer is not judged.
    """
    least, most = KEEPER + processes * LEAST, KEEPER + processes * (threads + BESIDE_THREADS)
    try:
        with answered("how many connections are left", store.alias, ANSWERED):
            left = store.database.connections_left()
    except Error:
        connections[store.alias].close()
        return
    if left is None or (left := left + 1) >= most:  # that which has asked is closed before others are opened
        return
    stderr.write(
        f"Warning: the database {store.alias!r} has room for {left} connection(s) of this user. These workers need "
        f"{least} to work without delay, and open up to {most} if their tasks use the database. Raise its "
        "max_connections or the limit of the role, or use fewer --processes or --threads."
    )


def check_answer(store: Store) -> None:
    """Raises CommandError if the database does not answer."""
    try:
        ask(store)
    except Error as error:
        raise CommandError(f"The database {store.alias!r} does not answer: {str(error).strip()}") from None


def ask(store: Store) -> None:
    """Open a connection, and ask it something. Raises django.db.Error if it gets no answer in 10 s."""
    use_worker_connections()
    with answered("a first question", store.alias, ANSWERED):
        connections[store.alias].ensure_connection()  # SQLite needs none for the time
        store.now()


def _ours() -> list[DelayedQBackend]:
    return [backend for backend in map(_backend, task_backends) if isinstance(backend, DelayedQBackend)]


def _backend(name: str) -> object:
    try:
        return task_backends[name]
    except InvalidTaskBackend as error:
        raise CommandError(f"TASKS[{name!r}]: {error}") from None
