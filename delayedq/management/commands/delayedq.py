"""`manage.py delayedq`: what an operator asks of the queue."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from delayedq.cron.definitions import definitions

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from delayedq.cron.definitions import Definition


class Command(BaseCommand):
    help = "Shows what the queue does. `delayedq cron`: the schedules of DELAYEDQ['CRON']."
    requires_migrations_checks = True

    def add_arguments(self, parser: CommandParser) -> None:
        subjects = parser.add_subparsers(dest="subject", required=True)
        cron = subjects.add_parser("cron", help="The schedules of DELAYEDQ['CRON'].")
        verbs = cron.add_subparsers(dest="verb", required=True)
        verbs.add_parser("list", help="All schedules, with their last and next ticks.")
        following = verbs.add_parser("next", help="The ticks to come, in the zone of their schedule and in UTC.")
        following.add_argument("names", nargs="*", metavar="NAME", help="Of these schedules only (all).")
        following.add_argument("--count", type=_positive, default=5, metavar="N", help="So many of each (5).")
        following.add_argument(
            "--around-dst", action="store_true", help="Those around the next two changes of the zone's clock."
        )
        verbs.add_parser("run", help="Run a schedule's task now.").add_argument("name", metavar="NAME")

    def handle(self, *, verb: str, **options: Any) -> None:
        if verb == "run":
            self._run(options["name"])
        else:
            self._show(verb, options)

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


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a whole number over 0")
    return int(text)
