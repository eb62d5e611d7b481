"""Torture on three MariaDB servers that are a Galera cluster, with workers on different nodes: what nodes may do.

    python -m tests.faults.galera_faults --faults kill_node --seconds 8 --rate 200

Debian's packages galera-4 and rsync are needed. `tortured` says what is printed. The faults of `delayedq torture` can
be named, too; `nothing` is none.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from contextlib import ExitStack, suppress
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.mariadb_servers import NAME, MySQLdb, Server
from tests.faults.tortured import LONG, Load, main, tortured, until

if TYPE_CHECKING:
    from collections.abc import Sequence

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
NODES = 3
#: "WSREP has not yet prepared node for application use".
NOT_PREPARED = 1047
#: A node that does not answer is left out after 3 s; else after 5.
TIMEOUTS = "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT6S"


def free_ports(number: int) -> list[int]:
    """Ports of the loopback that nobody listens at."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [one.getsockname()[1] for one in taken]


class Cluster:
    """Three nodes of which the first begins. Raises NoServer."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._ports = [*batched(free_ports(4 * NODES), 4, strict=True)]
        self.nodes = [stack.enter_context(self._node(directory / f"{one}", one)) for one in range(NODES)]
        for number, node in enumerate(self.nodes):
            node.install()
            node.start(*(["--wsrep-new-cluster"] if number == 0 else []))
        self.nodes[0].create()
        self.until_whole()

    def _node(self, directory: Path, number: int) -> Server:
        port, group, state, transfer = self._ports[number]
        others = ",".join(f"127.0.0.1:{one[1]}" for one in self._ports)
        here = f"gmcast.listen_addr=tcp://127.0.0.1:{group};ist.recv_addr=127.0.0.1:{transfer}"
        return Server(
            directory,
            *("--bind-address=127.0.0.1", f"--port={port}", "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2"),
            *("--wsrep-on=ON", f"--wsrep-provider={PROVIDER}", f"--wsrep-cluster-address=gcomm://{others}"),
            *(f"--wsrep-provider-options={here};{TIMEOUTS}", "--wsrep-cluster-name=delayedq"),
            *(f"--wsrep-node-address=127.0.0.1:{group}", f"--wsrep-node-name=node{number}"),
            *("--wsrep-sst-method=rsync", f"--wsrep-sst-receive-address=127.0.0.1:{state}"),
        )

    def until_whole(self) -> None:
        """All three are in one cluster, and answer."""
        until(lambda: all(_status(node, "wsrep_ready") == "ON" for node in self.nodes))
        until(lambda: all(_status(node, "wsrep_cluster_size") == str(NODES) for node in self.nodes))


def _status(node: Server, name: str) -> str:
    with suppress(MySQLdb.Error):
        for _, value in node.run(f"SHOW STATUS LIKE '{name}'"):
            return value
    return ""


class Faults:
    """Each disturbs for a while, and returns when all nodes are together again. The first one stays: the judge asks it.

    The fleets are on the second and the third.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._first, self._second, self._third = cluster.nodes

    def nothing(self) -> None:
        time.sleep(1)

    def stop_node(self) -> None:
        """It leaves with SIGTERM, stays away for longer than a lease, and gets what it has missed."""
        self._third.stop()
        time.sleep(LONG)
        self._third.start()
        self._cluster.until_whole()

    def kill_node(self) -> None:
        self._third.kill()
        time.sleep(LONG)
        self._third.start()
        self._cluster.until_whole()

    def isolate_node(self) -> None:
        """The network keeps it from the others, and its workers still reach it: alone, it refuses them."""
        self._third.run("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=1'")
        until(lambda: self._refuses(self._third))
        time.sleep(LONG)
        self._third.run("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=0'")
        self._cluster.until_whole()

    def lose_two(self) -> None:
        """One leaves, another is killed: the one that is left has no majority, and refuses all until it is told that
        it is the cluster now.
        """
        self._second.stop()
        self._third.kill()
        until(lambda: self._refuses(self._first))
        time.sleep(LONG)
        self._first.run("SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'")
        self._second.start()
        self._third.start()
        self._cluster.until_whole()

    def in_turn(self) -> None:
        """One after the other, with a rest in between."""
        for one in (self.kill_node, self.isolate_node, self.lose_two):
            one()
            time.sleep(1)

    @staticmethod
    def _refuses(node: Server) -> bool:
        """Whether it lets nobody write."""
        try:
            node.run(f"DELETE FROM {NAME}.delayedq_worker WHERE id = 0")
        except MySQLdb.OperationalError as error:
            return error.args[0] == NOT_PREPARED
        return False


FAULTS = [name for name in vars(Faults) if not name.startswith("_")]
#: Which node each process uses.
PLACES = {"fleet 0": 1, "fleet 1": 2}


def judged(fault: str, load: Load) -> dict[str, object]:
    """Start the nodes, run torture with this fault alone, and say what came of it."""
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="delayedq-", ignore_cleanup_errors=True)
        cluster = Cluster(Path(stack.enter_context(temporary)), stack)
        os.environ["DATABASE_URL"] = cluster.nodes[0].url

        def prefix(role: str) -> Sequence[str]:
            node = cluster.nodes[PLACES.get(role, 0)]
            return ["env", f"DATABASE_URL={node.url}"]

        return tortured(fault, getattr(Faults(cluster), fault, None), load._replace(prefix=prefix))


if __name__ == "__main__":
    main("tests.faults.galera_faults", __doc__, FAULTS, judged)
