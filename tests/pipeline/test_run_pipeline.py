"""`run_pipeline` as a process and as a task, and the address that it gives to executors."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from django.core import mail as mailbox
from django.core.management import call_command
from django.db import connections, transaction

from delayedq.core.lifecycle import FinalOutcome
from delayedq.exceptions import InvalidOption, PipelineError, Snooze
from delayedq.models import Message
from delayedq.pipeline import address as addressing
from delayedq.pipeline import tasks
from delayedq.pipeline.lake.table import LakeTable
from delayedq.pipeline.models import ArchiveBatch, StepRun
from delayedq.pipeline.scheduled import key_of
from delayedq.pipeline.spark.connecting import connect
from delayedq.pipeline.temporary import temporary_directory
from delayedq.store.protocol import ClaimRequest, Finish, Lane
from delayedq.tasks import current_attempt
from tests.pipeline import killing
from tests.pipeline.archives import END_CONNECTIONS
from tests.pipeline.given import DAY, NOW, history
from tests.pipeline.killing import JAVA

PIPELINE = Path(__file__).parents[2] / "docs" / "pipeline.md"
ONE_DATABASE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


def test_the_address_leads_to_the_database_while_it_is_needed_and_only_us(alias):
    with addressing.address_of(alias) as address:
        path = Path(address.reference.removeprefix("file:"))
        assert path.stat().st_mode & 0o077 == 0
        with connect(address) as connection:
            assert connection.rows("SELECT count(*) FROM delayedq_message") == [(0,)]
    assert not path.exists()


@pytest.mark.parametrize(
    ("vendor", "parameters", "url"),
    [
        (
            "postgresql",
            {"dbname": "a b", "user": "me@x", "password": "p/:?", "host": "/run/pg", "port": 5433, "context": None},
            "postgresql://me%40x:p%2F%3A%3F@/a%20b?host=%2Frun%2Fpg&port=5433",
        ),
        ("postgresql", {"service": "queue"}, "postgresql:///?service=queue"),
        (
            "mysql",
            {"database": "q", "user": "me", "password": "p@", "host": "db", "port": 3307, "charset": "utf8mb4"},
            "mysql://me:p%40@db:3307/q?",
        ),
        (
            "mysql",
            {"database": "q", "user": "me", "unix_socket": "/run/m"},
            "mysql://me@localhost/q?unix_socket=%2Frun%2Fm",
        ),
    ],
    ids=["postgresql", "service", "mysql", "socket"],
)
def test_django_s_settings_as_a_url(monkeypatch, vendor, parameters, url):
    connection = SimpleNamespace(vendor=vendor, get_connection_params=lambda: parameters)
    monkeypatch.setattr(addressing, "connections", {"default": connection})

    assert addressing.url_of("default") == url


def test_ssl_options_that_fit_into_no_url_are_said(monkeypatch):
    connection = SimpleNamespace(vendor="mysql", get_connection_params=lambda: {"ssl": {"ca": "x"}})
    monkeypatch.setattr(addressing, "connections", {"default": connection})

    with pytest.raises(InvalidOption, match="--address"):
        addressing.url_of("default")


@ONE_DATABASE
def test_archive_and_report_tell_what_they_do(spark, store, tmp_path, capsys):
    history(20)
    lake = ("--lake", str(tmp_path / "lake"))

    call_command("run_pipeline", "archive", *lake, "--older-than", "0s")
    assert "20 messages are in the lake, 20 rows deleted" in capsys.readouterr().out
    call_command("run_pipeline", "archive", *lake)
    assert "Nothing ended before" in capsys.readouterr().out

    history(5, first=100, days=1)
    call_command("run_pipeline", "report", *lake, "--output", str(tmp_path / "report"))
    assert "report.html" in capsys.readouterr().out
    assert (tmp_path / "report" / "report.html").stat().st_size > 1000


@ONE_DATABASE
def test_without_activation_and_after_a_lake_that_was_not_made_to_the_end(java, environment, store, tmp_path):
    """As systemd and cron start it: the python3 of PATH is another one, which has no delayedq."""
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    path = os.pathsep.join([str(other.parent), str(Path(shutil.which("java")).parent), "/usr/bin", "/bin"])
    environment = {name: value for name, value in environment.items() if name not in {"PYSPARK_PYTHON", "VIRTUAL_ENV"}}
    lake = tmp_path / "lake"
    (lake / "about").mkdir(parents=True)
    history(3)
    command = [sys.executable, "-m", "django", "run_pipeline", "archive", "--older-than", "0s", "--lake", str(lake)]

    done = subprocess.run(
        command, env=environment | {"PATH": path}, capture_output=True, text=True, check=False, timeout=540
    )

    assert "3 messages are in the lake, 3 rows deleted" in done.stdout, done.stderr[-3000:]


# Steps as tasks


@pytest.fixture
def held(store):
    """As if a worker ran this test as a task. `lease_lost` may be set."""
    message = SimpleNamespace(id=7, lease_lost=False, progress=lambda *_, **__: None)
    token = current_attempt.set(message)
    yield message
    current_attempt.reset(token)


@ONE_DATABASE
def test_a_step_is_scheduled_once_until_it_has_ended(store):
    for _ in range(2):
        tasks.schedule_step(["archive"])
    for output in ("daily", "weekly", "daily"):
        tasks.schedule_step(["report", "--output", output])

    keys = sorted(Message.objects.values_list("key", flat=True))
    assert [key.partition(" ")[0] for key in keys] == ["archive", "report", "report"]
    assert set(Message.objects.values_list("kind", flat=True)) == {"delayedq.pipeline.tasks.run_step"}

    [archive, *_] = store.claim(ClaimRequest([Lane("default", 0)], 3, timedelta(minutes=1), "w"))
    assert tasks.schedule_step(["archive"]) == "ignored"
    store.settle([Finish(archive, FinalOutcome.SUCCEEDED, started=0.0, finished=0.0)], "w")
    assert tasks.schedule_step(["archive"]) == "created"


@ONE_DATABASE
def test_a_step_runs_as_a_process_and_returns_what_that_told(held, settings):
    settings.LANGUAGE_CODE = "de"  # overridden settings do not know their module
    for _ in range(2):
        assert "usage:" in tasks.run_step(["archive", "--help"])

    run = StepRun.objects.get()
    assert run.succeeded
    assert run.ended_at >= run.began_at


@ONE_DATABASE
def test_a_step_that_fails_says_why_and_is_in_the_books(held):
    with pytest.raises(PipelineError, match="invalid choice: 'archiv'"):
        tasks.run_step(["archiv"])

    run = StepRun.objects.get()
    assert (run.step, run.message_id, run.succeeded) == ("archiv", 7, False)
    assert run.ended_at >= run.began_at


@ONE_DATABASE
def test_a_step_whose_lease_was_lost_is_ended(held):
    held.lease_lost = True

    with pytest.raises(PipelineError, match="lease was lost"):
        tasks.run_step(["archive", "--help"])

    assert StepRun.objects.get().ended_at is None  # whoever has the lease writes it


@pytest.fixture
def meanwhile(held):
    """Calls what is appended to it, once, when a step has begun and has not ended."""
    calls = []

    class Message(SimpleNamespace):
        @property
        def lease_lost(self):
            while calls:
                calls.pop()()
            return False

    token = current_attempt.set(Message(id=7, progress=held.progress))
    yield calls
    current_attempt.reset(token)


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_database_that_ends_its_connections_while_a_step_runs_does_not_fail_it(meanwhile, alias):
    def end_connections():
        with addressing.address_of(alias) as address, connect(address) as other:
            other.rows(END_CONNECTIONS)

    meanwhile.append(end_connections)

    assert "usage:" in tasks.run_step(["archive", "--help"])
    assert not meanwhile
    assert StepRun.objects.get().succeeded


@ONE_DATABASE
def test_a_step_whose_end_can_not_be_recorded_has_succeeded_and_tells_so(meanwhile, alias, caplog):
    def rename(*names):
        with connections[alias].cursor() as cursor:
            cursor.execute("ALTER TABLE {} RENAME TO {}".format(*map(cursor.db.ops.quote_name, names)))

    names = (StepRun._meta.db_table, "elsewhere")
    meanwhile.append(lambda: rename(*names))

    try:
        assert "usage:" in tasks.run_step(["archive", "--help"])
    finally:
        rename(*reversed(names))
    assert "The step archive has succeeded, which could not be recorded." in caplog.text


#: As a worker runs a step: one that waits for a database does not end by itself.
WORKER = """
import sys
from types import SimpleNamespace

import django
django.setup()

from delayedq.pipeline import tasks
from delayedq.tasks import current_attempt

current_attempt.set(SimpleNamespace(id=7, lease_lost=False, progress=lambda *_, **__: None))
tasks.run_step(sys.argv[1:])
"""


BOOKS = ArchiveBatch._meta.db_table


@contextmanager
def locked(alias):
    """Who asks the books of the archive within the block waits."""
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute(f"LOCK TABLE {BOOKS} IN ACCESS EXCLUSIVE MODE")
        yield


def within_minutes(condition):
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_step_ends_with_its_worker_and_leaves_neither_a_process_nor_a_password(
    java, store, alias, environment, tmp_path, end
):
    """Killed is the worker; told to end is the step's own process."""
    LakeTable(str(tmp_path / "lake")).create()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-c", WORKER, "archive", "--lake", str(tmp_path / "lake")]
    with locked(alias), running(command, environment | {"TMPDIR": str(temporary)}) as worker:
        within_minutes(lambda: waits(alias))
        below = killing.below(worker.pid)
        assert any(JAVA in killing.command_of(pid) for pid in below)
        assert list(temporary.glob("delayedq-database-*/database-url"))

        [step] = (pid for pid in below if "run_pipeline" in killing.command_of(pid))
        os.kill(worker.pid if end == signal.SIGKILL else step, end)

        within_minutes(lambda: not any(map(killing.command_of, below)))
        assert not list(temporary.glob("delayedq-*"))


@contextmanager
def running(command, environment):
    """The process, with all that it starts, which is killed at the end."""
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def waits(alias):
    """Does somebody wait for the books?"""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE relation = %s::regclass AND NOT granted", [BOOKS])
        return cursor.fetchone()[0] > 0


@ONE_DATABASE
def test_an_archive_that_finds_another_one_at_work_waits_for_it_and_uses_no_attempt(
    java, held, store, environment, monkeypatch, tmp_path
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    now = store.now()
    lake = str(tmp_path / "lake")
    ArchiveBatch.objects.create(
        name="b1", number=1, lake=lake, cutoff=now, planned_at=now, leased_until=now + timedelta(hours=1)
    )

    with pytest.raises(Snooze):
        tasks.run_step(["archive", "--lake", lake])


def test_what_a_killed_process_has_left_is_deleted_by_the_next_and_what_others_use_is_not(tmp_path):
    killed, runs = ((subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=-1)) for _ in range(2))
    paths = [Path(process.stdout.readline().decode().strip()) for process in (killed, runs)]
    (paths[0] / "messages").mkdir()
    killed.kill()
    killed.communicate()
    assert [path.exists() for path in paths] == [True, True]

    with temporary_directory("held-", str(tmp_path)) as path:
        assert [one.exists() for one in paths] == [False, True]
        assert path.stat().st_mode & 0o077 == 0

    runs.kill()
    runs.communicate()
    assert list(tmp_path.glob("held-*")) == paths[1:]


def test_what_another_host_has_left_in_a_place_that_hosts_share_stays_for_a_week(tmp_path):
    """Its lock may not be seen here. What has no mark of ours is somebody's, and stays."""
    left, theirs, copied = (tmp_path / f"held-{name}" for name in ("there", "theirs", "copied"))
    for path, mark in ((left, f"delayedq {socket.gethostname()} of another boot"), (theirs, ""), (copied, None)):
        path.mkdir()
        if mark is not None:
            (path / ".lock").write_text(mark)
    (tmp_path / "held-linked").symlink_to(theirs)
    for days in (0, 8):
        at = time.time() - days * 86_400
        for path in (left, theirs):
            if path.exists():
                os.utime(path / ".lock", (at, at))
        with temporary_directory("held-", str(tmp_path)):
            assert (left.exists(), theirs.exists(), copied.exists()) == (not days, True, True)
    assert (tmp_path / "held-linked").is_symlink()
    assert list(copied.iterdir()) == []


HOLDS = """
import sys, time
from delayedq.pipeline.temporary import temporary_directory

with temporary_directory("held-", sys.argv[1]) as path:
    print(path, flush=True)
    time.sleep(600)
"""


@ONE_DATABASE
def test_reports_with_other_arguments_have_records_of_their_own(held):
    assert "usage:" in tasks.run_step(["report", "--output", "daily", "--help"])
    with pytest.raises(PipelineError):
        tasks.run_step(["report", "--output", "weekly", "--share", "2"])
    assert "usage:" in tasks.run_step(["report", "--output", "daily", "--help"])

    assert sorted(StepRun.objects.values_list("succeeded", flat=True)) == [False, True]
    assert StepRun.objects.get(succeeded=False).step == key_of(["report", "--output", "weekly", "--share", "2"])
    StepRun.objects.filter(succeeded=True).update(began_at=NOW - 1000 * DAY)
    tasks.run_step(["archive", "--help"])
    assert min(StepRun.objects.values_list("step", "succeeded")) == ("archive", True)
    assert StepRun.objects.count() == 2  # that of the daily one was too old


def test_the_key_of_a_step_fits_its_column():
    for arguments in (["report", "--output", "x" * 1000], ["x" * 1000], ["archive", "--lake", "x" * 1000]):
        assert len(key_of(arguments)) <= 200
    assert key_of(["archive", "--batch-rows", "5"]) == "archive"
    assert key_of(["x" * 300]) != key_of(["x" * 301])
    assert key_of(["load", "a.csv"]) != key_of(["load", "b.csv"])  # both are to run


@ONE_DATABASE
def test_the_progress_of_a_step_is_what_its_process_told_last(held, tmp_path):
    reports = []

    def progress(done, total, note):
        reports.append((done, total, note))
        process.communicate(b"go on")

    held.progress = progress
    for line, reported in (("Writing ...", (2, None)), ("Reading back, step 2 of 6 ...", (1, 6))):
        with (tmp_path / "told").open("wb+") as told:
            command = [sys.executable, "-uc", f"print('{line}\\n' + 'x' * 300); input()"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=told)
            assert tasks._wait(process, told.fileno()) == 0
        assert reports[-1] == (*reported, "x" * 200)


MAILED = re.search(r"^```python\n# shop/tasks.py\n(.*?)^```", PIPELINE.read_text(), re.MULTILINE | re.DOTALL)


@ONE_DATABASE
def test_the_report_by_mail_as_the_guide_has_it(java, held, environment, settings, monkeypatch):
    settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
    history(5)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    guide = ModuleType("shop.mailed")
    monkeypatch.setitem(sys.modules, guide.__name__, guide)
    exec(MAILED[1], guide.__dict__)

    guide.mail_report.func(["ops@example.com"])

    (mail,) = mailbox.outbox
    ((name, page, kind),) = mail.attachments
    assert (mail.to, name, kind) == (["ops@example.com"], "report.html", "text/html")
    assert "tests.app.tasks.remind" in page
    assert StepRun.objects.get().succeeded
