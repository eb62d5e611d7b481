"""`manage.py delayedq` when the database does not answer, which is when some of it is asked."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (["health"], "FAILED: The database 'default' does not let a worker claim: "),
        (["doctor"], "Cure: Look at the server, the address in DATABASES, and the rights of its user."),
        (["explain", "7"], "CommandError: The database 'default' does not answer: "),
        (["cron", "list"], "CommandError: The database 'default' does not answer: "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_it_says_so_in_a_sentence(alias, environment, verb, said):
    nobody = {"DATABASE_URL": "postgres://nobody@127.0.0.1:1/nothing"}
    command = [sys.executable, "-m", "django", "delayedq", *verb]
    done = subprocess.run(command, env=environment | nobody, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
