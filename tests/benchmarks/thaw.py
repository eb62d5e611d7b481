"""A database server that is frozen for three leases and thawed: how long after that the first message starts.

    python -m tests.benchmarks.thaw --rounds 5

All processes of the server are stopped by SIGSTOP and continued. A message is enqueued before each freeze, and due in
the middle of it; a task runs through the freeze, and must run once.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import django

from tests.server import USER, mariadb_socket, postgresql_socket

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds of the lease, and for how long the server is frozen.
LEASE, FROZEN = 4, 13
PATIENCE = 60


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--mariadb", action="store_true")
    given = arguments.parse_args()
    with (mariadb_socket if given.mariadb else postgresql_socket)() as socket:
        where = quote(socket, safe="")
        if given.mariadb:
            import MySQLdb

            with MySQLdb.connect(unix_socket=socket, user="root") as connection:
                connection.cursor().execute("CREATE DATABASE delayedq CHARACTER SET utf8mb4")
            url = f"mysql://root@localhost/delayedq?unix_socket={where}"
        else:
            url = f"postgres://{USER}@/postgres?host={where}"
        os.environ |= {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.worker_settings"}
        django.setup()
        from django.core.management import call_command

        call_command("migrate", run_syncdb=True, verbosity=0)
        workers = subprocess.Popen([sys.executable, "-m", "django", "run_workers", "--lease", str(LEASE)])
        try:
            took = [_round(number, socket) for number in range(given.rounds)]
        finally:
            workers.send_signal(signal.SIGTERM)
            workers.wait(PATIENCE)
        each = " ".join(f"{one:.2f}" for one in sorted(took))
        sys.stdout.write(f"seconds from the thaw to the first start: {each}; median {statistics.median(took):.2f}\n")


def _round(number: int, socket: str) -> float:
    from django.utils import timezone

    from tests.app import chores
    from tests.app.models import Mark

    chores.nap.enqueue(f"through {number}", FROZEN + 3)
    _until(lambda: Mark.objects.filter(name=f"through {number} began").exists())
    chores.note.schedule_at(timezone.now() + timedelta(seconds=FROZEN / 2), f"due {number}")
    frozen = _server(socket)
    assert frozen
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(FROZEN)
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    thawed = timezone.now()
    from delayedq.models import FinishedMessage

    _until(lambda: FinishedMessage.objects.filter(kind=chores.note.module_path).count() == number + 1)
    _until(lambda: FinishedMessage.objects.filter(kind=chores.nap.module_path).count() == number + 1)
    assert Mark.objects.filter(name=f"through {number} began").count() == 1
    started = FinishedMessage.objects.filter(kind=chores.note.module_path).latest("started_at").started_at
    assert started is not None
    return (started - thawed).total_seconds()


def _server(socket: str) -> list[int]:
    """The pids of all processes of the server of this socket."""
    of_postgresql, of_mariadb = Path(socket) / "postmaster.pid", Path(socket).with_name("pid")
    main = (of_postgresql if of_postgresql.exists() else of_mariadb).read_text().split()[0]
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    return [int(pid) for pid, parent in map(str.split, listed.stdout.splitlines()) if main in (pid, parent)]


def _until(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


if __name__ == "__main__":
    main()
