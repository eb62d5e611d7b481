"""Each command of `manage.py delayedq` that prints can do so for programs."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from io import StringIO

import pytest
from django.core.management import call_command

from delayedq import chain
from delayedq.management.commands.delayedq import Command
from delayedq.models import Edit
from tests.admin.given import offer
from tests.app import tasks
from tests.management.given import REPORT

pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
ECHO, DELIVER = tasks.echo.module_path, tasks.deliver.module_path
#: `dev` runs until it is stopped, and prints what its processes print.
#: What `completion` prints is for bash.
NO_JSON = {"completion", "dev"}


def leaves(parser, names=()):
    """Each subcommand that has none itself, by its names, with its options."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield " ".join(names), {flag for action in parser._actions for flag in action.option_strings}
    for action in below:
        for name, one in action.choices.items():
            yield from leaves(one, (*names, name))


def told(line):
    out = StringIO()
    with suppress(SystemExit):
        call_command("delayedq", *line.split(), "--json", stdout=out, stderr=StringIO())
    return json.loads(out.getvalue())


def test_every_command_that_prints_has_the_option(alias):
    every = dict(leaves(Command().create_parser("manage.py", "delayedq")))
    assert len(every) > 30
    assert {name for name, options in every.items() if "--json" not in options} == NO_JSON


TOLD = {
    "explain waits": lambda told: (
        [(one["key"], one["answers"][0]["reason"]) for one in told] == [("waits", "scheduled")]
    ),
    "explain wait": lambda told: len(told) == 1 and told[0]["answers"] is not None,
    "health": lambda told: [one["passed"] for one in told] != [] and all(one["passed"] for one in told),
    "metrics": lambda told: {"name": "delayedq_up", "labels": {"database": "default"}, "value": 1.0} in told,
    "prune --older-than 0s --dry-run": lambda told: [(one["deleted"], one["dry_run"]) for one in told] == [(0, True)],
    "pause default": lambda told: told == {"paused": ["default"]},
    f"pause --task {ECHO}": lambda told: told == {"paused": [ECHO]},
    "resume --all": lambda told: told == {"resumed": []},
    "cron list": lambda told: (
        [(one["name"], one["state"], one["last"]) for one in told] == [("report", "active", None)]
    ),
    "cron next --count 2": lambda told: [len(one["ticks"]) for one in told] == [2],
    "cron next --around-dst --count 2": lambda told: [len(one["changes"]) for one in told] == [2],
    "cron run report": lambda told: told["schedule"] == "report" and isinstance(told["message"], int),
    "cron disable report": lambda told: told == {"schedule": "report", "changed": True},
    f"cron add new {ECHO} --every 900": lambda told: told["schedule"] == "new" and "T" in told["first"],
    f"channels pause {DELIVER}": lambda told: (told["changed"], told["verb"]) == (True, "pause"),
    "channels list": lambda told: {"limits", "channels", "more"} == set(told) and told["channels"] == [],
    "undo --list": lambda told: told == [],
}


@pytest.mark.parametrize("line", TOLD)
def test_what_programs_are_told(store, schedules, line):
    schedules(report=REPORT)
    offer(store, "waits", seconds=900)
    assert TOLD[line](told(line))


def test_candidates_are_told_without_answers(store):
    offer(store, "UA1"), offer(store, "UA2")
    assert [(one["key"], one["answers"]) for one in told("explain UA")] == [("UA1", None), ("UA2", None)]


def test_the_steps_of_a_flow_are_told(store):
    flow = chain(tasks.echo.s("a"), tasks.echo.s("b")).enqueue()
    first, second = told(f"explain flow:{flow.id}")
    assert (first["state"], second["state"]) == ("running", "waiting")
    assert second["text"]


def test_a_change_that_only_shows_writes_no_edit(store):
    offer(store, "a")
    assert told("cancel a --dry-run")["changing"] == 1
    assert not Edit.objects.exists()
