"""`manage.py check` finds what a deployment gets wrong."""

from __future__ import annotations

import importlib
import sys
from datetime import timedelta

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections

from delayedq.compat import TASKS_LOGGER
from delayedq.store import store_for
from delayedq.tasks import registered
from tests.router import ChosenDatabase

WAL = "PRAGMA journal_mode=WAL"


def messages(databases=None):
    return [message for message in run_checks(databases=databases) if message.id.startswith("delayedq.")]


def found(databases=None):
    """The ids of ours."""
    return sorted(message.id for message in messages(databases))


@pytest.fixture
def sqlite(request, monkeypatch, tmp_path, django_db_blocker):
    """A new SQLite database with the OPTIONS of the test, and the queue in it."""
    original = connections["default"].settings_dict
    changed = {**original, "NAME": tmp_path / "new.sqlite3", "OPTIONS": request.param}
    monkeypatch.setitem(connections.settings, "new", changed)
    monkeypatch.setattr(ChosenDatabase, "alias", "new")
    with django_db_blocker.unblock():
        yield
        connections["new"].close()
    del connections["new"]
    store_for.cache_clear()


def options(value):
    return pytest.mark.parametrize("sqlite", [value], indirect=True, ids=["options"])


def test_a_sound_project_has_nothing_to_mend(alias):
    assert found() == []
    assert found([alias]) == []
    call_command("check", databases=[alias], fail_level="WARNING")


@pytest.mark.parametrize("wrong", [{"LEASES": timedelta(1)}, {"LEASE": timedelta()}, []], ids=repr)
def test_wrong_settings_are_e001(settings, wrong):
    settings.DELAYEDQ = wrong
    assert found() == ["delayedq.E001"]
    with pytest.raises(SystemCheckError, match="DELAYEDQ"):
        call_command("check")


@pytest.mark.parametrize("name", ["REDACT", "METADATA_FROM", "AROUND_ATTEMPTS"])
def test_what_can_not_be_imported_is_e008_also_where_schedules_need_it(settings, name):
    cron = {"each": {"task": "tests.app.tasks.mark", "every": timedelta(1)}}
    settings.DELAYEDQ = {name: "nowhere.at_all" if name == "REDACT" else ["nowhere.at_all"], "CRON": cron}
    assert found() == ["delayedq.E008"]


def test_naive_times_are_e002(settings):
    settings.USE_TZ = False
    assert found() == ["delayedq.E002"]


def test_all_findings_are_told_at_once(settings):
    settings.DELAYEDQ = {"LEASE": 0}
    settings.USE_TZ = False
    assert found() == ["delayedq.E001", "delayedq.E002"]


def test_a_database_that_commits_nothing_by_itself_is_e011(alias, monkeypatch):
    assert found() == []
    monkeypatch.setitem(connections[alias].settings_dict, "AUTOCOMMIT", False)
    assert found() == ["delayedq.E011"]


@pytest.fixture
def oracle(monkeypatch):
    store_for.cache_clear()
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    yield
    store_for.cache_clear()


def test_a_database_without_a_store_is_e003(oracle, django_db_setup):
    (message,) = messages()
    assert message.id == "delayedq.E003"
    assert message.msg == "DATABASES['default']: delayedq has no store for oracle."


@options({"init_command": WAL})
def test_sqlite_without_immediate_transactions_is_w001(sqlite):
    assert found() == ["delayedq.W001"]
    assert found(["new"]) == ["delayedq.W001"]


@options({"transaction_mode": "IMMEDIATE"})
def test_sqlite_without_wal_is_w002_and_only_asked_for_with_the_database(sqlite):
    assert found() == []
    assert found(["default"]) == []
    assert found(["new"]) == ["delayedq.W002"]


@options({})
def test_each_finding_is_told_once_with_what_to_do(sqlite):
    assert found(["new"]) == ["delayedq.W001", "delayedq.W002"]
    assert all("IMMEDIATE" in message.hint and "WAL" in message.hint for message in messages(["new"]))


@options({"transaction_mode": "IMMEDIATE", "init_command": WAL})
def test_sqlite_set_up_as_the_hint_says_has_nothing_to_mend(sqlite):
    assert found(["new"]) == []


@pytest.fixture
def mariadb_options(alias, monkeypatch):
    """The OPTIONS of MariaDB, for a test to change."""
    options = dict(connections[alias].settings_dict["OPTIONS"])
    monkeypatch.setitem(connections[alias].settings_dict, "OPTIONS", options)
    return options


ON_MARIADB = pytest.mark.parametrize("alias", ["mariadb"], indirect=True)


@ON_MARIADB
@pytest.mark.parametrize("level", ["repeatable read", "serializable", None])
def test_another_isolation_level_is_e007(alias, mariadb_options, level):
    mariadb_options["isolation_level"] = level
    assert found() == ["delayedq.E007"]


@ON_MARIADB
def test_the_right_isolation_level_may_be_written_out(alias, mariadb_options):
    mariadb_options["isolation_level"] = "READ COMMITTED"
    assert found() == []


@ON_MARIADB
def test_payloads_that_may_exceed_a_packet_are_w004_and_only_asked_for_with_the_database(alias, settings):
    settings.DELAYEDQ = {"MAX_PAYLOAD_BYTES": 8_400_000}
    assert found() == []
    assert found([alias]) == ["delayedq.W004"]


@pytest.mark.parametrize(
    ("tasks", "ids"),
    [
        ({}, ["delayedq.W010"]),
        ({"default": {"BACKEND": f"{TASKS_LOGGER}.backends.immediate.ImmediateBackend"}}, ["delayedq.W010"]),
        ({"default": {"BACKEND": "delayedq.backend.DelayedQBackend"}}, []),
        ({"default": {"BACKEND": "delayedq.testing.DummyBackend"}}, []),
        ({"default": {"BACKEND": f"{TASKS_LOGGER}.backends.dummy.DummyBackend"}}, ["delayedq.W010"]),
    ],
    ids=["empty", "missing", "ours", "testing", "others"],
)
def test_a_project_whose_tasks_go_elsewhere_is_w010(settings, tasks, ids):
    """Where TASKS is missing, the framework has its immediate backend."""
    settings.TASKS = tasks
    assert [message.id for message in messages() if message.id == "delayedq.W010"] == ids


def test_a_module_with_tasks_that_nothing_imports_is_w014(settings, tmp_path, monkeypatch):
    sources = {
        "__init__.py": "",
        "tasks.py": "from delayedq import task\n\n\n@task\ndef known(): ...\n",
        "services.py": "from delayedq import task\n\n\n@task(priority=5)\ndef unknown(): ...\n",
        "other.py": "from celery import task\n\n\n@task\ndef of_celery(): ...\n",
        "tests/__init__.py": "",
        "tests/given.py": "from delayedq import task\n\n\n@task\ndef of_a_test(): ...\n",
        "deep/__init__.py": "",
        "deep/jobs.py": "import delayedq\n\n\n@delayedq.task\ndef unknown_too(): ...\n",
    }
    for name, text in sources.items():
        path = tmp_path / "w014_shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "w014_shop"]
    try:
        told = messages()
        assert [(one.id, one.msg.partition(" ")[0]) for one in told] == [
            ("delayedq.W014", "w014_shop.deep.jobs"),
            ("delayedq.W014", "w014_shop.services"),
        ]
        importlib.import_module("w014_shop.services")  # as an AppConfig.ready() may do
        assert [one.msg.partition(" ")[0] for one in messages()] == ["w014_shop.deep.jobs"]
    finally:
        for path in [path for path in registered if path.startswith("w014_shop")]:
            del registered[path]
        for name in [name for name in sys.modules if name.startswith("w014_shop")]:
            del sys.modules[name]
