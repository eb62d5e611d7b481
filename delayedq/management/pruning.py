"""`manage.py delayedq prune`: delete old history, and dead letters, which workers never delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.db import Error
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from delayedq.core.bounds import EARLIEST
from delayedq.management.arguments import age
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


def run_prune(store: Store, out: OutputWrapper, options: dict[str, Any]) -> int:
    """Do it and say what was done; returns how many rows that was. Raises CommandError if nothing is asked for."""
    asked = {False: options["older_than"], True: options["failed_older_than"]}
    if not any(older_than is not None for older_than in asked.values()):
        said = _("Say what to delete: --older-than AGE, --failed-older-than AGE, or both; AGE as in 30d.")
        raise CommandError(said)
    now = store.now()
    moments = {failed: _before(now, older_than) for failed, older_than in asked.items() if older_than is not None}
    return sum(
        _run(store, out, before, options["queue"], dead_letters=dead_letters, dry_run=options["dry_run"])
        for dead_letters, before in moments.items()
    )


def _before(now: datetime, older_than: timedelta) -> datetime:
    if older_than > now - EARLIEST:
        about = {"days": grouped(older_than.days), "year": grouped(EARLIEST.year)}
        raise CommandError(_("%(days)s days ago is before the year %(year)s.") % about)
    return now - older_than


def _run(
    store: Store, out: OutputWrapper, before: datetime, queue: str | None, *, dead_letters: bool, dry_run: bool
) -> int:
    deleted = needed = 0
    try:
        for batch in prune(store, before, dead_letters=dead_letters, queue=queue, dry_run=dry_run):
            deleted, needed = deleted + batch.deleted, needed + batch.needed
    except Error as error:
        if not deleted:
            raise
        about = {"number": grouped(deleted), "error": error}
        raise CommandError(_("The database failed after %(number)s rows: %(error)s") % about) from error
    about = {
        "number": grouped(deleted),
        "where": _(" of the queue %(queue)s") % {"queue": printable(queue)} if queue else "",
        "until": localtime(before).isoformat(sep=" ", timespec="seconds"),
    }
    out.write(_told(deleted, dead_letters=dead_letters, dry_run=dry_run) % about)
    if needed:
        said = ngettext(
            "%(number)s is kept: an open batch of the archive still needs them.",
            "%(number)s are kept: an open batch of the archive still needs them.",
            needed,
        )
        out.write(said % {"number": grouped(needed)})
    return deleted + needed


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
