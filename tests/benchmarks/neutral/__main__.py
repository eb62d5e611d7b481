"""Runs the harness of a checkout with delayedq in it, without Docker: a server and adapters of this machine.

    git clone https://github.com/hardbyte/postgresql-job-queue-benchmarking harness
    uv run --no-sync --with pydantic --with pandas --with matplotlib \\
        python -m tests.benchmarks.neutral harness run --systems delayedq,procrastinate --scenario chaos_pg_backend_kill

The server is that of POSTGRESQL_BIN (its `initdb` and `pg_ctl`, with the extension pgstattuple), on the port and with
the `postgres.conf` of the harness. What follows the checkout are the harness's own options; its results are in the
checkout.

The adapters of `delayedq`, `pgqueuer`, `awa-py` and `oban-py` (the last two: Python packages) are ours, as is `floor`,
the bare SQL of the contender of that name; `procrastinate` and `pgboss` have the harness's. What they need is in the
dependency group `bench`, but for pg-boss: `npm install` in the checkout's `pgboss-bench`. The others need Docker.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.benchmarks.neutral.adapter import MANIFESTS
from tests.benchmarks.neutral.systems import SYSTEMS

if TYPE_CHECKING:
    from types import ModuleType

BINARIES = Path(os.environ.get("POSTGRESQL_BIN", "/usr/lib/postgresql/15/bin"))
#: Those of the harness, which run from its checkout.
THEIRS = {"procrastinate": (sys.executable, "main.py"), "pgboss": ("node", "main.js")}


class LocalServer:
    """The harness's PostgreSQL. As root, it runs as the user `postgres`."""

    def __init__(self, harness: Path, folder: Path) -> None:
        self.folder = folder
        self.data = self.folder / "data"
        self.who = {"user": "postgres", "group": "postgres", "extra_groups": ()} if os.getuid() == 0 else {}
        if self.who:
            subprocess.run(["chown", "postgres:", self.folder], check=True)
        self._run("initdb", "--username", "bench", "--auth", "trust")
        settings = (harness / "postgres.conf").read_text()
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"{settings}\nport = 15555\nunix_socket_directories = '{self.folder}'\n")

    def start(self, _image: str = "") -> None:
        self._run("pg_ctl", "start", "--wait", "--log", str(self.folder / "log"))

    def stop(self, _image: str = "") -> None:
        """As `docker compose stop` does, whose SIGTERM waits for clients and becomes SIGKILL after 10 s."""
        if self._run("pg_ctl", "stop", "--mode", "smart", "--timeout", "10", check=False).returncode:
            self.stop_at_once()

    def stop_at_once(self) -> None:
        self._run("pg_ctl", "stop", "--mode", "immediate", check=False)

    def _run(self, program: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        command = [BINARIES / program, "--pgdata", self.data, *arguments]
        return subprocess.run(command, check=check, cwd=self.folder, stdout=subprocess.DEVNULL, **self.who)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("harness", type=Path, help="the checkout")
    options, sys.argv[1:] = parser.parse_known_args()
    harness = options.harness.resolve()
    sys.path.insert(0, str(harness))
    from bench_harness import adapters, orchestrator

    with TemporaryDirectory(prefix="neutral-") as folder:
        server = LocalServer(harness, Path(folder))
        _without_docker(harness, adapters, orchestrator, server)
        try:
            orchestrator.main()
        finally:
            server.stop_at_once()


def _without_docker(harness: Path, adapters: ModuleType, orchestrator: ModuleType, server: LocalServer) -> None:
    commands = {MANIFESTS / name: [sys.executable, "-m", "tests.benchmarks.neutral.adapter", name] for name in SYSTEMS}
    for name, (program, script) in THEIRS.items():
        commands[harness / f"{name}-bench"] = [program, str(harness / f"{name}-bench" / script)]
    for folder, command in commands.items():
        adapters.ADAPTERS[folder.name.removesuffix("-bench")] = adapters.AdapterEntry(
            bench_dir=folder, builder=lambda skip: None, launcher=_launcher(adapters, command)
        )
    orchestrator.start_postgres = orchestrator._compose_start_postgres = server.start
    orchestrator.stop_postgres = orchestrator._compose_stop_postgres = server.stop


def _launcher(adapters: ModuleType, command: list[str]):
    def launch(manifest, overrides):
        environment = adapters._base_env(manifest, overrides)
        if control := overrides.get("PRODUCER_RATE_CONTROL_FILE_HOST"):
            environment["PRODUCER_RATE_CONTROL_FILE"] = control
        return adapters.LaunchSpec(argv=command, env=environment)

    return launch


if __name__ == "__main__":
    main()
