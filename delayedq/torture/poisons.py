"""What a task does that harms its own process, or whoever uses that after it; nothing outside of that process."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from django.db import Error, connections

from delayedq import current_message
from delayedq.store import served_store
from delayedq.torture.audit import write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: Seconds of a call into C: more than a lease. Bytes that a process may still take when memory is short.
HELD, LEFT = 5, 8_000_000
#: In so many pieces it is taken.
PIECES = 16
#: By vendor, what changes a session so that others of the same one would fail, or read something else.
SESSIONS = {
    "postgresql": ["SET search_path = nowhere", "SET statement_timeout = 1", "SET default_transaction_read_only = on"],
    "mysql": ["SET SESSION sql_mode = 'ANSI_QUOTES'", "SET SESSION TRANSACTION READ ONLY", "SET autocommit = 0"],
    "sqlite": ["PRAGMA query_only = 1"],
}
_limited = Lock()


# What its process does not survive, or its attempt.


def leave() -> None:
    """Without a word, as a library in C does."""
    os._exit(1)


def be_killed() -> None:
    """As the kernel does it that is short of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)  # until the signal comes


def read_nowhere() -> None:
    """SIGSEGV; without a dump of the memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def take_all_memory() -> None:
    """Others of the process get none for a moment, either. One at a time: each leaves the limit that it has found."""
    with _limited:
        before = resource.getrlimit(resource.RLIMIT_AS)
        taken: list[bytearray] = []
        try:
            resource.setrlimit(resource.RLIMIT_AS, (_size() + LEFT, before[1]))
            for _ in range(4 * PIECES):
                taken.append(bytearray(LEFT // PIECES))
                time.sleep(0.002)
            raise MemoryError  # of a system that grants more than it should
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
            taken.clear()
            write("killed", "short of memory")  # what others began meanwhile may have failed anywhere


def _size() -> int:
    """Bytes of address space that this process has; on a system that does not say, so few that nothing is left."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0


# What returns.


def hold_the_interpreter() -> None:
    """A call into C for longer than a lease: no other thread of the process goes on, and no answer is read."""
    write("unanswered")
    ctypes.PyDLL(None).sleep(HELD)


def return_twice() -> None:
    """In a child, too."""
    os.fork()


def exit_child() -> None:
    if os.fork() == 0:
        sys.exit(0)


def leave_child() -> None:
    """It outlives the task."""
    if os.fork() == 0:
        time.sleep(HELD)
        os._exit(0)


def close_connections() -> None:
    connections.close_all()


def close_below_django() -> None:
    connection = connections[served_store().alias]
    connection.ensure_connection()
    connection.connection.close()


def change_session() -> None:
    connection = connections[served_store().alias]
    with connection.cursor() as cursor:
        for statement in SESSIONS.get(connection.vendor, []):
            with suppress(Error):  # one that the statement before forbids
                cursor.execute(statement)


def change_process() -> None:
    """Where it is, and what it says."""
    os.chdir("/")
    sys.stdout.close()


def exit_once() -> None:
    """As `sys.exit()` does, which a library may call."""
    if current_message().attempt == 1:
        raise SystemExit(1)


def interrupt_once() -> None:
    if current_message().attempt == 1:
        raise KeyboardInterrupt


# What returns to the event loop.


async def fork_in_the_loop() -> None:
    os.fork()
    await asyncio.sleep(0)


async def exit_beside() -> None:
    """In a task of its own."""

    async def end() -> None:
        raise SystemExit(1)

    beside = asyncio.create_task(end())
    await asyncio.wait([beside])


async def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()


DEADLY: dict[str, Callable[[], None]] = {one.__name__: one for one in (leave, be_killed, read_nowhere, take_all_memory)}
RUDE: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        hold_the_interpreter,
        return_twice,
        exit_child,
        leave_child,
        close_connections,
        close_below_django,
        change_session,
        change_process,
        exit_once,
        interrupt_once,
    )
}
RUDE_ASYNC: dict[str, Callable[[], Awaitable[None]]] = {
    one.__name__: one for one in (fork_in_the_loop, exit_beside, stop_the_loop)
}
