"""A Spark standalone cluster on this machine whose hosts are network namespaces, with PostgreSQL beside them.

    python -m tests.pipeline.cluster [--workers 3] [--rows 1000000]

archives so many messages on it, and prints what each step took. Needs root and iproute2.

The master, the workers and the driver (which runs the commands) have a host each. PostgreSQL listens on the bridge
between them, and asks for a password. All hosts see the same files, as those of a cluster see those of a shared disk.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyspark

from tests.benchmarks.archive import FILL
from tests.faults.hosts_faults import ip, networks, outer
from tests.faults.postgresql_faults import Server
from tests.faults.tortured import until
from tests.server import USER, postgresql_socket

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Not in use elsewhere, as it is meant for documentation.
BRIDGE, NETWORK, PORT = "delayedq1", "203.0.113", 54330
MASTER, DRIVER = "dq-master", "dq-driver"
#: Of the driver, and of executors through it: they are small, and notice soon that a host is gone.
DEFAULTS = """
spark.driver.memory 512m
spark.executor.memory 512m
spark.sql.shuffle.partitions 4
spark.network.timeout 10s
spark.network.timeoutInterval 1s
spark.executor.heartbeatInterval 2s
spark.shuffle.io.maxRetries 1
spark.shuffle.io.retryWait 1s
"""


class Cluster:
    """What runs on it, and the cables of its hosts. `shared` is a directory that all of them see."""

    def __init__(self, shared: Path, workers: int, server: Server) -> None:
        self.shared = shared
        self.workers = [f"dq-worker{number}" for number in range(workers)]
        self.hosts = [MASTER, DRIVER, *self.workers]
        self.server = server
        self.lake = str(shared / "lake")
        #: What commands on the host of the driver have in their environment, and no other host.
        self.of_driver: dict[str, str] = {}
        self._url = ""
        self._services: list[subprocess.Popen] = []

    def address(self, host: str) -> str:
        """As `networks` gives them."""
        return f"{NETWORK}.{2 + self.hosts.index(host)}"

    # The parts

    def start_database(self) -> None:
        """It listens on the bridge, to those who know the password."""
        password = secrets.token_hex(16)
        with (self.server.data / "pg_hba.conf").open("a") as allowed:
            allowed.write(f"host all all {NETWORK}.0/24 scram-sha-256\n")
        self.server.control("-m", "fast", "-o", f"-k {self.server.data} -h {NETWORK}.1 -p {PORT}", "restart")
        self._url = f"postgresql://{USER}:{password}@{NETWORK}.1:{PORT}/postgres"
        with self.connection() as connection:
            connection.execute(f"ALTER USER {USER} PASSWORD '{password}'")

    def start_spark(self) -> None:
        """The master and the workers, as an operator of a cluster starts them."""
        (self.shared / "spark-defaults.conf").write_text(DEFAULTS)
        where = ["--host", self.address(MASTER), "--port", "7077", "--webui-port", "8080"]
        self._start_class(MASTER, "master.Master", *where)
        for name in self.workers:
            where = ["--host", self.address(name), "--work-dir", str(self.shared / name)]
            self._start_class(name, "worker.Worker", *where, "--cores", "1", "--memory", "600m", self.master)
        until(lambda: self.alive() == len(self.workers))

    def _start_class(self, host: str, name: str, *words: str) -> None:
        program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        with (self.shared / f"{host}.log").open("wb") as log:
            command = [program, f"org.apache.spark.deploy.{name}", *words]
            self._services.append(self._popen(host, command, stdout=log, stderr=log))

    @property
    def master(self) -> str:
        return f"spark://{self.address(MASTER)}:7077"

    def alive(self) -> int:
        """How many workers the master knows of that live."""
        page = f"http://{self.address(MASTER)}:8080/json/"
        with suppress(OSError), urllib.request.urlopen(page, timeout=5) as answer:
            return json.load(answer)["aliveworkers"]
        return 0

    def connection(self) -> psycopg.Connection:
        """Of the superuser, from the machine that the server is on."""
        return psycopg.connect(host=str(self.server.data), port=PORT, user=USER, dbname="postgres", autocommit=True)

    def asked(self, query: str) -> list[tuple]:
        with self.connection() as connection:
            return connection.execute(query).fetchall()

    # What is run

    def start(self, *command: str) -> subprocess.Popen:
        """On the host of the driver. What it complains of is in a file, as nobody may read it for long."""
        with self._complaints.open("wb") as complaints:
            return self._popen(
                DRIVER, list(command), self.of_driver, stdout=subprocess.PIPE, stderr=complaints, text=True
            )

    @property
    def _complaints(self) -> Path:
        return self.shared / "driver.log"

    def complained(self) -> str:
        """The end of what the last command on the driver's host complained of."""
        return self._complaints.read_text()[-3000:]

    def run(self, *command: str) -> str:
        """What it says, when it has succeeded."""
        process = self.start(*command)
        out, _ = process.communicate()
        assert process.returncode == 0, f"{out}\n{self.complained()}"
        return out

    def pipeline(self, step: str, *words: str) -> list[str]:
        """The command for a step whose executors are on the workers."""
        place = ["--lake", self.lake]
        if step not in {"restore", "status"}:
            place += ["--master", self.master, "--address", "env:DATABASE_URL"]
        return [sys.executable, "-m", "django", "run_pipeline", step, *words, *place]

    def _popen(
        self, host: str, command: list[str], given: Mapping[str, str] | None = None, **options
    ) -> subprocess.Popen:
        environment = os.environ | {
            "DATABASE_URL": self._url,
            "DJANGO_SETTINGS_MODULE": "tests.worker_settings",
            "PYTHONPATH": str(Path.cwd()),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(self.shared),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": self.address(host),
            **(given or {}),
        }
        inside = ["ip", "netns", "exec", host, *command]
        return subprocess.Popen(inside, env=environment, start_new_session=True, **options)

    def kill(self, process: subprocess.Popen) -> None:
        """A command, and all that it has started on its host."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def stop(self) -> None:
        """End all that runs on the hosts."""
        for process in self._services:
            process.terminate()
        for host in self.hosts:
            for pid in self._processes(host):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._services:
            process.wait()

    def _processes(self, host: str) -> list[int]:
        listed = subprocess.run(["ip", "netns", "pids", host], check=False, capture_output=True, text=True)
        return [int(pid) for pid in listed.stdout.split()]

    # Cables

    def cut(self, host: str) -> None:
        """It is not reached any more, and no connection is closed."""
        ip("link", "set", outer(host), "down")

    def join(self, host: str) -> None:
        ip("link", "set", outer(host), "up")

    def workers_at_database(self) -> set[str]:
        """The workers with an executor that is connected with the database, by what the server knows."""
        found = {address for (address,) in self.asked("SELECT host(client_addr) FROM pg_stat_activity")}
        return {name for name in self.workers if self.address(name) in found}


@contextmanager
def cluster(workers: int = 3):
    """One that has started, and whose database is migrated. There is one at a time on a machine. Raises NoServer."""
    with ExitStack() as stack:
        lock = stack.enter_context((Path(tempfile.gettempdir()) / "delayedq-cluster.lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        shared = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="delayedq-", ignore_cleanup_errors=True)))
        server = Server(stack.enter_context(postgresql_socket()))
        stack.callback(server.control, "-m", "immediate", "stop")
        made = Cluster(shared, workers, server)
        stack.enter_context(networks(made.hosts, BRIDGE, NETWORK))
        stack.callback(made.stop)
        made.start_database()
        made.start_spark()
        made.run(sys.executable, "-m", "django", "migrate", "--verbosity", "0")
        yield made


def fill(made: Cluster, rows: int, kind: str) -> None:
    """A month of history of one task."""
    with made.connection() as connection:
        connection.execute(FILL.replace("flights.tasks.remind", kind), {"rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    given = parser.parse_args()
    with cluster(given.workers) as made:
        fill(made, given.rows, "tests.app.tasks.nothing")
        for step, *words in (["archive", "--older-than", "0s"], ["report", "--output", str(made.shared / "report")]):
            began = time.monotonic()
            said = made.run(*made.pipeline(step, *words))
            print(f"{step}: {time.monotonic() - began:.1f} s\n{said}")  # noqa: T201


if __name__ == "__main__":
    main()
