"""Whether one database and its workers do their work, for `manage.py delayedq health`."""

from __future__ import annotations

import socket
from concurrent.futures import Future
from datetime import timedelta
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from django.db import Error, ProgrammingError, connections, transaction
from django.utils import translation
from django.utils.translation import gettext as _

from delayedq.models import Message
from delayedq.operations.limited_waits import waits
from delayedq.operations.wording import span
from delayedq.operations.workers import live_workers
from delayedq.store.protocol import BARE
from delayedq.store.unmigrated import cure, missing_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayedq.store.base import Store

#: Of a claim that is rolled back.
LEASE = timedelta(seconds=10)


class Check(NamedTuple):
    """`passed`, and a sentence that says of what, or what is wrong."""

    passed: bool
    sentence: str


def health(store: Store, *, oldest_due: timedelta | None = None, workers_here: bool = False) -> list[Check]:
    """What was checked; after a database that does not answer, nothing else."""
    try:
        return list(_checks(store, oldest_due, workers_here=workers_here))
    except Error as error:
        about = {"alias": repr(store.alias), "error": str(error).strip()}
        return [Check(False, _("The database %(alias)s does not let a worker claim: %(error)s") % about)]


def health_within(
    timeout: timedelta, store: Store, *, oldest_due: timedelta | None = None, workers_here: bool = False
) -> list[Check]:
    """The same, or what says that it took longer.

    In a thread of its own: nothing else ends the wait for a server that accepts a connection and never answers.
    """
    found: Future[list[Check]] = Future()
    language = translation.get_language()

    def ask() -> None:
        try:
            with translation.override(language):
                found.set_result(health(store, oldest_due=oldest_due, workers_here=workers_here))
        except Exception as error:  # noqa: BLE001 - it is raised below
            found.set_exception(error)
        finally:
            connections.close_all()

    Thread(target=ask, daemon=True).start()
    try:
        return found.result(timeout.total_seconds())
    except TimeoutError:
        about = {"alias": repr(store.alias), "span": span(timeout)}
        return [Check(False, _("The database %(alias)s did not answer within %(span)s.") % about)]


def _checks(store: Store, oldest_due: timedelta | None, *, workers_here: bool) -> Iterator[Check]:
    if missing := missing_tables(store.alias):
        raise ProgrammingError(f"it has no table {min(missing)}; {cure(store.alias)}")
    try_claim(store)
    yield Check(True, _("A worker could claim from the database %(alias)s.") % {"alias": repr(store.alias)})
    if workers_here:
        yield _workers_here(store)
    if oldest_due is not None:
        yield _in_time(store, oldest_due)


def try_claim(store: Store) -> None:
    """Claim what is due first, and roll it back. Raises django.db.Error, also if the database is read-only."""
    with transaction.atomic(using=store.alias):
        store.claim(store.lanes()[:1], 1, LEASE, "delayedq health")
        Message.objects.using(store.alias).filter(pk=0).update(attempt=0)  # no row, and yet a write
        transaction.set_rollback(True, using=store.alias)


def _workers_here(store: Store) -> Check:
    host = socket.gethostname()
    names = [worker.name for worker in live_workers(store, store.now()) if worker.host == host]
    if names:
        return Check(True, _("These workers of this host live: %(names)s.") % {"names": ", ".join(names)})
    said = _("No worker of this host (%(host)s) has a fresh heartbeat. Start run_workers, or look at its log.")
    return Check(False, said % {"host": host})


def _in_time(store: Store, bound: timedelta) -> Check:
    heads = [head for head in store.scan() if BARE not in head.queue and head.due_in < 0]
    found = waits(store, heads, store.now(), bound.total_seconds())
    late = {queue: wait.late for queue, wait in found.items() if wait.late > bound.total_seconds()}
    if not late:
        limited = max((wait.limited for wait in found.values()), default=0.0)
        said = _("No message has been due for longer than %(span)s.") % {"span": span(bound)}
        waiting = {"span": span(timedelta(seconds=limited))}
        more = _("Some wait for a limit, the first for %(span)s.") % waiting if limited else ""
        return Check(True, " ".join(filter(None, [said, more])))
    queue = max(late, key=lambda name: late[name])
    about = {"queue": queue, "span": span(timedelta(seconds=late[queue]))}
    return Check(False, _("The first message of %(queue)s has been due for %(span)s.") % about)
