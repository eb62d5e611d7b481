"""How fast one worker process ends keyed no-op messages, history included.

    uv run --group test python -m tests.benchmarks.drain [--messages 50000] [--rounds 3] [--database postgresql]
                                                         [--exactly-once]

PostgreSQL is the server of the wheel and MariaDB the one that is installed, both with their default configuration
(fsync on). `whole process` is the wall time of `run_workers --drain`, its start included; `first to last` is from the
first start to the last end in the history.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from urllib.parse import quote

import django

from tests.server import USER, mariadb_socket, postgresql_socket


@contextmanager
def database(name):
    """The URL of an empty database."""
    with tempfile.TemporaryDirectory() as directory:
        if name == "sqlite":
            yield f"sqlite:///{directory}/drain.sqlite3"
        elif name == "mariadb":
            with mariadb_socket() as socket:
                yield f"mysql://root@localhost/test?unix_socket={quote(socket, safe='')}"
        else:
            with postgresql_socket() as socket:
                yield f"postgres://{USER}@/postgres?host={quote(socket, safe='')}"


def fill(messages, *, exactly_once):
    from delayedq.store import default_store
    from tests.app import chores, once

    nothing = once.nothing if exactly_once else chores.nothing
    default_store().offer_many(
        nothing.offer((number,), {}, when=None, key=f"key-{number}") for number in range(messages)
    )


def drain(flags):
    """Seconds of the whole process, and from the first start to the last end."""
    from django.db.models import Max, Min

    from delayedq.models import FinishedMessage

    FinishedMessage.objects.all().delete()
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "django", "run_workers", "--drain", *flags], check=True, capture_output=True)
    whole = time.perf_counter() - began
    span = FinishedMessage.objects.aggregate(first=Min("started_at"), last=Max("finished_at"))
    return whole, (span["last"] - span["first"]).total_seconds()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--database", choices=["postgresql", "sqlite", "mariadb"], default="postgresql")
    parser.add_argument("--exactly-once", action="store_true")
    options, flags = parser.parse_known_args()
    with database(options.database) as url:
        os.environ |= {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.worker_settings"}
        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        rounds = []
        for _ in range(options.rounds):
            fill(options.messages, exactly_once=options.exactly_once)
            rounds.append(drain(flags))
            print("  ".join(f"{options.messages / seconds:>9,.0f}/s" for seconds in rounds[-1]))  # noqa: T201
        medians = [options.messages / statistics.median(column) for column in zip(*rounds, strict=True)]
        print("median: whole process {:,.0f}/s, first to last {:,.0f}/s".format(*medians))  # noqa: T201
        from django.db import connection

        connection.close()


if __name__ == "__main__":
    main()
