"""`manage.py delayedq doctor` and `check-pending`: say what is wrong, and the cure; exit code 1 if something is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django.db import Error
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from delayedq.management.backends import ask
from delayedq.management.telling import as_json as as_json_text
from delayedq.operations.doctor import HIDDEN, check_pending, diagnose, refused
from delayedq.operations.queues import all_databases
from delayedq.operations.wording import grouped, printable

if TYPE_CHECKING:
    from django.core.management.base import OutputWrapper

    from delayedq.operations.doctor import Diagnosis
    from delayedq.store.base import Store


def run_doctor(out: OutputWrapper, options: dict[str, Any]) -> None:
    found = [{"database": store.alias, **one._asdict()} for store in all_databases() for one in _diagnosed(store)]
    cure = _("Cure: %(cure)s")
    lines = [f"{one['database']}: {one['sentence']}\n  {cure % one}" for one in found]
    # Others' sessions come and go, and few users may see what they do: that alone is nothing wrong.
    wrong = any(one["condition"] != HIDDEN for one in found)
    _tell(out, found, lines or [_("Nothing is wrong.")], as_json=options["json"], failed=wrong)


def _diagnosed(store: Store) -> list[Diagnosis]:
    try:
        ask(store)
    except Error as error:
        return [refused(store, error)]
    return list(diagnose(store))


def run_check_pending(out: OutputWrapper, options: dict[str, Any]) -> None:
    found: list[dict[str, Any]] = []
    checked = 0
    for store in all_databases():
        try:
            ask(store)
            number, unrunnable = check_pending(store)
        except Error as error:
            if not options["json"]:
                raise
            found.append(as_told(store, error))
            continue
        checked += number
        found += [{"database": store.alias, **one._asdict()} for one in unrunnable]
    lines = [] if options["json"] else [_about(one) for one in found]
    well = ngettext(
        "This version can run the %(number)s message that waits.",
        "This version can run all %(number)s messages that wait.",
        checked,
    )
    told = lines or [well % {"number": grouped(checked)}]
    _tell(out, found, told, as_json=options["json"], failed=bool(found))


def _about(one: dict[str, Any]) -> str:
    """As `explain` takes the ids."""
    first = f"flow:{one['id']}" if one["is_later"] else f"#{one['id']}"
    about = _("%(count)s of %(kind)s, as %(first)s: %(reason)s")
    return about % {**one, "count": grouped(one["number"]), "first": first}


def as_told(store: Store, error: Error) -> dict[str, Any]:
    """The diagnosis of a database that does not answer, for programs: that of `doctor --json`."""
    return {"database": store.alias, **refused(store, error)._asdict()}


def _tell(out: OutputWrapper, found: list[dict[str, Any]], lines: list[str], *, as_json: bool, failed: bool) -> None:
    out.write(as_json_text(found) if as_json else "\n".join(map(_line, lines)))
    if failed:
        sys.exit(1)


def _line(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))
