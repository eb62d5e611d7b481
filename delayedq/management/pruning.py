"""`manage.py delayedq prune`: delete old history, and dead letters, which workers never delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.management.base import CommandError
from django.db import Error
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from delayedq.core.bounds import EARLIEST
from delayedq.management.arguments import age
from delayedq.management.telling import add_json, as_json
from delayedq.operations.acts import note
from delayedq.operations.pruning import prune
from delayedq.operations.wording import grouped, printable

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from datetime import datetime, timedelta

    from django.core.management.base import OutputWrapper

    from delayedq.store.base import Store


def add_prune(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--older-than",
        type=age,
        metavar="AGE",
        help="Delete messages that ended longer ago, except dead letters; as 30d, 12h or 90m.",
    )
    parser.add_argument(
        "--failed-older-than", type=age, metavar="AGE", help="Delete dead letters that failed longer ago."
    )
    parser.add_argument("--queue", metavar="QUEUE", help="Only messages of this queue.")
    parser.add_argument("--dry-run", action="store_true", help="Count, and delete nothing.")
    add_json(parser)


def run_prune(store: Store, out: OutputWrapper, options: dict[str, Any]) -> int:
    """Do it and say what was done; returns how many rows that was. Raises CommandError if nothing is asked for."""
    asked = {False: options["older_than"], True: options["failed_older_than"]}
    if not any(older_than is not None for older_than in asked.values()):
        said = _("Say what to delete: --older-than AGE, --failed-older-than AGE, or both; AGE as in 30d.")
        raise CommandError(said)
    now = store.now()
    moments = {failed: _before(now, older_than) for failed, older_than in asked.items() if older_than is not None}
    done: list[Done] = []
    for dead_letters, before in moments.items():
        done.append(_run(store, before, options["queue"], dead_letters=dead_letters, dry_run=options["dry_run"]))
        said = _said(done[-1])
        if done[-1].deleted and not options["dry_run"]:
            note(store, said)
        if not options["json"]:
            out.write(said)
    if options["json"]:
        out.write(as_json([one._asdict() for one in done]))
    return sum(one.deleted + one.kept for one in done)


class Done(NamedTuple):
    """`kept`: what an open batch of the archive still needs."""

    dead_letters: bool
    before: datetime
    queue: str | None
    deleted: int
    kept: int
    dry_run: bool


def _before(now: datetime, older_than: timedelta) -> datetime:
    if older_than > now - EARLIEST:
        about = {"days": grouped(older_than.days), "year": grouped(EARLIEST.year)}
        raise CommandError(_("%(days)s days ago is before the year %(year)s.") % about)
    return now - older_than


def _run(store: Store, before: datetime, queue: str | None, *, dead_letters: bool, dry_run: bool) -> Done:
    deleted = needed = 0
    try:
        for batch in prune(store, before, dead_letters=dead_letters, queue=queue, dry_run=dry_run):
            deleted, needed = deleted + batch.deleted, needed + batch.needed
    except Error as error:
        if not deleted:
            raise
        about = {"number": grouped(deleted), "error": error}
        raise CommandError(_("The database failed after %(number)s rows: %(error)s") % about) from error
    return Done(dead_letters, before, queue, deleted, needed, dry_run)


def _said(done: Done) -> str:
    about = {
        "number": grouped(done.deleted),
        "where": _(" of the queue %(queue)s") % {"queue": printable(done.queue)} if done.queue else "",
        "until": localtime(done.before).isoformat(sep=" ", timespec="seconds"),
    }
    said = _told(done.deleted, dead_letters=done.dead_letters, dry_run=done.dry_run) % about
    if not done.kept:
        return said
    kept = ngettext(
        "%(number)s is kept: an open batch of the archive still needs them.",
        "%(number)s are kept: an open batch of the archive still needs them.",
        done.kept,
    )
    return f"{said}\n{kept % {'number': grouped(done.kept)}}"


def _told(number: int, *, dead_letters: bool, dry_run: bool) -> str:
    if dead_letters and dry_run:
        return ngettext(
            "%(number)s dead letter%(where)s from before %(until)s would be deleted.",
            "%(number)s dead letters%(where)s from before %(until)s would be deleted.",
            number,
        )
    if dead_letters:
        return ngettext(
            "%(number)s dead letter%(where)s from before %(until)s was deleted.",
            "%(number)s dead letters%(where)s from before %(until)s were deleted.",
            number,
        )
    if dry_run:
        return ngettext(
            "%(number)s ended message%(where)s from before %(until)s would be deleted.",
            "%(number)s ended messages%(where)s from before %(until)s would be deleted.",
            number,
        )
    return ngettext(
        "%(number)s ended message%(where)s from before %(until)s was deleted.",
        "%(number)s ended messages%(where)s from before %(until)s were deleted.",
        number,
    )
