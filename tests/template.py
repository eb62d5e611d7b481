"""A template process: it has set up Django, and each command that a test starts is forked from it.

The command is a process of its own, with its own pid, environment, session and streams, as after a cold start; what it
saves is the half second in which Python imports Django and the apps. There is one template for each environment, since
that makes the settings. An environment that is seen for the first time starts cold: it may never come again.
"""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from io import TextIOWrapper

ROOT = Path(__file__).parents[1]
#: At most so many templates of one process of pytest; each takes 60 MB.
MOST = 8


class Templates:
    """Those of this process, by their environments."""

    def __init__(self) -> None:
        self._seen: set[frozenset[tuple[str, str]]] = set()
        self._templates: dict[frozenset[tuple[str, str]], Template] = {}

    def start(self, words: list[str], environment: dict[str, str]) -> subprocess.Popen[str] | Forked:
        """`python -m django`, with its output and its errors in one pipe, in a session of its own.

        With --reload it starts cold: it starts itself again, in the way in which it was started.
        """
        environment = {name: value for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"}
        if "--reload" not in words and (template := self._template(environment)):
            return template.fork(words)
        return subprocess.Popen(
            [sys.executable, "-m", "django", *words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _template(self, environment: dict[str, str]) -> Template | None:
        """The one of this environment; None if there is none yet."""
        key = frozenset(environment.items())
        if key not in self._templates and key in self._seen and len(self._templates) < MOST:
            self._templates[key] = Template(environment)
        self._seen.add(key)
        return self._templates.get(key)

    def pids(self) -> set[str]:
        return {str(one.process.pid) for one in self._templates.values()}

    def stop(self) -> None:
        for one in self._templates.values():
            one.stop()
        self._templates.clear()


class Template:
    """One of them. It ends when this process closes its socket."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._socket, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-m", "tests.template", str(far_end.fileno())]
        self.process = subprocess.Popen(
            words, cwd=ROOT, env=environment, pass_fds=[far_end.fileno()], stdin=subprocess.DEVNULL
        )
        far_end.close()
        self._lock = Lock()
        self._forked = 0
        self._ended: dict[int, int] = {}

    def fork(self, words: list[str]) -> Forked:
        read_end, write_end = os.pipe()
        try:
            socket.send_fds(self._socket, ["\0".join(words).encode()], [write_end])
        finally:
            os.close(write_end)
        with self._lock:
            self._forked = 0
            while not self._forked:
                self._receive(None)
            return Forked(self, self._forked, read_end)

    def _receive(self, seconds: float | None) -> bool:
        """Hear of a process that was forked, or that has ended; False: of none in so many seconds."""
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(64)
        except (TimeoutError, BlockingIOError):
            return False
        assert data, "The template has ended."
        pid, *status = array.array("q", data)
        if status:
            self._ended[pid] = os.waitstatus_to_exitcode(status[0])
        else:
            self._forked = pid
        return True

    def ended(self, pid: int, seconds: float) -> int | None:
        """The exit code of a process that has ended, or does within so many seconds."""
        give_up_at = time.monotonic() + seconds
        with self._lock:
            while pid not in self._ended:
                left = max(0.0, give_up_at - time.monotonic())
                if not self._receive(left) and left <= 0:
                    return None
        return self._ended[pid]

    def stop(self) -> None:
        self._socket.close()
        self.process.wait()


class Forked:
    """A process that was forked from a template, as far as tests use of `subprocess.Popen`."""

    def __init__(self, template: Template, pid: int, read_end: int) -> None:
        self._template = template
        self.pid = pid
        self.stdout: TextIOWrapper = os.fdopen(read_end, "r", encoding="utf-8", errors="replace")
        self.returncode: int | None = None
        self._written = b""

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._template.ended(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float = 600.0) -> int:
        if self.returncode is None:
            self.returncode = self._template.ended(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def communicate(self, timeout: float = 600.0) -> tuple[str, None]:
        """Read what it and its children write, until all have closed the pipe, and wait for its end."""
        give_up_at = time.monotonic() + timeout
        while not self.stdout.closed:
            descriptor = self.stdout.fileno()
            if not select.select([descriptor], [], [], max(0.0, give_up_at - time.monotonic()))[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout, self._written)
            chunk = os.read(descriptor, 65_536)
            self._written += chunk
            if not chunk:
                self.stdout.close()
        self.wait(max(0.0, give_up_at - time.monotonic()))
        return self._written.decode(errors="replace"), None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


TEMPLATES = Templates()


# What runs in the template


def serve(descriptor: int) -> None:
    """Fork a process for each request, and tell of each that has ended, until the other end is closed."""
    import django

    django.setup()
    import_what_commands_import()
    own = socket.socket(fileno=descriptor)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([own, read_end], [], [])
        if read_end in ready:
            os.read(read_end, 4096)
            tell_ends(own)
        if own in ready:
            data, descriptors, _, _ = socket.recv_fds(own, 65_536, 1)
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                for one in (read_end, write_end):
                    os.close(one)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                own.close()
                become(data.decode().split("\0"), descriptors[0])
            os.close(descriptors[0])
            own.send(array.array("q", [pid]).tobytes())


def import_what_commands_import() -> None:
    """Most of what `run_workers` imports when it begins."""
    import delayedq.management.commands.run_workers
    import delayedq.store.postgresql.store
    import delayedq.store.sqlite.store  # noqa: F401


def tell_ends(own: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        own.send(array.array("q", [pid, status]).tobytes())


def become(words: list[str], output: int) -> NoReturn:
    """Be that command."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    sys.argv = ["django", *words]
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
    sys.exit(0)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
