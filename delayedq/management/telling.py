"""What `manage.py delayedq` prints, for people or (--json) for programs; what it asks; with which code it exits."""

from __future__ import annotations

import getpass
import json
import os
import sys
from argparse import ArgumentTypeError
from datetime import datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.utils.translation import gettext as _

from delayedq.core.bounds import NAME_LENGTH, is_storable
from delayedq.models.operations import WHY_LENGTH

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from django.core.management.base import OutputWrapper


class Exit(IntEnum):
    """The exit codes, beside 2 for a command line that can't be read."""

    DONE = 0
    #: It failed, or what was asked is wrong.
    FAILED = 1
    #: Messages were chosen, and none of them could be changed.
    UNCHANGED = 3
    #: The question was not answered with yes: nothing was done.
    UNCONFIRMED = 4
    #: Ctrl-C.
    INTERRUPTED = 130


def add_json(parser: ArgumentParser, said: str = "For programs: JSON.") -> None:
    parser.add_argument("--json", action="store_true", help=said)


def add_asking(parser: ArgumentParser, *, why: bool = True) -> None:
    """The options of a command that asks before it changes anything. why: whether the reason is recorded."""
    parser.add_argument("--yes", action="store_true", help="Do not ask.")
    parser.add_argument("--dry-run", action="store_true", help="Show what would be done, and change nothing.")
    add_by(parser, why=why)


def add_by(parser: ArgumentParser, *, why: bool = True) -> None:
    """What is recorded of a change: see `who_and_why`."""
    parser.add_argument("--by", type=_name, metavar="NAME", help="Who does it, for the record (default: the OS user).")
    if why:
        parser.add_argument("--why", default="", metavar="TEXT", help="Why, for the record.")


def _name(text: str) -> str:
    if not text.strip() or len(text) > NAME_LENGTH or not is_storable(text):
        raise ArgumentTypeError(f"a name has 1 to {NAME_LENGTH} characters")
    return text


def operator(options: dict[str, Any]) -> str:
    """Who does it."""
    if options["by"]:
        return str(options["by"])
    try:
        return getpass.getuser()[:NAME_LENGTH]
    except (KeyError, OSError):  # a user id without a name, as in a container; before Python 3.13 a KeyError
        return f"uid {os.getuid()}"


def who_and_why(options: dict[str, Any]) -> tuple[str, str]:
    """Who does it, and the reason that they have given; "": none. Raises CommandError for one that can't be stored."""
    why = options["why"].strip()
    if not is_storable(why) or len(why) > WHY_LENGTH:
        raise CommandError(_("--why has at most %(number)s characters.") % {"number": WHY_LENGTH})
    return operator(options), why


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1, default=plain)


def plain(value: Any) -> Any:
    """A value that JSON has not: times in ISO 8601, durations in seconds, all else as text."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else str(value)


def tell(out: OutputWrapper, options: dict[str, Any], said: str, value: Any) -> None:
    """Print `value` as JSON if the options ask for it, else the text."""
    out.write(as_json(value) if options["json"] else said)


def confirm(question: str, options: dict[str, Any], err: OutputWrapper) -> None:
    """Ask, unless the options have `yes`. Raises CommandError if the answer is no, or if there is no terminal."""
    if options["yes"]:
        return
    if not sys.stdin.isatty():
        said = _("Nothing was done: there is no terminal to ask on. To do it, add --yes.")
        raise CommandError(said, returncode=Exit.UNCONFIRMED)
    err.write(f"{question} [y/N] ", ending="")
    err.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CommandError(_("Nothing was done."), returncode=Exit.UNCONFIRMED)
