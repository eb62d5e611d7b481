"""`manage.py run_workers`: the arguments; everything else is in `delayedq.worker`."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.db import connections

from delayedq.conf import get_settings
from delayedq.core.scaling import Scaling
from delayedq.management.arguments import named, positive, processes, queue_names, scale_on, seconds, worker_name
from delayedq.management.backends import backends, by_database, check_tables, side_by_side, tell_of_connections
from delayedq.management.configured import ConfiguredCommand
from delayedq.management.development import add_reload, run_reloading
from delayedq.management.monitoring import add_monitoring, monitored
from delayedq.management.queues import check_queues
from delayedq.operations.leftovers import tell_what_is_left
from delayedq.store import store_for
from delayedq.store.connecting import use_worker_connections
from delayedq.worker.logs import wanted_by_default
from delayedq.worker.options import Options
from delayedq.worker.supervisor import Elastic, Fleet, Supervisor

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from delayedq.store.base import Store


class Command(ConfiguredCommand):
    help = "Runs the messages of the queue until it is stopped (SIGTERM or Ctrl-C; a second signal kills it)."

    def add_arguments(self, parser: CommandParser) -> None:
        named(parser)
        parser.add_argument("--queues", type=queue_names, metavar="A,B", help="Serve these queues only (default: all).")
        parser.add_argument(
            "--exclude-queues", type=queue_names, default=(), metavar="A,B", help="Serve all queues but these."
        )
        parser.add_argument(
            "--backend",
            action="append",
            default=[],
            metavar="NAME",
            help="Serve the database of this backend of TASKS; may be repeated (default: all of delayedq's).",
        )
        parser.add_argument(
            "--name", type=worker_name, help="A name for these workers in the admin, the logs and leases."
        )
        parser.add_argument(
            "--processes",
            type=processes,
            default=(1, 1),
            metavar="N|MIN-MAX",
            help="Worker processes for each database (1).",
        )
        parser.add_argument(
            "--scale-on",
            type=scale_on,
            metavar="latency=30s",
            help="Run as many processes as are needed to start messages within that time.",
        )
        parser.add_argument("--threads", type=positive, default=4, metavar="N", help="Threads in each process (4).")
        parser.add_argument("--drain", action="store_true", help="Exit when nothing is due any more.")
        parser.add_argument("--max-tasks", type=positive, metavar="N", help="Replace a process after N messages.")
        parser.add_argument(
            "--no-cron", action="store_false", dest="cron", help="Leave DELAYEDQ['CRON'] to other workers."
        )
        parser.add_argument(
            "--lease", type=seconds, metavar="S", help="Seconds that a lease lasts unless renewed (DELAYEDQ['LEASE'])."
        )
        add_reload(parser)
        parser.add_argument(
            "--lines", action="store_true", help="Write a line per task (default with DEBUG if LOGGING is not set)."
        )
        add_monitoring(parser)
        parser.add_argument(
            "--shutdown-timeout",
            type=seconds,
            default=timedelta(seconds=25),
            metavar="S",
            help="Seconds that running tasks have to finish when stopped (25).",
        )

    def handle(self, **options: Any) -> None:
        if options["reload"]:
            sys.exit(run_reloading(self.stdout, options["parent"]))
        served = backends(options["backend"])
        by_alias = by_database(served)
        use_worker_connections()
        stores = [store_for(alias) for alias in by_alias]
        for store in stores:
            _check_place(store)
        answered = side_by_side(stores, check_tables)
        chosen = _options(options)
        check_queues([*(chosen.queues or ()), *chosen.excluded], served, self.stderr)
        chosen = _without_excluded(chosen)
        scaling = _scaling(options)
        for store, has_answered in zip(stores, answered, strict=True):
            if has_answered:  # another question would take as long
                tell_of_connections(store, options["processes"][1], chosen.threads, self.stderr)
        for alias, ours in by_alias.items():
            where = f" of {', '.join(one.alias for one in ours)} in {alias!r}" if len(by_alias) > 1 else ""
            said = f"{_processes(options)} process(es) of {chosen.threads} thread(s) serve {_queues(chosen)}{where}."
            self.stdout.write(f"delayedq: {said}")
        self.stdout.flush()
        with monitored(options) as monitoring:
            chosen = replace(chosen, tallies=monitoring.tallies)
            fleets = [_fleet(alias, chosen, options["processes"][1], scaling) for alias in by_alias]
            reporting, endpoints = monitoring.of(fleets)
            supervisor = Supervisor(fleets, chosen.shutdown_timeout, endpoints, reporting, options["parent"])
            code = supervisor.run()
        if code:
            sys.exit(code)
        if chosen.drain and not supervisor.was_stopped:
            for alias in by_alias:
                tell_what_is_left(store_for(alias), chosen.serves)


def _options(given: dict[str, Any]) -> Options:
    if given["exclude_queues"] is None:
        raise CommandError("--exclude-queues '*' leaves no queue to serve.")
    settings = get_settings()
    return Options(
        lease=given["lease"] or settings.LEASE,
        poll_interval=settings.POLL_INTERVAL,
        shutdown_timeout=given["shutdown_timeout"],
        queues=given["queues"],
        excluded=given["exclude_queues"],
        name=given["name"] or "",
        threads=given["threads"],
        drain=given["drain"],
        max_tasks=given["max_tasks"],
        cron=given["cron"],
        lines=given["lines"] or wanted_by_default(),
        acknowledge_each=settings.ACKNOWLEDGE == "each",
    )


def _scaling(given: dict[str, Any]) -> Scaling | None:
    """None: the number of processes is fixed. Raises CommandError for what belongs together and is not."""
    (fewest, most), scale = given["processes"], given["scale_on"]
    if (fewest == most) != (scale is None):
        raise CommandError("An elastic fleet has both: --processes 1-8 --scale-on latency=30s.")
    if scale is None:
        return None
    if given["drain"]:
        raise CommandError("--scale-on and --drain do not go together: a drain runs a fixed number of processes.")
    patience = {"patience": scale["patience"]} if "patience" in scale else {}
    return Scaling(lowest=fewest, highest=most, target=scale["latency"], threads=given["threads"], **patience)


def _fleet(alias: str, options: Options, processes: int, scaling: Scaling | None) -> Fleet:
    return Fleet(alias, options, processes, Elastic(alias, options, scaling) if scaling else None)


def _processes(given: dict[str, Any]) -> str:
    fewest, most = given["processes"]
    return f"{fewest}" if fewest == most else f"{fewest} to {most}"


def _without_excluded(options: Options) -> Options:
    """Queues that are named, less those that are excluded, are named; then none is excluded."""
    if options.queues is None:
        return options
    left = tuple(queue for queue in options.queues if queue not in options.excluded)
    if not left:
        raise CommandError("--exclude-queues has all queues of --queues: none is left to serve.")
    return replace(options, queues=left, excluded=())


def _queues(options: Options) -> str:
    if options.queues:
        return ", ".join(options.queues)
    return f"all queues but {', '.join(options.excluded)}" if options.excluded else "all queues"


def _check_place(store: Store) -> None:
    """Raises CommandError where worker processes could not see the messages of this one."""
    connection = connections[store.alias]
    if connection.in_atomic_block:
        problem = "run_workers was called inside a transaction, which worker processes don't see and would close."
    elif connection.vendor == "sqlite" and connection.is_in_memory_db():  # type: ignore[attr-defined]  # of SQLite's
        problem = f"The database {store.alias!r} is in memory, where worker processes don't see it."
    else:
        return
    raise CommandError(f"{problem} In tests use delayedq.testing.run_due().")
