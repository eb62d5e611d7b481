"""`manage.py delayedq`: explain a message, pause and resume queues, show and run schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from delayedq.exceptions import InvalidQueue
from delayedq.management.cron import CronVerbs
from delayedq.operations.browsing import find_ended, find_live
from delayedq.operations.explain import explain
from delayedq.operations.pauses import pause, resume
from delayedq.operations.wording import printable
from delayedq.store import default_store

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from delayedq.models import FinishedMessage, Message


class Command(BaseCommand):
    help = "Explains why a message does not run, pauses and resumes queues, shows and runs schedules."
    requires_migrations_checks = True

    def add_arguments(self, parser: CommandParser) -> None:
        subjects = parser.add_subparsers(dest="subject", required=True)
        explained = subjects.add_parser("explain", help="Why a message does not run.")
        explained.add_argument("message", metavar="ID|KEY")
        for verb, said in (
            ("pause", "Stop workers from claiming from a queue."),
            ("resume", "Let workers claim from it again."),
        ):
            subjects.add_parser(verb, help=said).add_argument("queue", metavar="QUEUE")
        CronVerbs.add_arguments(subjects.add_parser("cron", help="The schedules of the settings and the database."))

    def handle(self, *, subject: str, **options: Any) -> None:
        match subject:
            case "explain":
                self._explain(options["message"])
            case "pause":
                self._pause(options["queue"])
            case "resume":
                self._resume(options["queue"])
            case _:
                CronVerbs(self.stdout).do(options)

    def _explain(self, text: str) -> None:
        store = default_store()
        messages: list[Message | FinishedMessage] = [*find_live(store, text), *find_ended(store, text)]
        if not messages:
            raise CommandError(f"There is no live message with the id or key {text!r}, and no ended one with that id.")
        for message in messages:
            name = f"{message.kind} {message.key}" if message.key else message.kind
            self.stdout.write(f"#{message.pk} {printable(name)}")
            for answer in explain(message):
                self.stdout.write(f"  {printable(answer.text)}")

    def _pause(self, queue: str) -> None:
        try:
            paused = pause(queue)
        except InvalidQueue as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{queue} {'is paused' if paused else 'was already paused'}.")

    def _resume(self, queue: str) -> None:
        if not resume(queue):
            raise CommandError(f"{queue} is not paused.")
        self.stdout.write(f"{queue} is resumed.")
