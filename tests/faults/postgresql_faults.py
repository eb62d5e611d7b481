"""What a PostgreSQL server, its disk and the way to it can do under load: a torture run for each of these faults.

    python -m tests.faults.postgresql_faults --faults restart_fast,kill_server --seconds 8 --rate 300

The server is one of this process. `tortured` says what is printed; `conflicts` are its errors 40001. The faults of
`delayedq torture` can be named, too.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg

from delayedq.torture.audit import write
from delayedq.torture.processes import children
from tests.faults.clock import Clock
from tests.faults.standby import Lost, State, state_of
from tests.faults.tortured import LONG, ON_THE_WAY, Load, OnTheWay, fill, main, small_disk, tortured, until
from tests.proxy import Proxy
from tests.server import USER, PgBouncer, postgresql_socket, standby_socket

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from delayedq.torture.audit import Event

#: Seconds that an asynchronous standby lags behind.
LAG = 1.5
#: The WAL that a server on a small disk keeps.
WAL = "64MB"
#: After this time a session that nobody can reach lets go of its locks.
FORGOTTEN = "10s"
#: Seconds by which the clock of a server is put ahead.
AHEAD = 90


class Server:
    """A running PostgreSQL server whose socket is in the directory of its data."""

    def __init__(self, socket: str) -> None:
        self.data = Path(socket)
        self._programs = Path(f"/proc/{self.pid}/exe").readlink().parent
        self._prefix: tuple[str, ...] = ()

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def control(self, *words: str, variables: Mapping[str, str] | None = None) -> bool:
        """Whether `pg_ctl` has done that; a server that it starts has these variables of the environment, too."""
        account = self.data.owner() if os.getuid() == 0 and not self._prefix else None
        program = [*self._prefix, str(self._programs / "pg_ctl")]
        command = [*program, "-D", str(self.data), "-l", str(self.data / "log"), *words]
        quiet = subprocess.DEVNULL
        given = os.environ | (variables or {})
        done = subprocess.run(command, check=False, env=given, user=account, stdout=quiet, stderr=quiet)
        return done.returncode == 0

    def connection(self) -> psycopg.Connection[Any]:
        return psycopg.connect(host=str(self.data), user=USER, dbname="postgres", autocommit=True)

    def run(self, *statements: str) -> None:
        with self.connection() as connection:
            for statement in statements:
                connection.execute(statement)

    def set(self, name: str, value: str) -> None:
        self.run(f"ALTER SYSTEM SET {name} = {value}", "SELECT pg_reload_conf()")

    def move(self, namespace: str, address: str) -> None:
        """Restart it in this network namespace, where it listens at this address, too. Needs root."""
        owner = self.data.stat()
        account = ("-S", str(owner.st_uid), "-G", str(owner.st_gid))
        self._prefix = ("nsenter", f"--net=/run/netns/{namespace}", *account)
        self.control("-m", "fast", "-o", f"-k {self.data} -h {address}", "restart")

    def start(self) -> None:
        """Start it with the options that it had. The memory of one that was killed is in use for a moment."""
        until(lambda: self.control("-m", "immediate", "restart"))

    def has_replayed(self) -> bool:
        """Whether a standby receives nothing more, and has replayed what it has; the last record may be cut."""
        asked = "SELECT pg_last_wal_replay_lsn()::text"
        with self.connection() as connection:
            before = connection.execute(asked).fetchone()
            time.sleep(1)
            return not self.receives() and connection.execute(asked).fetchone() == before

    def receives(self) -> bool:
        """Whether a standby is connected with its primary."""
        with self.connection() as connection:
            return connection.execute("SELECT count(*) FROM pg_stat_wal_receiver").fetchone() != (0,)

    def state_in_private(self) -> State:
        """What a server that was killed has: it is started where nobody else looks for it, and stopped again."""
        with tempfile.TemporaryDirectory(prefix="delayedq-") as directory:
            shutil.chown(directory, self.data.owner(), self.data.group())
            until(lambda: self.control("-o", f"-h '' -k {directory} -c synchronous_standby_names=''", "start"))
            with psycopg.connect(host=directory, user=USER, dbname="postgres", autocommit=True) as connection:
                state = state_of(connection)
            self.control("-m", "immediate", "stop")
            return state

    def promote(self) -> int:
        """Of a standby. Returns a moment (ns of the audit) when it did not write yet: `pg_ctl` is late to notice."""
        before = time.monotonic_ns()
        until(lambda: self.control("promote"))
        return before

    def conflicts(self) -> int:
        """How many statements failed as their transactions could not be put in an order (40001)."""
        log = (self.data / "log").read_text(errors="replace")
        return log.count("could not serialize access")

    def kill(self) -> None:
        """As the kernel does that is short of memory; the sessions notice that the first process is gone."""
        os.kill(self.pid, signal.SIGKILL)


class Faults(OnTheWay):
    """Each disturbs for a while, and returns when the server is as before."""

    def __init__(
        self,
        server: Server,
        standby: Server | None,
        proxy: Proxy,
        bouncer: PgBouncer | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._server, self._standby, self._proxy = server, standby, proxy
        self._bouncer, self._clock = bouncer, clock
        self.lost: Lost | None = None

    def known(self, events: Sequence[Event]) -> Sequence[Event]:
        """The audit without what the database has lost."""
        return events if self.lost is None else self.lost.leave_out(events)

    def restart_fast(self) -> None:
        self._server.control("-m", "fast", "restart")

    def restart_immediate(self) -> None:
        self._server.control("-m", "immediate", "restart")

    def kill_server(self) -> None:
        self._server.kill()
        time.sleep(1)
        self._server.start()

    def stop_for_long(self) -> None:
        """Longer than a lease."""
        self._server.control("-m", "fast", "stop")
        time.sleep(LONG)
        self._server.start()

    def terminate_sessions(self) -> None:
        """One after the other, whatever they do."""
        some = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT"
        for _ in range(20):
            self._server.run(f"{some} NULL ORDER BY random() LIMIT 2")
            time.sleep(0.1)

    #: The same where OPTIONS have another isolation level, or a pool, and behind a pooler in transaction mode.
    repeatable_read = serializable = pool = pooler = terminate_sessions

    def restart_pooler(self) -> None:
        """SIGKILL, and a second later another one."""
        if self._bouncer is not None:
            self._bouncer.kill()
            time.sleep(1)
            self._bouncer.start()

    def clock_jumps(self) -> None:
        """That of the server is put ahead by many leases, and back again."""
        if self._clock is not None:
            self._jump(self._clock, AHEAD)
            time.sleep(LONG)
            self._jump(self._clock, 0)
            write("set back", AHEAD)

    def _jump(self, clock: Clock, ahead: int) -> None:
        """All leases have run out: the judge is told that nobody who runs a message then holds it any more."""
        workers = [pid for fleet in children(os.getpid()) for pid in children(fleet)]
        for what, change in (("frozen", lambda: clock.put(ahead)), ("thawed", lambda: None)):
            for pid in workers:
                write(what, pid=pid)
            change()

    def end_listeners(self) -> None:
        """Only those that wait for notifications."""
        self._server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        time.sleep(1)

    def take_all_connections(self) -> None:
        """While all sessions of the workers are ended, too."""
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'postgres'"
        with ExitStack() as taken, self._server.connection() as own:
            for _ in range(3):
                with suppress(psycopg.OperationalError):
                    while True:
                        taken.enter_context(psycopg.connect(host=str(self._server.data), user="hog", dbname="postgres"))
                own.execute(f"{ended} AND pid <> pg_backend_pid()")
            time.sleep(LONG)

    def read_only(self) -> None:
        self._server.set("default_transaction_read_only", "on")
        time.sleep(LONG)
        self._server.run("SET default_transaction_read_only = off", "ALTER SYSTEM RESET default_transaction_read_only",
                         "SELECT pg_reload_conf()")  # fmt: skip

    def fill_disk(self) -> None:
        """That of data and WAL: the server refuses to write, or ends."""
        filler = fill(self._server.data)
        time.sleep(LONG)
        filler.unlink()
        with suppress(psycopg.OperationalError):
            self._server.run("CHECKPOINT")
            return
        self._server.start()

    def delay(self) -> None:
        self._proxy.delay = 0.02
        time.sleep(LONG)
        self._proxy.delay = 0.0

    def fail_over(self) -> None:
        """The primary is gone for good, and its synchronous standby takes over."""
        if self._standby is not None and (self._server.data / "postmaster.pid").exists():
            self._server.kill()
            (self._server.data / "postmaster.pid").unlink()
            self._standby.promote()

    def fail_over_asynchronously(self) -> None:
        """The standby lags behind when the primary is gone: what it had not got is lost, and nothing else."""
        if self._standby is not None and (self._server.data / "postmaster.pid").exists():
            self._standby.set("primary_conninfo", "''")
            until(lambda: not self._standby.receives())
            time.sleep(LAG)
            self._server.kill()
            (self._server.data / "postmaster.pid").unlink()
            until(self._standby.has_replayed)
            with self._standby.connection() as connection:
                behind = state_of(connection)
            promoted = self._standby.promote()
            self.lost = Lost(self._server.state_in_private(), behind, promoted)

    def switch_over(self) -> None:
        """As an operator does it: the primary is stopped, which sends the standby all, and stays away."""
        if self._standby is not None and (self._server.data / "postmaster.pid").exists():
            self._server.control("-m", "fast", "stop")
            self._standby.promote()


#: What a project sets otherwise than others: variables of `tests.worker_settings`.
SETTINGS = {
    "repeatable_read": {"ISOLATION": "repeatable read"},
    "serializable": {"ISOLATION": "serializable"},
    "pool": {"POOL": json.dumps({"min_size": 1, "max_size": 4, "timeout": 5})},
}
BEHIND_A_POOLER = {"pooler", "restart_pooler"}
WITH_A_CLOCK = {"clock_jumps"}
#: Those that change bytes on their way, that need a disk of their own, and that need a second server.
PROXIED = {*ON_THE_WAY, "delay"}
ON_A_DISK, WITH_A_STANDBY = {"fill_disk"}, {"fail_over", "fail_over_asynchronously", "switch_over"}
#: Their standby gets commits before they are acknowledged.
SYNCHRONOUS = {"fail_over"}
FAULTS = [*(name for name in vars(Faults) if not name.startswith("_") and name != "known"), *ON_THE_WAY]


def judged(fault: str, load: Load) -> dict[str, object]:
    """Start a server, run torture with this fault alone, and say what came of it."""
    with ExitStack() as stack:
        if fault in ON_A_DISK:
            tempfile.tempdir = str(stack.enter_context(small_disk()))
        server = Server(stack.enter_context(postgresql_socket()))
        tempfile.tempdir = None  # the audit has room
        given = {"max_wal_size": WAL, "idle_in_transaction_session_timeout": FORGOTTEN}
        server.run(*(f"ALTER SYSTEM SET {name} = '{value}'" for name, value in given.items()))
        server.run("CREATE ROLE hog LOGIN", "SELECT pg_reload_conf()")
        standby = None
        if fault in WITH_A_STANDBY:
            standby = Server(stack.enter_context(standby_socket(str(server.data))))
            if fault in SYNCHRONOUS:
                server.set("synchronous_standby_names", "'*'")
        proxy = Proxy(str(server.data / ".s.PGSQL.5432"))
        stack.callback(proxy.close)
        hosts = ",".join(str(one.data) for one in (server, standby) if one)
        url = f"postgres://{USER}@/postgres?host={quote(hosts, safe='')}"
        os.environ["DATABASE_URL"] = url + ("&target_session_attrs=read-write" if standby else "")
        if fault in PROXIED:
            os.environ["PROXY"] = proxy.address
        os.environ |= SETTINGS.get(fault, {})
        bouncer = clock = None
        if fault in BEHIND_A_POOLER:
            os.environ["POOLER"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="pgb-"))
            bouncer = PgBouncer(str(server.data), os.environ["POOLER"])
            stack.callback(bouncer.kill)
            bouncer.start()
        if fault in WITH_A_CLOCK:
            clock = stack.enter_context(Clock())
            server.control("-m", "fast", "restart", variables=clock.variables)
        faults = Faults(server, standby, proxy, bouncer, clock)
        said = tortured(fault, getattr(faults, fault, None), load._replace(judged=faults.known))
        said |= {"conflicts": server.conflicts()}
        return said | ({} if faults.lost is None else {"lost": faults.lost.told()})


if __name__ == "__main__":
    main("tests.faults.postgresql_faults", __doc__, FAULTS, judged)
