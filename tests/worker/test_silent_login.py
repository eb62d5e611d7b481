"""A server of MySQL's protocol that falls silent while a connection to it is opened."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from django.db import Error, connections

from delayedq.worker.silence import answered
from tests.worker.attempts import PATIENCE

pytestmark = pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
#: Protocol 10, a version, an identifier, a salt in two parts, what it can do (all but TLS), utf8mb4, autocommit.
GREETING = (
    b"\x0a8.4.0\0\x01\0\0\0abcdefgh\0\xff\xf7\x2d\x02\0\xff\x81\x15"
    + 10 * b"\0"
    + b"ijklmnopqrst\0mysql_native_password\0"
)
#: The driver then asks on for the character set and autocommit.
OK = b"\0\0\0\x02\0\0\0"


def packet(number, content):
    return len(content).to_bytes(3, "little") + bytes([number]) + content


class SilentServer:
    """Says so many packets of a login, and nothing after them."""

    def __init__(self, packets):
        self._packets, self._server, self._kept = packets, socket.create_server(("127.0.0.1", 0)), []
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    @contextmanager
    def ended_after(self, seconds):
        """So that a client which would wait for ever fails its test."""
        timer = threading.Timer(seconds, self.end)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def end(self):
        for one in (self._server, *self._kept):
            with suppress(OSError):  # it has ended
                one.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.end()
        self._thread.join()
        for one in (self._server, *self._kept):
            one.close()

    def _accept(self):
        with suppress(OSError):  # it is closed
            while True:
                one = self._server.accept()[0]
                self._kept.append(one)
                for number, content in enumerate(self._packets):
                    one.sendall(packet(2 * number, content))
                    one.recv(4096)


@pytest.fixture(params=[(), (GREETING,), (GREETING, OK)], ids=["accepts", "greets", "lets in"])
def server(request, alias, monkeypatch):
    one = SilentServer(request.param)
    given = {
        "HOST": "127.0.0.1",
        "PORT": str(one.port),
        "USER": "a",
        "PASSWORD": "b",
        "OPTIONS": {"connect_timeout": 2},
    }
    monkeypatch.setitem(connections.settings, "silent", {**connections[alias].settings_dict, **given})
    yield one
    connections["silent"].close()
    del connections["silent"]
    one.close()


def test_whoever_opens_a_connection_waits_no_longer_than_allowed(server):
    began = time.monotonic()
    with server.ended_after(PATIENCE), pytest.raises(Error), answered("a first question", "silent", 1.0):
        connections["silent"].ensure_connection()
    assert time.monotonic() - began < PATIENCE
    assert connections["silent"].connection is None
