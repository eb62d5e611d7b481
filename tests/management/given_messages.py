"""Steps of the tests of the commands that list and change messages."""

from __future__ import annotations

import json
from io import StringIO

from django.core.management import CommandError, call_command

from tests.admin.given import dead as dead_letter

#: In place of the user of the operating system.
BY = ("--by", "ann")


def shell(*arguments):
    """What the command prints, and its exit code."""
    out = StringIO()
    try:
        call_command("delayedq", *arguments, stdout=out, stderr=StringIO())
    except CommandError as error:
        return out.getvalue(), error.returncode
    return out.getvalue(), 0


def said(*arguments):
    """What it prints, of a command that does what it should."""
    text, code = shell(*arguments)
    assert code == 0, text
    return text


def told(*arguments):
    """What programs are told."""
    return json.loads(said(*arguments, "--json"))


def ids(*arguments):
    return [row["id"] for row in told("list", *arguments)["messages"]]


def dead(store, key=None, line="app.Full: Seat 7 is taken", **fields):
    """A dead letter with this error; returns its id."""
    name, _, message = line.partition(": ")
    errors = json.dumps([{"attempt": 1, "exception": name, "message": message, "traceback": f"at {name}"}])
    return dead_letter(store, key, errors=errors, **fields)
