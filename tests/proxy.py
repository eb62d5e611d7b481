"""A proxy on the loopback that forwards bytes until it is told to forward none, in one direction or both."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress


class Proxy:
    """Forwards to `target`: an address (host, port), or the path of a socket. `here`: the path of a socket of its own;
    None: it listens at a port.
    """

    def __init__(self, target, here=None):
        self._target = target
        self._open, self._ended = {"up": threading.Event(), "down": threading.Event()}, False
        self.go_on()
        if here is None:
            self._server = socket.create_server(("127.0.0.1", 0))
        else:
            self._server = socket.create_server(here, family=socket.AF_UNIX)
        self.address = here or f"127.0.0.1:{self._server.getsockname()[1]}"
        self._sockets, self._silent, self._closing = [], set(), threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self.delay = 0.0
        self._last_words, self._hides_ends = None, False

    def hold(self, *directions):
        """Forward nothing any more, "up" to the server or "down" to the client, and close nothing."""
        for direction in directions or self._open:
            self._open[direction].clear()

    def go_on(self):
        for each in self._open.values():
            each.set()

    def forget(self):
        """What is open now is never answered again, and not closed either; new connections are forwarded."""
        self._silent.update(self._sockets)

    def forget_after(self, words):
        """The same as soon as these bytes have gone to the server, which hears of no end of a client, either."""
        self._last_words = words

    def close(self):
        self._ended = True
        self._closing.set()
        self.go_on()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _accept(self):
        while not self._ended:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
            server.connect(self._target)
            self._sockets += [client, server]
            for pair in ((client, server, "up"), (server, client, "down")):
                self._threads.append(threading.Thread(target=self._forward, args=pair, daemon=True))
                self._threads[-1].start()

    def _forward(self, source, target, direction):
        with suppress(OSError):
            while data := source.recv(65_536):
                self._open[direction].wait()
                if source in self._silent:
                    self._closing.wait()
                time.sleep(self.delay)
                target.sendall(data)
                if self._last_words is not None and direction == "up" and self._last_words in data:
                    self._last_words, self._hides_ends = None, True
                    self.forget()
        if self._hides_ends and source in self._silent:
            self._closing.wait()
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
