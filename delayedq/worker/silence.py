"""A database that stops answering while its sockets stay open: a failover behind a proxy, a dropped NAT entry, a server
process that was stopped. Nothing else ends the wait for it.

A thread says when it begins to wait for the database, and when it ends. If it waits for too long, one WARNING says what
for, and its connections are closed from outside: its statement fails, as if the server had closed them, and it opens
new ones. What the server does with the statement later is as after any lost connection: claims that nobody heard of are
released by the lease keeper, and all other writes are fenced.

Nobody tells the server, which would keep the locks of the session for as long as it waits for the client: those of
messages, and the one without which nobody claims from channels. So another thread has it end the session, as soon as a
connection is answered.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from django.db import connections

from delayedq.conf import get_settings
from delayedq.store.connecting import know_socket, opened_by

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from django.db.backends.base.base import BaseDatabaseWrapper

    from delayedq.store.connecting import OpenedConnection
    from delayedq.store.database import Database

logger = logging.getLogger("delayedq")

#: Seconds between two looks.
EVERY = 0.5
#: So many sessions are remembered at most: nobody ends those of a process that is no worker.
MOST_LOST = 256


class LostSession(NamedTuple):
    """Of a connection that was given up. opened_at: a moment of `time.monotonic()`."""

    alias: str
    number: int
    opened_at: float


_lost: deque[LostSession] = deque(maxlen=MOST_LOST)


class DatabaseWait:
    """What one thread waits for: `with wait:` around its statements. It takes a few assignments, and no lock.

    alias: of the database; seconds: how long it may take.
    """

    __slots__ = ("alias", "known", "seconds", "since", "thread", "what")

    def __init__(self, what: str, alias: str, seconds: float) -> None:
        self.what = what
        self.alias = alias
        self.seconds = seconds
        self.since = inf
        self.thread = 0
        #: Its connection, of which the sockets are known: another one if a task has left that to be given up.
        self.known: BaseDatabaseWrapper | None = None

    def __enter__(self) -> None:
        connection = connections[self.alias]
        if connection is not self.known:
            self.known, self.thread = connection, threading.get_ident()
            know_socket(connection)
        self.since = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.since = inf


class Silence(threading.Thread):
    """Watches the waits of a process for one database. `lease`: in seconds; `name`: of the process, for the log."""

    def __init__(self, name: str, alias: str, lease: float) -> None:
        super().__init__(name="delayedq-silence", daemon=True)
        self._process = name
        self._alias = alias
        given = get_settings().ANSWER_WITHIN
        #: Seconds: ANSWER_WITHIN.
        self.patience = lease / 4 if given is None else given.total_seconds()
        self._waits: list[DatabaseWait] = []
        self._ended = threading.Event()
        #: How many waits were ended.
        self.abandoned = 0

    def wait(self, what: str, *, times: int = 1) -> DatabaseWait:
        """A wait that is watched from now on: so many times ANSWER_WITHIN are not too long for it."""
        one = DatabaseWait(what, self._alias, times * self.patience)
        self._waits.append(one)
        return one

    def stop(self) -> None:
        self._ended.set()

    def run(self) -> None:
        while not self._ended.wait(min(EVERY, self.patience / 4)):
            for one in self._waits:
                if time.monotonic() - one.since > one.seconds:
                    self._abandon(one)

    def _abandon(self, wait: DatabaseWait) -> None:
        """Close its sockets, unless it goes on meanwhile: then they may be those of another wait."""
        since = wait.since
        found = _sockets_of(wait.thread, self._alias)
        if found and wait.since == since != inf:
            wait.since = inf
            self.abandoned += 1
            logger.warning(
                "%s: the database has not answered %s for %.1f s: the connection is given up, and a new one is opened.",
                self._process, wait.what, time.monotonic() - since, extra={"pid": os.getpid()},
            )  # fmt: skip
            _shut_down(found)
        for one in found:
            one.close()


def end_lost_sessions(database: Database) -> None:
    """Have the server end the sessions of the connections to it that this process has given up. One thread calls it.

    Raises django.db.Error.
    """
    while _lost:
        one = _lost[0]
        if one.alias == database.alias:
            database.end_lost_session(one.number, time.monotonic() - one.opened_at)
        _lost.popleft()


def give_up_statements(thread: int) -> bool:
    """Shut down the sockets of the databases of a thread: the statement that it waits for fails. Whether it had any."""
    found = _sockets_of(thread, *connections)
    _shut_down(found)
    for one in found:
        one.close()
    return bool(found)


@contextmanager
def answered(what: str, alias: str, most: float) -> Iterator[None]:
    """Give up the connections of the calling thread if the statements of this block get no answer for `most` seconds,
    or for ANSWER_WITHIN, if that is shorter: then they raise django.db.Error.
    """
    silence = Silence("delayedq", alias, 4 * most)
    wait = silence.wait(what)
    wait.seconds = min(wait.seconds, most)
    silence.start()
    try:
        with wait:
            yield
    finally:
        silence.stop()
        silence.join()


def _sockets_of(thread: int, *aliases: str) -> dict[socket.socket, LostSession]:
    """Those of its connections to these databases, and the sessions that are lost with them."""
    opened = (each for each in opened_by(thread) if each.wrapper.alias in aliases)
    return {
        one: LostSession(each.wrapper.alias, each.session, each.at)
        for each in opened
        if (one := _copy_of(each)) is not None
    }


def _shut_down(sockets: Mapping[socket.socket, LostSession]) -> None:
    for one, session in sockets.items():
        with suppress(OSError):  # it is closed
            one.shutdown(socket.SHUT_RDWR)
        if session.number:
            _lost.append(session)


def _copy_of(opened: OpenedConnection) -> socket.socket | None:
    """The same socket by another descriptor: that of the driver may be closed, and be another's, at any moment.

    None: the connection has another one by now, or none.
    """
    if opened.wrapper.connection is not opened.raw or opened.descriptor < 0:
        return None
    try:
        copied = socket.socket(fileno=os.dup(opened.descriptor))
    except OSError:  # it was closed just now
        return None
    if opened.wrapper.connection is opened.raw:
        return copied
    copied.close()
    return None
