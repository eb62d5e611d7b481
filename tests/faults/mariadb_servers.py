"""MariaDB servers that a fault may stop, kill and start again with the data that they had; also nodes of a cluster."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from tests.faults.tortured import STARTUP, until
from tests.server import NO_SYNC, NoServer, _program

try:
    import MySQLdb
except ImportError:  # the tests of these servers ask for the fixture `mariadb`, which says what is missing
    MySQLdb = None

if TYPE_CHECKING:
    from pathlib import Path

#: The account of the workers, which has none of the privileges that pass by `read_only` and `max_connections`.
USER, NAME = "app", "delayedq"
#: The kernel kills the server when the thread that has started it ends.
WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]
#: As root it runs as Debian's account for it: rsync, which brings a node its state, would give up root's rights.
ACCOUNT = "mysql" if os.getuid() == 0 else getpass.getuser()
AS_ACCOUNT = [f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups"] if os.getuid() == 0 else []


class Server:
    """A server with data in `directory`, which is made; a context manager that kills it in the end. It does not wait
    for the disk, and listens on a socket, unless `options` say otherwise. Raises NoServer.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        self.socket = directory / "socket"
        self._directory = directory
        self._where = ["--no-defaults", f"--datadir={directory}/data", f"--tmpdir={directory}", f"--user={ACCOUNT}"]
        self._options = [
            *NO_SYNC, *(options or ["--skip-networking"]), f"--socket={self.socket}", f"--pid-file={directory}/pid"
        ]  # fmt: skip
        self._running: subprocess.Popen[bytes] | None = None
        self._log = directory / "log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """The database of the workers, for DATABASE_URL."""
        return f"mysql://{USER}@localhost/{NAME}?unix_socket={quote(str(self.socket), safe='')}"

    def install(self) -> None:
        """Make its data."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._directory.parent.chmod(0o755)
        shutil.chown(self._directory, ACCOUNT)
        install = [*self._where, "--auth-root-authentication-method=normal", "--skip-test-db"]
        try:
            with self._log.open("wb") as log:
                subprocess.run([_program("mariadb-install-db"), *install], check=True, stdout=log, stderr=log)
        except (OSError, subprocess.SubprocessError) as error:
            raise NoServer(f"MariaDB was not installed: {error!r}") from error

    def create(self) -> None:
        """Make the database and the account of the workers."""
        self.run(
            f"CREATE DATABASE {NAME} CHARACTER SET utf8mb4",
            f"CREATE USER {USER}@'%'",
            f"GRANT ALL ON {NAME}.* TO {USER}@'%'",
        )

    def start(self, *options: str, patience: float = STARTUP) -> None:
        """Start it, and wait until it answers. Raises NoServer."""
        command = [*WITH_PARENT, *AS_ACCOUNT, _program("mariadbd"), *self._where, *self._options, *options]
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until(lambda: self.answers() or self._running.poll() is not None, patience)
        except TimeoutError as error:
            raise NoServer(f"MariaDB did not start: {self.said()}") from error
        if self._running.poll() is not None:
            raise NoServer(f"MariaDB ended: {self.said()}")

    @property
    def is_running(self) -> bool:
        return self._running is not None and self._running.poll() is None

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-2_000:]

    def answers(self) -> bool:
        with suppress(MySQLdb.Error), self.connection():
            return True
        return False

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self._running is not None:
            self._running.terminate()
            self._running.wait(STARTUP)

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.wait(STARTUP)

    def connection(self) -> MySQLdb.connections.Connection:
        """As root, who may do all, and gets a connection when there is none left."""
        return MySQLdb.connect(unix_socket=str(self.socket), user="root", autocommit=True, connect_timeout=5)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """What the last of them answers."""
        with self.connection() as connection:
            return ask(connection, *statements)


def ask(connection: MySQLdb.connections.Connection, *statements: str) -> list[tuple[Any, ...]]:
    """What the last of them answers."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())
