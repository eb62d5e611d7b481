"""`manage.py delayedq torture`: what users type, and what it prints."""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management import call_command
from django.core.management.base import CommandError

from delayedq.compat import InvalidTask
from delayedq.management.arguments import positive
from delayedq.management.backends import chosen_store
from delayedq.management.telling import add_json, tell
from delayedq.models import Message, Worker
from delayedq.operations.workers import is_alive
from delayedq.store.connecting import use_worker_connections
from delayedq.torture.audit import BACKEND, KINDS
from delayedq.torture.faults import faults_of

if TYPE_CHECKING:
    from django.core.management.base import OutputWrapper

    from delayedq.store.base import Store
    from delayedq.torture.audit import Event
    from delayedq.torture.run import Report


def add_torture(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts fleets of run_workers and producers on this database, kills, freezes and cuts them off by a seed, and"
        " judges from what they wrote down whether anything was lost, ran twice at a time, or broke a limit. Exit code"
        " 1 if so. For a database of tests: it must have no other workers."
    )
    parser.add_argument("--minutes", type=float, default=1.0, metavar="N", help="How long things are disturbed (1).")
    parser.add_argument("--seed", type=int, metavar="S", help="The same faults and messages again; default: any.")
    parser.add_argument("--rate", type=positive, default=1_000, metavar="N", help="Messages a second (1000).")
    parser.add_argument(
        "--faults", metavar="A,B", help="Only these; `list` prints all that there are on this database."
    )
    parser.add_argument("--folder", type=Path, metavar="PATH", help="Where the audit is written, and kept.")
    parser.add_argument("--keep", action="store_true", help="Leave the history of the run in the database.")
    add_json(parser)
    # What the processes of a run are started with.
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)


def run_torture(out: OutputWrapper, options: dict[str, Any]) -> None:
    """Raises CommandError for a wrong option, and where other workers would take part."""
    store, backends = chosen_store(options["backend"])
    os.environ[BACKEND] = backends[0].alias if backends else "default"
    if options["role"]:
        _play(store, *options["role"])
        return
    try:
        from delayedq.torture.run import Plan, torture  # registers the tasks
    except InvalidTask as error:
        raise CommandError(str(error)) from None

    known = faults_of(store)
    if options["faults"] == "list":
        out.write("\n".join(known))
        return
    chosen = options["faults"].split(",") if options["faults"] else [*known]
    if unknown := [name for name in chosen if name not in known]:
        raise CommandError(f"There is no fault {unknown[0]!r} on this database; there are {', '.join(known)}.")
    _check_alone(store)
    seed = random.randrange(10**6) if options["seed"] is None else options["seed"]  # noqa: S311 - no secret
    folder: Path | None = options["folder"]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    use_worker_connections()  # a pool would lend this process what a fault has ended
    plan = Plan(
        os.environ[BACKEND],
        seed,
        options["minutes"] * 60,
        options["rate"],
        {name: known[name] for name in chosen},
    )
    report = torture(store, plan, folder, keep=options["keep"])
    tell(out, options, _as_text(report, options["minutes"]), _values(report))
    if report.violations:
        sys.exit(1)


def _check_alone(store: Store) -> None:
    now = store.now()
    if names := [one.name for one in Worker.objects.using(store.alias) if is_alive(one, now)][:3]:
        said = f"Workers run on this database ({', '.join(names)}): stop them, or take a database of its own."
        raise CommandError(said)
    if Message.objects.using(store.alias).filter(kind__startswith=KINDS).exists():
        raise CommandError("Messages of an earlier run are left: delete them with `delayedq cancel` or in the admin.")


def _play(store: Store, role: str, *words: str) -> None:
    """What a process of the run does."""
    from delayedq.torture import tasks  # registers them
    from delayedq.torture.run import LEASE, PROCESSES, THREADS

    if role == "producer":
        from delayedq.torture.producer import Producer

        name, seed, rate = words
        Producer(store.alias, name, seed, int(rate)).run()
        return
    served = ["--backend", os.environ[BACKEND], "--queues", tasks.QUEUE, "--name", f"torture-{words[0]}"]
    counts = ["--processes", str(PROCESSES), "--threads", str(THREADS)]
    call_command("run_workers", *served, *counts, "--lease", str(LEASE), "--shutdown-timeout", "5")


def _as_text(report: Report, minutes: float) -> str:
    faults = ", ".join(f"{name} {number}" for name, number in sorted(report.faults.items()))
    slowest = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in sorted(report.recovered.items()))
    lines = [
        f"Seed {report.seed}: {report.messages:,} messages and {report.attempts:,} attempts in {report.seconds:.0f} s.",
        f"Faults: {faults or 'none'}.",
        f"Longest until the usual rate was back: {slowest or 'not measured'}.",
        f"Attempts that returned beside another one of their message: {report.ended_twice}.",
    ]
    for one in report.violations[:20]:
        lines += [f"Violated: {one.invariant}: {one.text}", *(f"    {_line(event)}" for event in one.lines)]
    if report.violations:
        lines.append(f"{len(report.violations)} violations; again: --minutes {minutes:g} --seed {report.seed}")
    else:
        lines.append("Everything held.")
    return "\n".join(lines)


def _line(event: Event) -> str:
    return f"{event.at / 1e9:.6f} process {event.pid} {event.what} {' '.join(map(str, event.about))}"


def _values(report: Report) -> dict[str, Any]:
    violations = [{"invariant": one.invariant, "text": one.text, "lines": one.lines} for one in report.violations]
    return report._asdict() | {"violations": violations}
