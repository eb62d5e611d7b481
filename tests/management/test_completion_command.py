"""`manage.py delayedq completion`: what bash offers at each place of a line."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command

from delayedq import schedules
from delayedq.store import worker_registry
from tests.admin.given import offer
from tests.app.tasks import echo
from tests.store.test_worker_registry import worker

pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


@pytest.fixture
def some(store):
    offer(store, queue="mail")
    offer(store, queue="mail slow")
    worker_registry(store.alias).heartbeat([worker("web-1:4711"), worker("web-1:4712")])
    schedules.create("report", task=echo.module_path, every=timedelta(hours=1))


def offered(line):
    out = StringIO()
    call_command("delayedq", "completion", f"--of=manage.py delayedq {line}", stdout=out)
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("resc", ["reschedule"]),
        ("list --sta", ["--state"]),
        ("list --state sch", ["scheduled"]),
        ("list --queue ma", ["mail", "'mail slow'"]),
        ("list --queue mail --worker web-", ["web-1:4711", "web-1:4712"]),
        ("list --task tests.app.tasks.ech", ["tests.app.tasks.echo"]),
        ("pause mai", ["mail", "'mail slow'"]),
        ("pause --task tests.app.tasks.ech", ["tests.app.tasks.echo"]),
        ("channels set tests.app.tasks.ech", ["tests.app.tasks.echo"]),
        ("cron ena", ["enable"]),
        ("cron run re", ["report"]),
        ("import-from proc", ["procrastinate"]),
        ("list --key ", []),
        ("list --search 'it is", []),
        ("nothing --queue ma", []),
        ("list --queue mail x", []),
    ],
)
def test_what_may_stand_there_is_offered(some, line, expected):
    assert offered(line) == expected


def test_at_the_beginning_all_subcommands_are_offered(store):
    assert {"list", "show", "retry", "pause", "cron", "completion"} <= set(offered(""))
    assert offered("")[:1] == ["cancel"]


def test_bash_completes_with_it(some, environment):
    """Also behind a colon, at which bash begins a new word."""
    python = f"{sys.executable} -m django delayedq"
    script = f"""
    source <({python} completion)
    complete_it() {{
        COMP_LINE="$*" COMP_POINT=${{#COMP_LINE}} COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        COMP_POINT=${{#COMP_LINE}}; COMPREPLY=(); _delayedq; printf '%s\\n' "${{COMPREPLY[@]}}"
    }}
    complete_it {python} list --queue ma
    complete_it {python} list --worker web-1:47
    complete_it ls -l de
    complete -p manage.py
    """
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "mail", "'mail slow'", "4711", "4712", "", "complete -o bashdefault -o default -F _delayedq manage.py",
    ]  # fmt: skip
