"""`python -m tests.faults.schedules --database postgresql --minutes 5`: schedules of one seed after the other.

`--seed N` runs one again, and prints what happened. `--processes N` runs as many at once, each on a database of its
own and with seeds of its own.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

#: So far are the first seeds of two processes from each other.
APART = 10**6


def main():
    arguments = _parser().parse_args()
    if arguments.processes > 1:
        return _at_once(arguments)
    logging.disable()
    with served(arguments.database) as alias:
        from tests.faults.worlds import World

        world = World(alias)
        try:
            return _one(world, arguments) if arguments.seed is not None else _many(world, arguments)
        finally:
            world.close()


def _parser():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=["sqlite", "postgresql", "mariadb"], default="sqlite")
    parser.add_argument("--seed", type=int, help="run this one again")
    parser.add_argument("--first", type=int, default=0, help="the first of many")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--count", type=int, default=10**9, help="not more than so many")
    parser.add_argument("--processes", type=int, default=1)
    return parser


@contextmanager
def served(database):
    """The alias of a new database of this kind, with all tables."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from django.db import connections

    from tests.conftest import ALIASES, _create
    from tests.router import ChosenDatabase
    from tests.server import mariadb_socket, postgresql_socket
    from tests.settings import SERVED

    alias = ALIASES[database]
    with tempfile.TemporaryDirectory() as folder:
        sockets = {"postgresql": postgresql_socket, "mariadb": mariadb_socket}
        with sockets[database]() if database in sockets else nullcontext() as socket:
            if socket:
                connections.settings[alias] = {**SERVED[alias], "HOST": socket}
                connections.configure_settings(connections.settings)
            else:
                connections[alias].settings_dict["TEST"]["NAME"] = Path(folder) / "faults.sqlite3"
            _create(alias)
            ChosenDatabase.alias = alias
            yield alias
            connections.close_all()


def _at_once(arguments):
    """In processes of their own. Each tells how many schedules it ran, and what failed."""
    given = ["--database", arguments.database, "--minutes", str(arguments.minutes), "--count", str(arguments.count)]
    firsts = [arguments.first + number * APART for number in range(arguments.processes)]
    command = [sys.executable, "-m", "tests.faults.schedules", *given]
    running = [subprocess.Popen([*command, "--first", str(first)]) for first in firsts]
    return max([one.wait() for one in running])


def _one(world, arguments):
    failure = world.run(arguments.seed)
    _say(told(failure, world.database) if failure else "It passes.")
    return bool(failure)


def _many(world, arguments):
    from tests.faults.met import MET
    from tests.faults.shrinking import shrunk

    began, number = time.monotonic(), arguments.first
    until = began + arguments.minutes * 60
    while number - arguments.first < arguments.count and time.monotonic() < until:
        if failure := world.run(number):
            _say(f"Seed {number} fails, the {number - arguments.first + 1:,}th: {failure.what}")
            _say(told(shrunk(world, failure), world.database))
            return 1
        number += 1
    seconds = time.monotonic() - began
    _say(f"{number - arguments.first:,} schedules in {seconds:.0f} s on {arguments.database}: all passed.")
    _say("\n".join(f"{times:8,} {what}" for what, times in sorted(MET.items())))
    return 0


def _say(text):
    sys.stdout.write(f"{text}\n")


def told(failure, database):
    lines = [f"{failure.what}", *map(str, sorted(failure.records, key=lambda one: one.began)), "", "Steps:"]
    lines += [f"  client {client}: {where}{f'  <- {fault}' if fault else ''}" for client, where, fault in failure.trace]
    return "\n".join([*lines, f"python -m tests.faults.schedules --database {database} --seed {failure.number}"])


if __name__ == "__main__":
    sys.exit(main())
