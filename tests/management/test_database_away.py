"""`manage.py delayedq` when the database does not answer, which is when some of it is asked."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

NOBODY = {"DATABASE_URL": "postgres://nobody@127.0.0.1:1/nothing"}


def asked(environment, verb):
    command = [sys.executable, "-m", "django", "delayedq", *verb]
    return subprocess.run(command, env=environment | NOBODY, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (["health"], "FAILED: The database 'default' does not let a worker claim: "),
        (["doctor"], "Cure: Look at the server, the address in DATABASES, and the rights of its user."),
        (["explain", "7"], "CommandError: The database 'default' does not answer: "),
        (["check-pending"], "CommandError: The database 'default' does not answer: "),
        (["workers-needed", "--target-latency", "30s"], "CommandError: The database 'default' does not answer: "),
        (["cron", "list"], "CommandError: The database 'default' does not answer: "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_it_says_so_in_a_sentence(alias, environment, verb, said):
    done = asked(environment, verb)
    assert done.returncode == 1
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_server_that_accepts_and_never_answers_fails_a_probe_in_time(alias, environment):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgres://nobody@127.0.0.1:{server.getsockname()[1]}/nothing"
        command = [sys.executable, "-m", "django", "delayedq", "health", "--timeout", "1s"]
        environment |= {"DATABASE_URL": url}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "FAILED: The database 'default' did not answer within 1 s.\n")


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "verb", [["doctor", "--json"], ["workers-needed", "--target-latency", "30s", "--json"]], ids=str
)
def test_it_is_given_up_by_other_verbs_too(alias, environment, verb):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgres://nobody@127.0.0.1:{server.getsockname()[1]}/nothing"
        command = [sys.executable, "-m", "django", "delayedq", *verb]
        environment |= {"DATABASE_URL": url}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, '"condition": "database"' in done.stdout) == (1, True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "verb", [["doctor"], ["check-pending"], ["workers-needed", "--target-latency", "30s"]], ids=" ".join
)
def test_programs_are_told_in_json(alias, environment, verb):
    done = asked(environment, [*verb, "--json"])
    found = json.loads(done.stdout)
    told = found[0] if isinstance(found, list) else found

    assert (done.returncode, told["database"], told["condition"]) == (1, "default", "database")
    assert "Traceback" not in done.stderr
