"""`manage.py run_workers`: the arguments; everything else is in `delayedq.worker`."""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from delayedq.backend import DelayedQBackend
from delayedq.compat import InvalidTaskBackend, task_backends
from delayedq.conf import get_settings
from delayedq.management.arguments import positive
from delayedq.store import serve, served_store
from delayedq.store.protocol import BARE
from delayedq.worker.loop import Options
from delayedq.worker.supervisor import Supervisor

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from delayedq.store.base import Store


class Command(BaseCommand):
    help = "Runs the messages of the queue until it is stopped (SIGTERM or Ctrl-C; a second one kills)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queues", type=_names, metavar="A,B", help="Serve these queues only (default: all).")
        parser.add_argument(
            "--backend",
            type=_backend,
            metavar="NAME",
            help="Serve the database of this backend of TASKS.",
        )
        parser.add_argument("--processes", type=positive, default=1, metavar="N", help="Worker processes (1).")
        parser.add_argument("--threads", type=positive, default=4, metavar="N", help="Threads in each process (4).")
        parser.add_argument("--drain", action="store_true", help="Exit when nothing is due any more.")
        parser.add_argument("--max-tasks", type=positive, metavar="N", help="Replace a process after N messages.")
        parser.add_argument("--no-cron", action="store_false", dest="cron", help="Leave DELAYEDQ['CRON'] to others.")
        parser.add_argument(
            "--lease", type=_seconds, metavar="S", help="Seconds a claim holds unless renewed (DELAYEDQ['LEASE'])."
        )
        parser.add_argument(
            "--shutdown-timeout",
            type=_seconds,
            default=timedelta(seconds=25),
            metavar="S",
            help="Seconds that running tasks have to finish when stopped (25).",
        )

    def handle(self, **options: Any) -> None:
        if options["backend"]:
            serve(options["backend"].store.alias)
        _check_database(served_store())
        settings = get_settings()
        chosen = Options(
            lease=options["lease"] or settings.LEASE,
            poll_interval=settings.POLL_INTERVAL,
            shutdown_timeout=options["shutdown_timeout"],
            queues=options["queues"],
            threads=options["threads"],
            drain=options["drain"],
            max_tasks=options["max_tasks"],
            cron=options["cron"],
            acknowledge_each=settings.ACKNOWLEDGE == "each",
        )
        queues = ", ".join(chosen.queues) if chosen.queues else "all queues"
        processes: int = options["processes"]
        self.stdout.write(f"delayedq: {processes} process(es) of {chosen.threads} thread(s) serve {queues}.")
        self.stdout.flush()
        if code := Supervisor(chosen, processes).run():
            sys.exit(code)


def _check_database(store: Store) -> None:
    """Raises CommandError where worker processes could not see the messages of this one."""
    connection = connections[store.alias]
    if connection.in_atomic_block:
        problem = "run_workers was called inside a transaction, which worker processes don't see and would close."
    elif connection.vendor == "sqlite" and connection.is_in_memory_db():  # type: ignore[attr-defined]  # of SQLite's
        problem = f"The database {store.alias!r} is in memory, where worker processes don't see it."
    else:
        return
    raise CommandError(f"{problem} In tests use delayedq.testing.run_due().")


def _backend(name: str) -> DelayedQBackend:
    try:
        backend = task_backends[name]
    except InvalidTaskBackend as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not isinstance(backend, DelayedQBackend):
        raise argparse.ArgumentTypeError(f"TASKS[{name!r}] is no backend of delayedq")
    return backend


def _names(text: str) -> tuple[str, ...] | None:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("name at least one queue, or leave it out for all")
    if bare := [name for name in names if BARE in name]:
        raise argparse.ArgumentTypeError(f"{bare[0]!r} is a bare queue: its messages are no tasks")
    return None if names == ("*",) else names


def _seconds(text: str) -> timedelta:
    try:
        duration = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        duration = timedelta()
    if duration <= timedelta():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds over 0")
    return duration
