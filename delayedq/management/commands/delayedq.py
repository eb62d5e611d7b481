"""`manage.py delayedq`: explain a message, pause and resume queues, prune history, show and run schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.db import OperationalError, ProgrammingError
from django.utils.translation import gettext as _

from delayedq.compat import InvalidTaskBackend
from delayedq.cron.command import CronVerbs
from delayedq.exceptions import InvalidQueue
from delayedq.flows.operator import explain_step, steps_of
from delayedq.limits.command import add_channels, run_channels
from delayedq.management.backends import all_stores, check_answer, check_tables, chosen_store
from delayedq.management.development import add_dev, run_dev
from delayedq.management.doctor import add_json, run_check_pending, run_doctor
from delayedq.management.importing import add_import_from, run_import_from
from delayedq.management.migrations import MigratedCommand
from delayedq.management.monitoring import add_health, run_health, show_metrics
from delayedq.management.pruning import add_prune, run_prune
from delayedq.management.queues import (
    check_queues,
    known_queues,
    near,
    pause_others,
    resume_others,
    told_paused,
    told_resumed,
)
from delayedq.management.scaling import add_needed, run_needed
from delayedq.operations.acts import pause_queues, resume_queues
from delayedq.operations.browsing import PAGE, Selection, by_key, find_ended, find_live, id_in
from delayedq.operations.explain import explain
from delayedq.operations.pauses import check_name
from delayedq.operations.wording import printable
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable

    from django.core.management.base import CommandParser

    from delayedq.models import FinishedMessage, Message
    from delayedq.store.base import Store


#: What the name of a flow begins with.
FLOW = "flow:"


class Command(MigratedCommand):
    help = "Explains why a message does not run, pauses and resumes queues, prunes history, shows and runs schedules."

    def add_arguments(self, parser: CommandParser) -> None:
        subjects = parser.add_subparsers(dest="subject", required=True)
        explained = subjects.add_parser("explain", help="Why a message, or the steps of a flow, do not run.")
        explained.add_argument("message", metavar="ID|KEY|flow:ID", help="The beginning of a key is enough.")
        for verb, said in (
            ("pause", "Stop workers from claiming from a queue."),
            ("resume", "Let workers claim from it again."),
        ):
            of_queue = subjects.add_parser(verb, help=said)
            which = of_queue.add_mutually_exclusive_group(required=True)
            which.add_argument("queue", metavar="QUEUE", nargs="?")
            which.add_argument("--task", metavar="PATH", help="Not a queue, but the messages of a task.")
            which.add_argument("--all", action="store_true", help="All queues of tasks that are known now.")
            _add_backend(of_queue)
        pruned = subjects.add_parser("prune", help="Delete old history now, also dead letters.")
        add_prune(pruned)
        _add_backend(pruned)
        subjects.add_parser("metrics", help="Print the metrics of the databases, as Prometheus reads them.")
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
        CronVerbs.add_arguments(subjects.add_parser("cron", help="The schedules of the settings and the database."))

    def execute(self, *args: Any, **options: Any) -> str | None:
        """A probe has a time limit, and says itself if tables are missing."""
        self.requires_migrations_checks = options["subject"] != "health"
        return super().execute(*args, **options)

    def handle(self, *, subject: str, **options: Any) -> None:
        verbs: dict[str, Callable[[dict[str, Any]], None]] = {
            "explain": self._explain,
            "pause": self._pause,
            "resume": self._resume,
            "prune": self._prune,
            "metrics": lambda _: show_metrics(self.stdout),
            "health": lambda given: run_health(self.stdout, given),
            "doctor": lambda given: run_doctor(self.stdout, given),
            "check-pending": lambda given: run_check_pending(self.stdout, given),
            "workers-needed": lambda given: run_needed(self.stdout, given),
            "dev": run_dev,
            "channels": self._channels,
            "import-from": lambda given: run_import_from(self.stdout, given),
            "cron": CronVerbs(self.stdout).do,
        }
        try:
            verbs[subject](options)
        except (InvalidTaskBackend, OperationalError, ProgrammingError):
            for store in all_stores():  # forgotten migrations are the likely reason; it names a backend of TASKS
                check_tables(store)
                check_answer(store)
            raise

    def _explain(self, options: dict[str, Any]) -> None:
        text: str = options["message"]
        if text.startswith(FLOW):
            self._explain_flow(text)
            return
        found = [(store, message) for store in all_stores() for message in _named(store, text)]
        candidates = [] if found else [(store, message) for store in all_stores() for message in _begun(store, text)]
        if not found and not candidates:
            said = _(
                "There is no live message with the id or key %(text)r, nor one whose key begins with it, and no ended"
                " one with that id."
            )
            raise CommandError(said % {"text": text})
        for store, message in found or candidates:
            name = f"{message.kind} {message.key}" if message.key else message.kind
            self.stdout.write(f"#{message.pk} {printable(name)}")
            for answer in [] if len(candidates) > 1 else explain(message, store=store):
                self.stdout.write(f"  {printable(answer.text)}")
        if len(candidates) > 1:
            about = {"number": min(len(candidates), PAGE), "text": printable(text)}
            more = _(
                "More than %(number)s messages have a key that begins with %(text)s; name one to have it explained."
            )
            these = _("%(number)s messages have a key that begins with %(text)s; name one to have it explained.")
            self.stdout.write((more if len(candidates) > PAGE else these) % about)

    def _explain_flow(self, text: str) -> None:
        id_ = id_in(text.removeprefix(FLOW)) or 0
        found = [(store, steps) for store in all_stores() if (steps := steps_of(store, id_))]
        if not found:
            raise CommandError(_("There is no flow %(name)r.") % {"name": printable(text.removeprefix(FLOW))})
        for _store, steps in found:
            for one in steps:
                self.stdout.write(f"{printable(one.step.name)}: {one.step.state}")
                self.stdout.write(f"  {printable(explain_step(one, steps))}")

    def _pause(self, options: dict[str, Any]) -> None:
        store, backends = chosen_store(options["backend"])
        queue: str | None = options["queue"]
        if queue is None:
            self.stdout.write(pause_others(store, options["task"]))
            return
        try:
            check_name(queue)
            check_queues([queue], backends, self.stderr)
            paused = bool(pause_queues(store, [queue]))
        except InvalidQueue as error:
            raise CommandError(str(error)) from None
        self.stdout.write(told_paused(queue, paused))

    def _resume(self, options: dict[str, Any]) -> None:
        queue: str | None = options["queue"]
        store, _backends = chosen_store(options["backend"])
        if queue is None:
            self.stdout.write(resume_others(store, options["task"]))
            return
        if not resume_queues(store, [queue]):
            others = ", ".join(sorted(map(printable, store.paused())))
            said = (
                _("%(name)r is not paused; paused: %(others)s.")
                if others
                else _("%(name)r is not paused; no queue is.")
            )
            raise CommandError(said % {"name": queue, "others": others})
        self.stdout.write(told_resumed(queue))

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


def _named(store: Store, text: str) -> list[Message | FinishedMessage]:
    """The messages with this id or key."""
    return [*find_live(store, text), *find_ended(store, text)]


def _begun(store: Store, text: str) -> list[Message]:
    """Up to PAGE + 1 live messages whose keys begin so."""
    return by_key(store, text, Selection(as_of=store.now()))


def _add_backend(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--backend", metavar="NAME", help="Use the database of this backend of TASKS; needed if there are several."
    )
