"""Torture with each fleet on a host of its own: network namespaces with their own names and wrong clocks.

    python -m tests.faults.hosts_faults --faults cut_off --seconds 8 --rate 300

Needs root and gcc. The server listens on a bridge; the clock of one fleet is 5 minutes ahead,
that of the other 5 minutes behind. `tortured` says what is printed. The faults of `delayedq torture` can be named, too.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from delayedq.torture.audit import write
from tests.faults.clock import build
from tests.faults.postgresql_faults import Server
from tests.faults.tortured import LONG, Load, main, tortured
from tests.server import USER, postgresql_socket

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Where the server listens; not in use elsewhere, as it is meant for documentation.
NETWORK, PORT = "198.51.100", 54329
#: The part of a lease that is left at least, as it is renewed before.
RENEWED = 0.5
#: By how many seconds the clock of each fleet is wrong.
CLOCKS = {"fleet 0": 300, "fleet 1": -300}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def outer(name: str) -> str:
    """The end of its cable that is at the bridge."""
    return f"{name}-out"


@contextmanager
def networks(names: Sequence[str], bridge: str = "delayedq0", network: str = NETWORK) -> Iterator[None]:
    """A bridge at `network`.1, and namespaces of these names with the addresses that follow.

    What a run that was killed has left of them is removed first.
    """
    left = [("netns", "del", name) for name in names] + [("link", "del", one) for one in (bridge, *map(outer, names))]
    for words in left:
        subprocess.run(["ip", *words], check=False, stderr=subprocess.DEVNULL)
    with ExitStack() as stack:
        ip("link", "add", bridge, "type", "bridge")
        stack.callback(ip, "link", "del", bridge)
        ip("addr", "add", f"{network}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for number, name in enumerate(names, 2):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("link", "add", outer(name), "type", "veth", "peer", "name", "eth0", "netns", name)
            stack.callback(ip, "link", "del", outer(name))  # the namespace goes when its last process has ended
            ip("link", "set", outer(name), "master", bridge, "up")
            ip("-n", name, "addr", "add", f"{network}.{number}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
        yield


class Faults:
    """Each disturbs for a while, and returns when the network is as before."""

    def clocks(self) -> None:
        """The registry says of both fleets that they live, by the database's clock."""
        from delayedq.operations.workers import live_workers
        from delayedq.store import store_for

        store = store_for("default")
        hosts = {worker.host for worker in live_workers(store, store.now())}
        assert hosts == {namespace(role) for role in CLOCKS}, hosts

    def cut_off(self) -> None:
        """For longer than two leases."""
        self._cut_off(2 * LONG)

    def cut_off_for_a_minute(self) -> None:
        """The time after which a worker counts as gone has passed long before."""
        self._cut_off(60)

    def _cut_off(self, duration: float) -> None:
        """A host is not reached for so many seconds, and nothing is closed.

        The judge is told from when on its leases may have run out, and when all have: what it begins after that has
        no excuse.
        """
        from delayedq.torture.run import LEASE

        name = namespace("fleet 0")
        ip("link", "set", outer(name), "down")
        for seconds in (RENEWED * LEASE, (1 - RENEWED) * LEASE):
            time.sleep(seconds)
            listed = subprocess.run(["ip", "netns", "pids", name], check=True, capture_output=True, text=True)
            for pid in listed.stdout.split():
                write("frozen", pid=int(pid))
        time.sleep(duration - LEASE)
        ip("link", "set", outer(name), "up")


FAULTS = [name for name in vars(Faults) if not name.startswith("_")]


def namespace(role: str) -> str:
    return f"dq-{role.replace(' ', '')}"


def on_host(library: Path, role: str) -> list[str]:
    """What starts a command on the host of this process."""
    if role not in CLOCKS:
        return []
    name = namespace(role)
    named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]
    clock = ["env", f"LD_PRELOAD={library}", f"WRONG_BY={CLOCKS[role]}"]
    return ["ip", "netns", "exec", name, *named, *clock]


def judged(fault: str, load: Load) -> dict[str, object]:
    """Start a server and the networks, run torture with this fault alone, and say what came of it."""
    with ExitStack() as stack:
        library = Path(stack.enter_context(TemporaryDirectory(prefix="delayedq-"))) / "clock.so"
        build(library)
        stack.enter_context(networks([namespace(role) for role in CLOCKS]))
        server = Server(stack.enter_context(postgresql_socket()))
        stack.callback(server.control, "-m", "immediate", "stop")
        with (server.data / "pg_hba.conf").open("a") as allowed:
            allowed.write(f"host all all {NETWORK}.0/24 trust\n")
        server.control("-m", "fast", "-o", f"-k {server.data} -h {NETWORK}.1 -p {PORT}", "restart")
        os.environ["DATABASE_URL"] = f"postgres://{USER}@{NETWORK}.1:{PORT}/postgres"
        load = load._replace(prefix=partial(on_host, library))
        return tortured(fault, getattr(Faults(), fault, None), load)


if __name__ == "__main__":
    main("tests.faults.hosts_faults", __doc__, FAULTS, judged)
