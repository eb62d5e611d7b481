"""What a MariaDB server, its disk and the way to it can do under load: a torture run for each of these faults.

    python -m tests.faults.mariadb_faults --faults restart,kill_server --seconds 8 --rate 300

The server is one of this process. `tortured` says what is printed. The faults of `delayedq torture` can be named, too.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.faults.mariadb_servers import USER, MySQLdb, Server, ask
from tests.faults.tortured import LONG, ON_THE_WAY, Load, OnTheWay, fill, main, small_disk, tortured, until
from tests.proxy import Proxy


class Faults(OnTheWay):
    """Each disturbs for a while, and returns when the server is as before."""

    def __init__(self, server: Server, disk: Path, proxy: Proxy) -> None:
        self._server, self._disk, self._proxy = server, disk, proxy
        self._random = random.Random(7)

    def restart(self) -> None:
        self._server.stop()
        self._server.start()

    def kill_server(self) -> None:
        self._server.kill()
        time.sleep(1)
        self._server.start()

    def stop_for_long(self) -> None:
        """Longer than a lease."""
        self._server.stop()
        time.sleep(LONG)
        self._server.start()

    def kill_connections(self) -> None:
        """One after the other, whatever they do."""
        self._kill("CONNECTION")

    def kill_statements(self) -> None:
        """Their connections go on."""
        self._kill("QUERY")

    def _kill(self, what: str) -> None:
        with self._server.connection() as own:
            for _ in range(20):
                self._kill_some(own, what, 2)
                time.sleep(0.1)

    def _kill_some(self, own: MySQLdb.connections.Connection, what: str, most: int) -> None:
        theirs = [row[0] for row in ask(own, "SHOW PROCESSLIST") if row[1] == USER]
        for one in self._random.sample(theirs, min(most, len(theirs))):
            with suppress(MySQLdb.Error):  # it has ended by itself
                ask(own, f"KILL {what} {one}")

    def take_all_connections(self) -> None:
        """While those of the workers are killed, too."""
        with ExitStack() as stack:
            own = stack.enter_context(self._server.connection())
            for _ in range(3):
                with suppress(MySQLdb.Error):
                    while True:
                        stack.enter_context(MySQLdb.connect(unix_socket=str(self._server.socket), user="hog"))
                self._kill_some(own, "CONNECTION", 1_000)
            time.sleep(LONG)

    def read_only(self) -> None:
        self._server.run("SET GLOBAL read_only = 1")
        time.sleep(LONG)
        self._server.run("SET GLOBAL read_only = 0")

    def lock_everything(self) -> None:
        """As a backup does, for longer than a lease: who writes waits."""
        with self._server.connection() as held, held.cursor() as cursor:
            cursor.execute("FLUSH TABLES WITH READ LOCK")
            time.sleep(LONG)

    def fill_disk(self) -> None:
        """The server refuses to write, waits, or ends."""
        filler = fill(self._disk)
        time.sleep(LONG)
        filler.unlink()
        if not self._server.is_running:
            self._server.start()
        until(self._server.answers)


#: Seconds after which a session that nobody can reach lets go of its locks.
FORGOTTEN = 10
#: Those that change bytes on their way, and that need a disk of their own.
PROXIED = {*ON_THE_WAY}
ON_A_DISK = {"fill_disk"}
FAULTS = [*(name for name in vars(Faults) if not name.startswith("_")), *ON_THE_WAY]


def judged(fault: str, load: Load) -> dict[str, object]:
    """Start a server, run torture with this fault alone, and say what came of it."""
    with ExitStack() as stack:
        if fault in ON_A_DISK:
            directory = stack.enter_context(small_disk())
        else:
            temporary = tempfile.TemporaryDirectory(prefix="delayedq-", ignore_cleanup_errors=True)
            directory = Path(stack.enter_context(temporary))
        server = stack.enter_context(Server(directory / "server"))
        server.install()
        server.start()
        server.create()
        server.run("CREATE USER hog@'%'", f"SET GLOBAL idle_transaction_timeout = {FORGOTTEN}")
        os.environ["DATABASE_URL"] = server.url
        if fault in PROXIED:
            proxy = Proxy(str(server.socket), str(directory / "proxy"))
            stack.callback(proxy.close)
            os.environ["PROXY"] = proxy.address
        else:
            proxy = None
        return tortured(fault, getattr(Faults(server, directory, proxy), fault, None), load)


if __name__ == "__main__":
    main("tests.faults.mariadb_faults", __doc__, FAULTS, judged)
