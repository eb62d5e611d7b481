"""Several backends beside each other, the OPTIONS of one, and what `manage.py check` says of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.core.checks import run_checks
from django.db import connections

from delayedq import task as our_task
from delayedq.backend import somewhere
from delayedq.compat import TASKS_LOGGER, default_task_backend, task_backends
from delayedq.compat import task as django_task
from delayedq.models import FinishedMessage, Message
from delayedq.store import store_for
from delayedq.tasks import registered
from tests.app import tasks

BACKEND = "delayedq.backend.DelayedQBackend"
LATER = datetime(2040, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)


@pytest.fixture
def backends(settings, postgresql, django_db_setup, django_db_blocker):
    """One backend on SQLite and one on PostgreSQL."""
    settings.TASKS = {
        "default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"DATABASE": "default"}},
        "fast": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"DATABASE": "postgresql"}},
    }
    with django_db_blocker.unblock():
        yield
        for alias in ("default", "postgresql"):
            Message.objects.using(alias).all().delete()
            FinishedMessage.objects.using(alias).all().delete()


def test_two_backends_have_two_databases(backends):
    here, there = tasks.echo.enqueue(1), tasks.echo.using(backend="fast").enqueue(2)
    tasks.echo.using(backend="fast").schedule_at(LATER, 3, key="a")
    tasks.echo.using(backend="fast").enqueue_many([((4,), {})])

    assert (here.backend, there.backend) == ("default", "fast")
    assert Message.objects.using("default").count() == 1
    assert Message.objects.using("postgresql").count() == 3
    assert here == task_backends["default"].get_result(here.id)
    found = task_backends["fast"].get_result(there.id)
    assert found == there
    assert (found.backend, found.task.backend) == ("fast", "fast")
    assert tasks.echo.using(backend="fast").unschedule(key="a")
    assert not tasks.echo.unschedule(key="a")


def add(a, b):
    return a + b


def test_options_are_the_defaults_of_tasks_that_do_not_say(settings):
    minute = timedelta(minutes=1)
    options = {"MAX_ATTEMPTS": 2, "BACKOFF": minute, "TIMEOUT": 2 * minute}
    settings.TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
    try:
        made = django_task(add)
        assert (made.max_attempts, made.backoff, made.timeout) == (2, minute, 2 * minute)
        made = our_task(max_attempts=7, backoff=2 * minute, timeout=minute)(add)
        assert (made.max_attempts, made.backoff, made.timeout) == (7, 2 * minute, minute)
    finally:
        registered.pop("tests.test_backend_options.add", None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"DATABASES": "x"}, r"\['OPTIONS'\]\['DATABASES'\] is unknown; known are DATABASE, MAX_ATTEMPTS"),
        ({"DATABASE": "none"}, r"DATABASE.* must be a key of DATABASES \(default.*\), not 'none'"),
        ({"MAX_ATTEMPTS": 0}, "MAX_ATTEMPTS.* must be a number from 1 to 32,000, not 0"),
        ({"BACKOFF": 5}, "BACKOFF.* a timedelta"),
        ({"TIMEOUT": 5}, "TIMEOUT.* a timedelta over zero, not 5"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_wrong_options_are_a_message_of_check(settings, options, problem):
    settings.TASKS = {"second": {"BACKEND": BACKEND, "OPTIONS": options}, "default": {"BACKEND": BACKEND}}
    (message,) = [message for message in run_checks() if message.id == "delayedq.E005"]
    assert message.msg.startswith("TASKS['second']")
    assert re.search(problem, message.msg)


@pytest.mark.parametrize("given", [None, [], "MAX_ATTEMPTS", 3], ids=repr)
def test_options_that_are_no_dict_are_a_message_of_check(settings, given):
    settings.TASKS = {"second": {"BACKEND": BACKEND, "OPTIONS": given}, "default": {"BACKEND": BACKEND}}
    (message,) = [message for message in run_checks() if message.id == "delayedq.E005"]
    assert message.msg.startswith(f"TASKS['second']['OPTIONS'] must be a dict of options, not {given!r}. Leave it out")


@pytest.mark.parametrize("given", [None, "mail", 3, [None], [["mail"]]], ids=repr)
def test_queues_that_are_no_list_of_names_are_a_message_of_check_and_tasks_can_be_imported(settings, given):
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": given}}
    (message,) = [message for message in run_checks() if message.id == "delayedq.E005"]
    assert message.msg.startswith(f"TASKS['default']['QUEUES'] is a list of names, not {given!r}. Name them as in")
    try:
        assert our_task(queue_name="mail")(add).queue_name == "mail"
    finally:
        registered.pop("tests.test_backend_options.add", None)


def test_a_backend_without_its_app_is_a_message_of_check(settings):
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if not app.startswith("delayedq")]
    (message,) = default_task_backend.check()
    assert (message.id, message.hint) == ("delayedq.E006", 'Add "delayedq" to INSTALLED_APPS and run migrate.')


WITHOUT_APP = f"""
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=[], TASKS={{"default": {{"BACKEND": "{BACKEND}"}}}})
django.setup()
from delayedq import task
from django.core.checks import run_checks
print([message.id for message in run_checks()])
"""


def test_a_project_that_has_forgotten_the_app_is_told():
    """Its code imports delayedq; nothing that this imports needs the app."""
    root = Path(__file__).parent.parent
    ended = subprocess.run([sys.executable, "-c", WITHOUT_APP], cwd=root, capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines() == ["['delayedq.E006']"], ended.stderr


PROJECT = {
    "urls.py": "from jobs import remind\n\nurlpatterns = []\n",
    "jobs.py": "from delayedq import task\n\n\n@task\ndef remind(): ...\n",
    "manage.py": f"""
import sys
from django.conf import settings
from django.core.management import execute_from_command_line
settings.configure(
    INSTALLED_APPS=[],
    ROOT_URLCONF="urls",
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}},
    TASKS={{"default": {{"BACKEND": "{BACKEND}"}}}},
)
execute_from_command_line(sys.argv)
""",
}


@pytest.mark.parametrize("command", ["check", "migrate"])
def test_a_project_whose_urls_import_its_tasks_is_told_too(tmp_path, command):
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    root = str(Path(__file__).parent.parent)
    ended = subprocess.run(
        [sys.executable, "manage.py", command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr.splitlines()[-1].endswith(
        '"delayedq" is not in INSTALLED_APPS. Add it, and run manage.py migrate.'
    )


@pytest.mark.parametrize("options", [{"DATABASE": "postgresql"}, {}], ids=["named", "routed"])
def test_the_databases_of_all_backends_are_checked(backends, settings, monkeypatch, options):
    """And no database that none of them uses."""
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}}
    for alias, vendor in (("default", "oracle"), ("postgresql", "db2")):
        monkeypatch.setattr(connections[alias], "vendor", vendor)
    store_for.cache_clear()
    try:
        told = [message.msg for message in run_checks() if message.id == "delayedq.E003"]
    finally:
        monkeypatch.undo()
        store_for.cache_clear()
    alias, vendor = ("postgresql", "db2") if options else ("default", "oracle")
    assert told == [f"DATABASES[{alias!r}]: delayedq has no store for {vendor}."]


def test_a_queue_apart_from_the_models_of_its_tasks_is_a_message_of_check(backends, settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"DATABASE": "postgresql"}}}
    warned = [message for message in run_checks() if message.id == "delayedq.W007"]
    assert any("'tests_app' are stored in 'postgresql', its models in 'default'" in message.msg for message in warned)


OURS = {"BACKEND": BACKEND}
DUMMY = {"BACKEND": f"{TASKS_LOGGER}.backends.dummy.DummyBackend"}


@pytest.mark.parametrize(
    ("tasks", "place"),
    [
        ({"default": OURS}, {"backend": "default", "queue_name": "default"}),
        ({"default": OURS | {"QUEUES": ["a", "default"]}}, {"backend": "default", "queue_name": "default"}),
        ({"default": DUMMY, "desk": OURS | {"QUEUES": ["b", "a"]}}, {"backend": "desk", "queue_name": "a"}),
        ({"default": {"BACKEND": "gone.Backend"}, "desk": OURS}, {"backend": "desk", "queue_name": "default"}),
        ({"default": DUMMY}, {}),
    ],
)
def test_tasks_of_delayedq_go_where_there_is_a_backend_and_a_queue(settings, tasks, place):
    settings.TASKS = tasks
    assert somewhere() == place


@pytest.mark.parametrize("app", ["delayedq.pipeline", "delayedq.desk"])
def test_an_app_of_ours_needs_no_queue_called_default(app, tmp_path):
    (tmp_path / "project.py").write_text(f"""
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "delayedq", "{app}"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}}
TASKS = {{"default": {{"BACKEND": "{BACKEND}", "QUEUES": ["mail"]}}}}
""")
    program = f"import django; django.setup(); import {app}.tasks"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": f"{Path(__file__).parents[1]}:{tmp_path}", "DJANGO_SETTINGS_MODULE": "project"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
