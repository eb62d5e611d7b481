"""`manage.py delayedq torture` as users run it: real fleets and producers, on each database."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections

from delayedq.models import CronSchedule, FinishedMessage, Message, Worker
from delayedq.torture.audit import KINDS
from tests.store.given import message
from tests.worker.conftest import ROOT

#: What kills its process is put off for 10 s each time, so a run takes half a minute more.
SECONDS = 15
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def torture(environment, alias, tmp_path):
    """Run the command in a process of its own; returns its exit code and what it printed."""

    def run(*flags, **variables):
        command = [sys.executable, "manage.py", "delayedq", "torture", "--folder", str(tmp_path), *flags]
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        connections["default"].close()  # MariaDB takes all sessions of one user for those of the run
        connections[alias].close()
        return ended.returncode, ended.stdout, ended.stderr

    return run


@pytest.mark.slow
def test_everything_holds_under_random_faults(torture):
    code, out, err = torture("--minutes", f"{SECONDS / 60}", "--rate", "300", "--json")
    assert code == 0, out + err
    report = json.loads(out)
    assert report["violations"] == []
    assert report["messages"] > SECONDS
    assert sum(report["faults"].values()) > 0
    assert not Message.objects.filter(kind__startswith=KINDS).exists()
    assert not FinishedMessage.objects.filter(kind__startswith=KINDS).exists()
    assert not CronSchedule.objects.filter(name__contains="torture", definition__isnull=False).exists()


@pytest.mark.slow
@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_limit_that_is_not_kept_is_found_and_what_shows_it_stays(torture):
    code, out, err = torture(
        "--minutes",
        "0.1",
        "--rate",
        "400",
        "--faults",
        "restart",
        DJANGO_SETTINGS_MODULE="tests.torture.broken_settings",
    )
    assert code == 1, out + err
    assert "Violated: limits hold: more than" in out
    assert "again: --minutes 0.1 --seed" in out
    assert FinishedMessage.objects.filter(kind__startswith=KINDS).exists()


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
class TestRefusals:
    def test_an_unknown_fault_is_refused_with_those_that_there_are(self, alias):
        with pytest.raises(CommandError, match=r"no fault 'flood' on this database; there are kill_worker, "):
            call_command("delayedq", "torture", "--faults", "kill_worker,flood")

    def test_other_workers_are_no_part_of_it(self, store):
        Worker.objects.create(
            name="web-1", host="h", pid=1, threads=1, lease=3, started_at=store.now(), seen_at=store.now()
        )
        with pytest.raises(CommandError, match=r"Workers run on this database \(web-1\): stop them"):
            call_command("delayedq", "torture")

    def test_what_an_earlier_run_has_left_is_told(self, store):
        store.offer_many([message(kind=f"{KINDS}plain")])
        with pytest.raises(CommandError, match="Messages of an earlier run are left"):
            call_command("delayedq", "torture")

    def test_a_queue_that_the_backend_does_not_have_is_told_with_the_cure(self, environment, tmp_path):
        settings = "tests.torture.narrow_settings"
        ended = subprocess.run(
            [sys.executable, "manage.py", "delayedq", "torture"],
            cwd=ROOT,
            env={**environment, "DJANGO_SETTINGS_MODULE": settings},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 1
        assert "add it to TASKS['default']['QUEUES']" in ended.stderr
        assert "Traceback" not in ended.stderr
