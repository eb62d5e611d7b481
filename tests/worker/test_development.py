"""Developing: workers that start anew when code changes, a line per task, the site beside its workers."""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from django.db import connections

from delayedq import shell
from delayedq.core.lifecycle import Decision, FinalOutcome
from delayedq.models import FinishedMessage, Worker
from delayedq.worker.logs import TaskLines, wanted_by_default
from delayedq.worker.sessions import keep_no_query_log
from tests.app import chores, tasks
from tests.test_deploy import fetched
from tests.worker.conftest import ROOT, eventually, marked

pytestmark = pytest.mark.slow

SQLITE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


def read_until(pipe, text):
    """What a process that goes on has printed, with this text."""
    printed = b""

    def is_there():
        nonlocal printed
        if select.select([pipe], [], [], 0)[0]:
            printed += os.read(pipe, 65_536)
        return text.encode() in printed

    eventually(is_there, timeout=20)
    return printed.decode()


@SQLITE
def test_workers_start_anew_when_a_module_changes(workers):
    one = workers("--reload", "--no-cron", "--threads", "1", PYTHONUNBUFFERED="")
    before = eventually(lambda: set(Worker.objects.values_list("pid", flat=True)))
    chores.nothing.enqueue(1)
    eventually(FinishedMessage.objects.exists)
    (ROOT / "tests" / "app" / "chores.py").touch()
    said = read_until(one.process.stdout.fileno(), "chores.py has changed: the workers start anew.")
    eventually(lambda: Worker.objects.exists() and before.isdisjoint(Worker.objects.values_list("pid", flat=True)))
    chores.nothing.enqueue(2)
    eventually(lambda: FinishedMessage.objects.count() == 2)
    one.send(signal.SIGTERM)
    code, output = one.finish()

    assert code == 0
    lines = re.findall(
        r"^\d\d:\d\d:\d\d succeeded tests\.app\.chores\.nothing #\d+ \d+ ms$", said + output, re.MULTILINE
    )
    assert len(lines) == 2


@SQLITE
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_from_the_terminal_lets_running_tasks_finish(workers, number):
    """The terminal sends it to the whole group; workers that start anew hear of it once."""
    chores.nap.enqueue("long", 3.0)
    one = workers("--reload", "--no-cron", "--threads", "1")
    eventually(lambda: marked("long began"))
    one.send_all(number)

    assert one.finish()[0] == 0
    assert marked("long ended")


@SQLITE
def test_workers_that_start_anew_end_with_the_process_that_is_killed_and_finish_what_runs(workers):
    chores.nap.enqueue("long", 3.0)
    one = workers("--reload", "--no-cron", "--threads", "1")
    eventually(lambda: marked("long began"))
    group = os.getpgid(eventually(Worker.objects.values_list("pid", flat=True).first))
    one.send(signal.SIGKILL)
    try:
        one.finish()  # all that write to its pipe have ended
    except subprocess.TimeoutExpired:
        os.killpg(group, signal.SIGKILL)
        raise
    assert marked("long ended")


@SQLITE
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_the_site_and_its_workers_run_together(store, environment, number):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    words = [sys.executable, "-m", "django", "delayedq", "dev", f"127.0.0.1:{port}", "--workers=--threads 1 --no-cron"]
    one = subprocess.Popen(
        words,
        cwd=ROOT,
        env={**environment, "DJANGO_SETTINGS_MODULE": "example_project.settings"},
        start_new_session=True,
    )
    try:
        eventually(lambda: fetched(f"http://127.0.0.1:{port}/admin/login/") == 200)
        eventually(Worker.objects.exists)
        one.send_signal(number)
        one.wait(timeout=60)
    finally:
        if one.poll() is None:
            os.killpg(one.pid, signal.SIGKILL)
    eventually(lambda: fetched(f"http://127.0.0.1:{port}/admin/login/") is None)


@pytest.mark.parametrize(
    ("decided", "error", "attempt", "line"),
    [
        (None, None, 1, "succeeded a.task UA1 3 ms"),
        (
            Decision(FinalOutcome.FAILED),
            ValueError("the secret"),
            8,
            "failed    a.task UA1 3 ms, attempt 8 of 8: ValueError",
        ),
        (Decision(None, delay=4.2), TimeoutError(), 1, "in 4.2 s  a.task UA1 3 ms: TimeoutError"),
        (Decision(None), None, 1, "later     a.task UA1 3 ms"),
    ],
)
def test_each_attempt_is_one_line_without_its_secrets(decided, error, attempt, line, capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdout", open(1, "w", closefd=False))  # noqa: SIM115 - with a descriptor
    message = SimpleNamespace(kind="a.task", key="UA1", id=7, attempt=attempt, max_attempts=8)
    result = SimpleNamespace(attempt=message, started=1.0, finished=1.003, error=error)
    logger = logging.getLogger("django.tasks")
    before = logger.filters[:]
    try:
        TaskLines(wanted=True).tell([(result, decided)])
    finally:
        logger.filters[:] = before

    assert capfd.readouterr().out[9:] == f"{line}\n"


def test_a_key_does_not_reach_the_terminal_as_it_is(capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdout", open(1, "w", closefd=False))  # noqa: SIM115 - with a descriptor
    message = SimpleNamespace(kind="a.task", key="\x1b[2Jred\n\u202e", id=7, attempt=1, max_attempts=8)
    lines = TaskLines(wanted=False)
    lines._wanted = True
    lines.tell([(SimpleNamespace(attempt=message, started=1.0, finished=1.003, error=None), None)])

    assert capfd.readouterr().out[9:] == "succeeded a.task \\x1b[2Jred\\n\\u202e 3 ms\n"


def test_a_key_that_the_terminal_can_not_show_is_escaped(tmp_path, monkeypatch):
    """It ended the process: `PYTHONIOENCODING=ascii`, or the locale C without the UTF-8 mode of Python."""
    message = SimpleNamespace(kind="a.task", key="Ærø", id=7, attempt=1, max_attempts=8)
    lines = TaskLines(wanted=False)
    lines._wanted = True
    with (tmp_path / "terminal").open("w+", encoding="ascii") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        lines.tell([(SimpleNamespace(attempt=message, started=1.0, finished=1.003, error=None), None)])
        terminal.seek(0)
        assert terminal.read()[9:] == "succeeded a.task \\xc6r\\xf8 3 ms\n"


@pytest.mark.parametrize(
    ("debug", "own", "wanted"), [(True, {}, True), (False, {}, False), (True, {"version": 1}, False)]
)
def test_lines_are_written_by_default_where_django_would_write_two(debug, own, wanted, settings):
    settings.DEBUG, settings.LOGGING = debug, own

    assert wanted_by_default() is wanted


def test_threads_of_ours_keep_no_query_log(store, settings):
    settings.DEBUG = True
    logged = []

    def work(*, ours):
        if ours:
            keep_no_query_log(store.alias)
        store.lanes()
        logged.append(len(connections[store.alias].queries_log))
        connections[store.alias].close()

    for ours in (True, False):
        thread = threading.Thread(target=work, kwargs={"ours": ours})
        thread.start()
        thread.join()

    assert logged[0] == 0 < logged[1]


def test_the_shell_has_short_names(store, capsys):
    tasks.echo.enqueue("hello")
    tasks.fail.using(max_attempts=1).enqueue("broken")
    (first, second) = shell.due()
    shell.explain(first.pk)

    assert f"#{first.pk} {first.kind}" in capsys.readouterr().out
    assert shell.work() == 2
    assert [one.pk for one in shell.dead()] == [second.pk]
    assert {one.pk for one in shell.last()} == {first.pk, second.pk}
    shell.explain(first.pk)
    shell.explain("misspelt")
    ended, nothing = capsys.readouterr().out.splitlines()[1:]
    assert ended.startswith("  It succeeded ")
    assert nothing == "There is no live message with the id or key 'misspelt', and no ended one with that id."
