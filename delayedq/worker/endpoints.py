"""The process that answers HTTP for all processes of a supervisor: metrics and health. Without it, nothing listens.

It is forked, so that a slow database or a busy scraper keeps no supervisor from its workers.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

from django.db import connections

from delayedq.store.connecting import use_worker_connections
from delayedq.worker.child import STOP_SIGNALS, Restarts, fork, leave, reason_of, signals_held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.context import ForkProcess
    from pathlib import Path

    from delayedq.worker.supervisor import Fleet

logger = logging.getLogger("delayedq")

#: Seconds between two looks whether the supervisor lives.
LOOK = 1.0

#: Seconds that a client may take to send its request.
PATIENCE = 5


class EndpointAnswer(NamedTuple):
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


class Endpoint(NamedTuple):
    """What is answered at an address and port, by path; each is called with the Accept header of the request."""

    address: str
    port: int
    answers: Mapping[str, Callable[[str], EndpointAnswer]]


class Endpoints:
    """One process for all of them, started again when it dies."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints
        self._process: ForkProcess | None = None
        self._restarts = Restarts()

    def start_due(self) -> None:
        """Start the process if there is none, and its pause is over."""
        if self._process is not None and not self._process.is_alive():
            pause, code = self._restarts.died(), self._process.exitcode or 0
            logger.error("The process that answers HTTP died (%s); another starts in %.1f s.", reason_of(code), pause)
            self._process = None
        if self._process is None and self._endpoints and not self._restarts.due_in():
            self._restarts.started()
            with signals_held_back():
                self._process = fork.Process(target=self._serve, args=(os.getpid(),), name="delayedq-endpoints")
                self._process.start()

    def watched(self) -> Iterator[int]:
        """What is ready when the process ends."""
        if self._process is not None:
            yield self._process.sentinel

    def stop(self) -> None:
        """End the process: the supervisor ends."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def _serve(self, supervisor: int) -> None:
        signal.set_wakeup_fd(-1)
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # it ends with its supervisor
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        use_worker_connections()
        try:
            for endpoint in self._endpoints:
                server = _server(endpoint)
                threading.Thread(target=server.serve_forever, daemon=True).start()
        except OSError:
            logger.exception("Nothing can listen on port %s of %r.", endpoint.port, endpoint.address)
            leave(1)
        while os.getppid() == supervisor:
            time.sleep(LOOK)
        leave(0)


def listen(address: str, port: int) -> socket.socket:
    """A socket that listens at this address of IPv4 or IPv6; "": at all of this host, of both. Raises OSError."""
    if not address and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    found = socket.getaddrinfo(address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, place = found[0]
    return socket.create_server(place, family=family)


def _server(endpoint: Endpoint) -> ThreadingHTTPServer:
    """It makes a socket of IPv4 alone, and asks the name servers for the name of its address."""
    place = (endpoint.address, endpoint.port)
    server = ThreadingHTTPServer(place, _requests(endpoint.answers), bind_and_activate=False)
    server.socket.close()
    server.socket = listen(*place)
    return server


def _requests(answers: Mapping[str, Callable[[str], EndpointAnswer]]) -> type[BaseHTTPRequestHandler]:
    class Requests(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            try:
                found = answer(self.headers.get("Accept", "")) if answer else _unknown(answers)
            finally:
                connections.close_all()  # each request has a thread
            with suppress(ConnectionError):  # whoever asked has given up
                self.send_response(found.status)
                self.send_header("Content-Type", found.content_type)
                self.send_header("Content-Length", str(len(found.body)))
                self.end_headers()
                self.wfile.write(found.body)

        def log_message(self, *_: object) -> None:
            """Probes come every few seconds."""

    return Requests


def _unknown(answers: Mapping[str, object]) -> EndpointAnswer:
    return EndpointAnswer(f"There are {', '.join(sorted(answers))}.\n".encode(), status=HTTPStatus.NOT_FOUND)


# Whether a supervisor's workers live, and take work: from shared memory, so that no database is asked.
#
# Who asks: the file of `--health-file`, the answers of `--health-port`, and systemd.


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


def _answer(word: str, is_so: bool) -> EndpointAnswer:
    if is_so:
        return EndpointAnswer(f"{word}\n".encode())
    return EndpointAnswer(f"not {word}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)


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
