"""`manage.py delayedq import-from`: move what waits in another framework, and copy its schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.utils.translation import gettext as _

from delayedq.exceptions import DelayedQError
from delayedq.management import tables
from delayedq.management.telling import add_json, as_json
from delayedq.operations.imports import celery_beat, django_ox, django_q
from delayedq.operations.imports.schedules import take_over
from delayedq.operations.imports.waiting import DjangoOx, DjangoQ, DjangoTasksDb, Procrastinate, move

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Iterable

    from django.core.management.base import OutputWrapper

    from delayedq.operations.imports.schedules import ForeignSchedule
    from delayedq.operations.imports.waiting import Origin

WAITING: dict[str, Callable[[], Origin]] = {
    "django-ox": DjangoOx,
    "django-q2": DjangoQ,
    "django-tasks-db": DjangoTasksDb,
    "procrastinate": Procrastinate,
}
SCHEDULES: dict[str, Callable[[], Iterable[ForeignSchedule]]] = {
    "celery-beat": celery_beat.found,
    "django-ox": django_ox.found,
    "django-q2": django_q.found,
}


def add_import_from(parser: ArgumentParser) -> None:
    parser.add_argument("origin", choices=sorted({*WAITING, *SCHEDULES}), help="The framework.")
    parser.add_argument("--dry-run", action="store_true", help="Show what would become of each, and change nothing.")
    parser.add_argument(
        "--task", action="append", default=[], metavar="OLD=NEW", help="The task that replaces another one."
    )
    add_json(parser)


def run_import_from(out: OutputWrapper, options: dict[str, Any]) -> None:
    """Raises CommandError for what can't be read here."""
    origin, dry_run = options["origin"], options["dry_run"]
    if wrong := [given for given in options["task"] if "=" not in given]:
        raise CommandError(_("--task takes OLD=NEW, not %(given)r.") % {"given": wrong[0]})
    tasks = dict(given.split("=", 1) for given in options["task"])
    console = tables.console_on(out, no_color=options["no_color"], force_color=options["force_color"])
    told: dict[str, Any] = {"dry_run": dry_run}
    try:
        if origin in SCHEDULES:
            taken = take_over(SCHEDULES[origin](), tasks, dry_run=dry_run)
            told["schedules"] = [one._asdict() for one in taken]
            if not options["json"]:
                tables.show_imported(console, taken, dry_run=dry_run)
        if origin in WAITING:
            moved = move(WAITING[origin](), tasks, dry_run=dry_run)
            told["messages"] = [one._asdict() for one in moved]
            if not options["json"]:
                tables.show_moved(console, moved, dry_run=dry_run)
    except DelayedQError as error:
        raise CommandError(str(error)) from None
    if options["json"]:
        out.write(as_json(told))
