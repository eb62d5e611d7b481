"""How a process of `run_pipeline` ends: by SIGTERM, and with the worker that has started it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The option of a process whose standard input is a pipe from whoever waits for it, and closes it by ending.
OPTION = "--until-stdin-ends"
#: The exit code of an archive that another one keeps from its work (EX_TEMPFAIL of sysexits.h).
BUSY = 75
#: Seconds that a process has to end its Spark and to delete what it has left on the disk.
UNWINDING = 20.0
#: The exit code of a process that SIGTERM has ended, as shells tell it.
_ENDED = 128 + signal.SIGTERM


@contextmanager
def unwound_by_sigterm() -> Iterator[None]:
    """A SIGTERM ends the block as an exception does: it gives back its lease, and deletes its temporary files.

    Of a thread that is not the main one, Python handles no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(*_: object) -> NoReturn:
    """A second SIGTERM would end the block as it gives back what it has, which therefore has a limit."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_at_last, name="delayedq-ending", daemon=True).start()
    sys.exit(_ENDED)


def _end_at_last() -> NoReturn:
    time.sleep(UNWINDING)
    os._exit(_ENDED)


def end_with_stdin() -> None:
    """Send SIGTERM to this process when its standard input ends, and end it if it does not follow."""
    threading.Thread(target=_watch, name="delayedq-stdin", daemon=True).start()


def _watch() -> None:
    while os.read(0, 1024):
        pass
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)  # it may wait for Java
    _end_at_last()
