"""Whether a supervisor's workers live, and take work: from shared memory, so that no database is asked.

Who asks: the file of `--health-file`, the answers of `--health-port`, and systemd.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

from delayedq.worker.endpoints import Answer, Endpoint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from delayedq.worker.fleet import Fleet

logger = logging.getLogger("delayedq")

#: A loop turns every 3 s at least; one that has not for this many seconds is stuck, or its process is frozen.
STILL = 30.0
#: A loop that has given out no work for this many seconds waits for its database.
SILENT = 10.0
#: Seconds between two writes of the file, and messages to systemd, at most.
EVERY = 1.0


class Liveness:
    """Of all fleets of a supervisor."""

    def __init__(self, fleets: Sequence[Fleet]) -> None:
        self._fleets = fleets

    def live(self) -> bool:
        """True if each fleet has a worker process whose loop turns. A database that is away changes nothing."""
        return all(any(leases.pid and leases.still_for() < STILL for leases in one.leases) for one in self._fleets)

    def ready(self) -> bool:
        """True if each fleet has a worker process that claims, or would if something were due."""
        return self.live() and all(
            any(leases.pid and leases.silent_for() < SILENT and not leases.away for leases in one.leases)
            for one in self._fleets
        )

    def endpoint(self, address: str, port: int) -> Endpoint:
        """Answers with 200 or 503 at `/live` and `/ready`."""
        return Endpoint(address, port, {
            "/live": lambda _: _answer("live", self.live()), "/ready": lambda _: _answer("ready", self.ready())
        })  # fmt: skip


def _answer(word: str, is_so: bool) -> Answer:
    if is_so:
        return Answer(f"{word}\n".encode())
    return Answer(f"not {word}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)


class HealthFile:
    """A file that is written anew while the workers live, and removed when the supervisor ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = True

    def tell(self, *, live: bool) -> None:
        """Its time of modification says when the workers were last seen alive."""
        if not live:
            return
        try:
            self._path.write_text(f"{os.getpid()}\n")
        except OSError as error:  # what a full disk has no room for; it still takes the time
            if self._written:
                logger.warning("The health file %s can't be written: %s", self._path, error)
            self._written = False
            with suppress(OSError):
                os.utime(self._path)
        else:
            self._written = True

    def remove(self) -> None:
        with suppress(OSError):
            self._path.unlink()


class SystemD:
    """Tells systemd that the service is ready, alive, and stopping, if it asks for that (`Type=notify`)."""

    def __init__(self) -> None:
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        pid = os.environ.get("WATCHDOG_PID", str(os.getpid()))
        self._watched = "WATCHDOG_USEC" in os.environ and pid == str(os.getpid())
        self._ready = False

    def tell(self, *, live: bool) -> None:
        """READY does not wait for a database that is away: systemd would end a start that lasts, and try again."""
        if live and not self._ready:
            self._ready = True
            self._send("READY=1")
        if live and self._watched:
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(address)
            sender.send(state.encode())


class Reporting:
    """What the supervisor tells others about its workers, at most once a second."""

    def __init__(self, liveness: Liveness, file: HealthFile | None = None) -> None:
        self._liveness = liveness
        self._file = file
        self._systemd = SystemD()
        self._next_at = 0.0

    def tell(self) -> None:
        if time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + EVERY
        live = self._liveness.live()
        self._systemd.tell(live=live)
        if self._file is not None:
            self._file.tell(live=live)

    def stopping(self) -> None:
        self._systemd.stopping()

    def over(self) -> None:
        if self._file is not None:
            self._file.remove()
