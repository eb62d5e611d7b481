"""`manage.py delayedq doctor` and `check-pending`: say what is wrong, and the cure; exit code 1 if something is."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from delayedq.operations.databases import all_databases
from delayedq.operations.diagnosis import HIDDEN
from delayedq.operations.doctor import diagnose
from delayedq.operations.pending import check_pending
from delayedq.operations.wording import grouped, printable

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from django.core.management.base import OutputWrapper


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="For programs: a list of objects.")


def run_doctor(out: OutputWrapper, options: dict[str, Any]) -> None:
    found = [{"database": store.alias, **one._asdict()} for store in all_databases() for one in diagnose(store)]
    cure = _("Cure: %(cure)s")
    lines = [f"{one['database']}: {one['sentence']}\n  {cure % one}" for one in found]
    # Others' sessions come and go, and few users may see what they do: that alone is nothing wrong.
    wrong = any(one["condition"] != HIDDEN for one in found)
    _tell(out, found, lines or [_("Nothing is wrong.")], as_json=options["json"], failed=wrong)


def run_check_pending(out: OutputWrapper, options: dict[str, Any]) -> None:
    found, checked = [], 0
    for store in all_databases():
        number, unrunnable = check_pending(store)
        checked += number
        found += [{"database": store.alias, **one._asdict()} for one in unrunnable]
    about = _("%(count)s of %(kind)s, as #%(id)s: %(reason)s")
    lines = [about % {**one, "count": grouped(one["number"])} for one in found]
    well = ngettext(
        "This version can run the %(number)s message that waits.",
        "This version can run all %(number)s messages that wait.",
        checked,
    )
    told = lines or [well % {"number": grouped(checked)}]
    _tell(out, found, told, as_json=options["json"], failed=bool(found))


def _tell(out: OutputWrapper, found: list[dict[str, Any]], lines: list[str], *, as_json: bool, failed: bool) -> None:
    out.write(json.dumps(found, indent=1) if as_json else "\n".join(map(_line, lines)))
    if failed:
        sys.exit(1)


def _line(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))
