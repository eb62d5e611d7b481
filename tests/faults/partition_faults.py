"""Torture while the network is parted: a PostgreSQL primary that lives on, out of reach of its standby.

    python -m tests.faults.partition_faults --seconds 8 --rate 300

Needs root. The primary and its synchronous standby have a network namespace each. One fleet is on the host of the
primary; the other one and the producers are on neither. All know both servers: `host=a,b` and
`target_session_attrs=read-write`. `tortured` says what is printed.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tests.faults.hosts_faults import NETWORK, ip, networks, outer
from tests.faults.postgresql_faults import Server
from tests.faults.tortured import LONG, Load, main, tortured, until
from tests.server import USER, postgresql_socket, standby_socket

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Namespaces, in the order of their addresses.
PRIMARY, STANDBY = "dq-primary", "dq-standby"
ADDRESSES = {PRIMARY: f"{NETWORK}.2", STANDBY: f"{NETWORK}.3"}
#: The fleet on the primary's host.
BESIDE = "fleet 0"
#: Seconds that the standby waits before it takes over, as whatever decides that is not sure at once.
DECIDED = 1.0
#: Without these, a client waits for minutes for a host that has vanished: seconds, and milliseconds at the end.
PATIENCE = "connect_timeout=2&keepalives_idle=1&keepalives_interval=1&keepalives_count=2&tcp_user_timeout=2000"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


class Faults:
    """It returns when one server is left, which all reach."""

    def __init__(self, primary: Server, standby: Server) -> None:
        self._primary, self._standby = primary, standby
        self._is_parted = False
        #: Commits that the old primary could not acknowledge.
        self.in_vain = 0

    def part(self) -> None:
        """The cable of the primary's host is pulled, and the standby is promoted: for longer than a lease, both write.

        The old primary is stopped before anybody can reach it again, as its Patroni would have done when it could not
        renew its own lease. Nothing that runs on clients can replace that.
        """
        if not self._is_parted:
            self._is_parted = True
            ip("link", "set", outer(PRIMARY), "down")
            time.sleep(DECIDED)
            self._standby.promote()
            time.sleep(LONG)
            with self._primary.connection() as connection:
                self.in_vain = connection.execute(WAITING).fetchone()[0]
            self._primary.control("-m", "immediate", "stop")
            ip("link", "set", outer(PRIMARY), "up")


FAULTS = [name for name in vars(Faults) if not name.startswith("_")]


def on_host(role: str) -> list[str]:
    """What starts a command on the host of this process."""
    return ["ip", "netns", "exec", PRIMARY] if role == BESIDE else []


@contextmanager
def on_hosts() -> Iterator[tuple[Server, Server]]:
    """A primary and its synchronous standby, each on a host of its own."""
    with ExitStack() as stack:
        stack.enter_context(networks([*ADDRESSES]))
        primary = Server(stack.enter_context(postgresql_socket()))
        stack.callback(primary.control, "-m", "immediate", "stop")
        with (primary.data / "pg_hba.conf").open("a") as allowed:
            allowed.writelines(f"host {database} all {NETWORK}.0/24 trust\n" for database in ("all", "replication"))
        standby = Server(stack.enter_context(standby_socket(str(primary.data))))
        stack.callback(standby.control, "-m", "immediate", "stop")
        standby.set("primary_conninfo", f"'host={ADDRESSES[PRIMARY]} user={USER}'")
        for server, name in ((primary, PRIMARY), (standby, STANDBY)):
            server.move(name, ADDRESSES[name])
        primary.set("synchronous_standby_names", "'*'")
        until(standby.receives)
        yield primary, standby


def judged(fault: str, load: Load) -> dict[str, object]:
    """Start both servers, run torture with this fault alone, and say what came of it."""
    with on_hosts() as (primary, standby):
        hosts = ",".join(ADDRESSES.values())
        os.environ["DATABASE_URL"] = (
            f"postgres://{USER}@/postgres?host={hosts}&target_session_attrs=read-write&{PATIENCE}"
        )
        faults = Faults(primary, standby)
        said = tortured(fault, getattr(faults, fault, None), load._replace(prefix=on_host))
        return said | {"in_vain": faults.in_vain}


if __name__ == "__main__":
    main("tests.faults.partition_faults", __doc__, FAULTS, judged)
