"""`manage.py delayedq`: what an operator asks of the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from delayedq.cron.definitions import definitions
from delayedq.exceptions import InvalidQueue
from delayedq.management.arguments import positive
from delayedq.operations.browsing import find_ended, find_live
from delayedq.operations.explain import explain
from delayedq.operations.pauses import pause, resume
from delayedq.operations.wording import printable
from delayedq.store import default_store

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from delayedq.cron.definitions import Definition
    from delayedq.models import FinishedMessage, Message


class Command(BaseCommand):
    help = "Shows what the queue does, says why a message does not run, and pauses queues."
    requires_migrations_checks = True

    def add_arguments(self, parser: CommandParser) -> None:
        subjects = parser.add_subparsers(dest="subject", required=True)
        explained = subjects.add_parser("explain", help="Why a message does not run.")
        explained.add_argument("message", metavar="ID|KEY")
        for verb, said in (("pause", "Let workers claim nothing from a queue."), ("resume", "Let them go on.")):
            subjects.add_parser(verb, help=said).add_argument("queue", metavar="QUEUE")
        self._add_cron(subjects.add_parser("cron", help="The schedules of DELAYEDQ['CRON']."))

    def _add_cron(self, cron: CommandParser) -> None:
        verbs = cron.add_subparsers(dest="verb", required=True)
        verbs.add_parser("list", help="All schedules, with their last and next ticks.")
        following = verbs.add_parser("next", help="The ticks to come, in the zone of their schedule and in UTC.")
        following.add_argument("names", nargs="*", metavar="NAME", help="Of these schedules only (all).")
        following.add_argument("--count", type=positive, default=5, metavar="N", help="So many of each (5).")
        following.add_argument(
            "--around-dst", action="store_true", help="Those around the next two changes of the zone's clock."
        )
        verbs.add_parser("run", help="Run a schedule's task now.").add_argument("name", metavar="NAME")

    def handle(self, *, subject: str, **options: Any) -> None:
        match subject:
            case "explain":
                self._explain(options["message"])
            case "pause":
                self._pause(options["queue"])
            case "resume":
                self._resume(options["queue"])
            case _ if options["verb"] == "run":
                self._run(options["name"])
            case _:
                self._show(options["verb"], options)

    def _explain(self, text: str) -> None:
        store = default_store()
        messages: list[Message | FinishedMessage] = [*find_live(store, text), *find_ended(store, text)]
        if not messages:
            raise CommandError(f"There is no message with the id or the key {text!r}, and none in the history.")
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
        self.stdout.write(f"{queue} is paused{'' if paused else ' already'}.")

    def _resume(self, queue: str) -> None:
        if not resume(queue):
            raise CommandError(f"{queue} is not paused.")
        self.stdout.write(f"{queue} goes on.")

    def _run(self, name: str) -> None:
        scheduled = _known(name).run()
        self.stdout.write(f"{name} is due now, as message {scheduled.id}.")

    def _show(self, verb: str, options: dict[str, Any]) -> None:
        try:
            from delayedq.management import tables  # what it needs is an extra
        except ModuleNotFoundError as error:
            missing = str(error.name).partition(".")[0]
            raise CommandError(f"{missing} is missing: pip install 'delayedq[cli]'.") from None
        console = tables.console_on(self.stdout, no_color=options["no_color"], force_color=options["force_color"])
        if verb == "list":
            tables.show_schedules(console, definitions().values())
            return
        show = tables.show_ticks_around_changes if options["around_dst"] else tables.show_ticks
        chosen = [_known(name) for name in options["names"]] or definitions().values()
        show(console, chosen, options["count"])


def _known(name: str) -> Definition:
    known = definitions()
    if name not in known:
        raise CommandError(f"DELAYEDQ['CRON'] has no schedule {name!r}; it has {', '.join(known) or 'none'}.")
    return known[name]
