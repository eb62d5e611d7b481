"""`manage.py delayedq`: the operator's subcommands, which each stand in a module of `delayedq.management`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from django.db import OperationalError, ProgrammingError
from django.utils.translation import gettext as _

from delayedq.compat import InvalidTaskBackend
from delayedq.cron.command import CronVerbs
from delayedq.limits.command import add_channels, run_channels
from delayedq.management.backends import all_stores, check_answer, check_tables, chosen_store
from delayedq.management.completion import add_completion, run_completion
from delayedq.management.development import add_dev, run_dev
from delayedq.management.doctor import run_check_pending, run_doctor
from delayedq.management.editing import VERBS, add_change, add_stop, add_undo, run_change, run_stop, run_undo
from delayedq.management.explaining import add_explain, run_explain
from delayedq.management.following import add_tail, run_tail
from delayedq.management.importing import add_import_from, run_import_from
from delayedq.management.messages import add_list, add_show, run_list, run_show
from delayedq.management.migrations import MigratedCommand
from delayedq.management.monitoring import add_health, run_health, show_metrics
from delayedq.management.partitioning import add_partition, run_partition
from delayedq.management.pruning import add_prune, run_prune
from delayedq.management.queues import add_pause, known_queues, near, run_pause, run_resume
from delayedq.management.scaling import add_needed, run_needed
from delayedq.management.telling import add_json
from delayedq.store.protocol import BARE
from delayedq.torture.command import add_torture, run_torture

if TYPE_CHECKING:
    from argparse import ArgumentParser, _SubParsersAction
    from collections.abc import Callable

    from django.core.management.base import CommandParser

    Subjects = _SubParsersAction[CommandParser]


class Command(MigratedCommand):
    help = "Lists, explains and changes messages, pauses and resumes queues, prunes history, shows and runs schedules."

    def add_arguments(self, parser: CommandParser) -> None:
        subjects = parser.add_subparsers(dest="subject", required=True)
        _add_messages(subjects)
        add_explain(subjects.add_parser("explain", help="Why a message, or the steps of a flow, do not run."))
        for verb, said in (
            ("pause", "Stop workers from claiming from a queue."),
            ("resume", "Let workers claim from it again."),
        ):
            of_queue = subjects.add_parser(verb, help=said)
            add_pause(verb, of_queue)
            _add_backend(of_queue)
        pruned = subjects.add_parser("prune", help="Delete old history now, also dead letters.")
        add_prune(pruned)
        _add_backend(pruned)
        said = (
            "Make the history a table of partitions, one a month; then make and drop those that are due (PostgreSQL)."
        )
        partitioned = subjects.add_parser("partition", help=said)
        add_partition(partitioned)
        _add_backend(partitioned)
        add_json(subjects.add_parser("metrics", help="Print the metrics of the databases, as Prometheus reads them."))
        add_health(subjects.add_parser("health", help="Whether workers can do their work; exit code 1 if not."))
        add_json(subjects.add_parser("doctor", help="What is wrong, and the cure; exit code 1 if anything is."))
        add_json(
            subjects.add_parser("check-pending", help="Whether this version of the code can run all waiting messages.")
        )
        add_dev(subjects.add_parser("dev", help="For development: runserver and run_workers --reload together."))
        needed = subjects.add_parser("workers-needed", help="How many worker processes messages need to start in time.")
        add_needed(needed)
        _add_backend(needed)
        add_channels(subjects.add_parser("channels", help="The channels and limits: list, pause, resume, set, clear."))
        moved = subjects.add_parser(
            "import-from", help="Move waiting messages from another framework, and copy its schedules."
        )
        add_import_from(moved)
        tortured = subjects.add_parser("torture", help="Kill and freeze workers under load, and judge what they did.")
        add_torture(tortured)
        _add_backend(tortured)
        add_completion(subjects.add_parser("completion", help="Print what has bash complete all this."))
        CronVerbs.add_arguments(subjects.add_parser("cron", help="The schedules of the settings and the database."))

    def execute(self, *args: Any, **options: Any) -> str | None:
        """A probe has a time limit, and says itself if tables are missing; nor is a shell told while it completes."""
        self.requires_migrations_checks = options["subject"] not in {"health", "completion"}
        return super().execute(*args, **options)

    def handle(self, *, subject: str, **options: Any) -> None:
        try:
            self._verbs()[subject](options)
        except BrokenPipeError:  # of a reader such as head, that has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (InvalidTaskBackend, OperationalError, ProgrammingError):
            for store in all_stores():  # forgotten migrations are the likely reason; it names a backend of TASKS
                check_tables(store)
                check_answer(store)
            raise

    def _verbs(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        out, err = self.stdout, self.stderr
        return {
            "list": lambda given: run_list(out, err, given),
            "show": lambda given: run_show(out, given),
            **{verb: self._changing(verb) for verb in VERBS},
            "stop": lambda given: run_stop(out, err, given),
            "undo": lambda given: run_undo(out, err, given),
            "tail": lambda given: run_tail(out, err, given),
            "explain": lambda given: run_explain(out, given),
            "pause": lambda given: run_pause(out, given),
            "resume": lambda given: run_resume(out, given),
            "prune": self._prune,
            "partition": lambda given: run_partition(chosen_store(given["backend"])[0], out, err, given),
            "metrics": lambda given: show_metrics(out, given),
            "health": lambda given: run_health(out, given),
            "doctor": lambda given: run_doctor(out, given),
            "check-pending": lambda given: run_check_pending(out, given),
            "workers-needed": lambda given: run_needed(out, given),
            "dev": run_dev,
            "channels": self._channels,
            "import-from": lambda given: run_import_from(out, given),
            "torture": lambda given: run_torture(out, given),
            "completion": lambda given: run_completion(self.create_parser("manage.py", "delayedq"), out, given["of"]),
            "cron": CronVerbs(out).do,
        }

    def _changing(self, verb: str) -> Callable[[dict[str, Any]], None]:
        return lambda given: run_change(verb, self.stdout, self.stderr, given)

    def _channels(self, options: dict[str, Any]) -> None:
        store, _backends = chosen_store(options["backend"])
        run_channels(store, self.stdout, options)

    def _prune(self, options: dict[str, Any]) -> None:
        store, backends = chosen_store(options["backend"])
        found = run_prune(store, self.stdout, options)
        queue: str | None = options["queue"]
        if queue is not None and not found and BARE not in queue:
            known = known_queues([queue], backends)
            if queue not in known:
                said = _("Warning: no task and no message has the queue %(name)r") % {"name": queue}
                self.stderr.write(f"{said}{near(queue, known)}")


def _add_messages(subjects: Subjects) -> None:
    """The verbs of the admin's pages of messages and edits."""
    for name, said, add in (
        ("list", "Messages by the filters of the admin; the live ones, or by --state the ended ones.", add_list),
        ("show", "All of one message: arguments, timeline, why it does not run.", add_show),
        ("stop", "End running messages as cancelled, and tell their tasks.", add_stop),
        ("undo", "Take back an edit, also one that was made in the admin.", add_undo),
        ("tail", "Follow what starts and ends, until Ctrl-C.", add_tail),
    ):
        one = subjects.add_parser(name, help=said)
        add(one)
        _add_backend(one)
    for verb, said in VERBS.items():
        changing = subjects.add_parser(verb, help=said)
        add_change(verb, changing)
        _add_backend(changing)


def _add_backend(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--backend", metavar="NAME", help="Use the database of this backend of TASKS; needed if there are several."
    )
