"""`manage.py delayedq doctor` and `check-pending`: each condition is created, and named with its cure."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connections

from delayedq.operations.doctor import check_pending, diagnose
from delayedq.store import worker_registry
from tests.admin.given import offer
from tests.app import tasks
from tests.store.given import message
from tests.store.test_worker_registry import worker

pytestmark = pytest.mark.usefixtures("no_statistics_of_other_tests")
ECHO = tasks.echo.module_path


def conditions(store):
    return [one.condition for one in diagnose(store)]


def execute(store, *statements):
    with connections[store.alias].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_nothing_is_wrong_with_a_new_database(store):
    assert diagnose(store) == []


def test_what_the_dashboard_says_is_said_with_a_command(store):
    offer(store, "due", seconds=-300, queue="mail", kind=ECHO)
    (no_worker,) = diagnose(store)
    assert (no_worker.condition, no_worker.cure) == ("no worker", "manage.py run_workers")

    worker_registry(store.alias).heartbeat([worker("w1", queues="other", problems="deaf listener")])
    assert conditions(store) == ["unserved queue", "worker"]


def test_pending_migrations(store):
    with connections[store.alias].cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'delayedq'")
    try:
        assert conditions(store)[0] == "migrations"
    finally:
        call_command("migrate", "delayedq", fake=True, database=store.alias, verbosity=0)


DEFINITIONS = {
    "sqlite": "SELECT sql FROM sqlite_master WHERE name = 'delayedq_dead'",
    "postgresql": "SELECT pg_get_indexdef('delayedq_dead'::regclass)",
}


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_a_missing_index(store):
    with connections[store.alias].cursor() as cursor:
        cursor.execute(DEFINITIONS[connections[store.alias].vendor])
        ((definition,),) = cursor.fetchall()
    execute(store, "DROP INDEX delayedq_dead")
    try:
        (lost,) = diagnose(store)
    finally:
        execute(store, definition)

    assert (lost.condition, "delayedq_dead" in lost.sentence) == ("missing index", True)


def test_a_table_that_is_gone(store):
    execute(store, "ALTER TABLE delayedq_message RENAME TO elsewhere")
    try:
        assert "database" in conditions(store)
    finally:
        execute(store, "ALTER TABLE elsewhere RENAME TO delayedq_message")


def test_a_check_that_fails_is_told_and_the_others_go_on(store):
    """As after an upgrade by hand, or with a table that the user may not read."""
    execute(store, "ALTER TABLE delayedq_cronsettings RENAME TO elsewhere")
    try:
        found = diagnose(store)
        code, text = said("doctor")
    finally:
        execute(store, "ALTER TABLE elsewhere RENAME TO delayedq_cronsettings")

    unchecked = found[-1]
    assert ({one.condition for one in found}, code) == ({"unchecked"}, 1)
    assert unchecked.sentence.startswith("This could not be checked: schedules. The answer was: ")
    assert "Cure: Look at the rights" in text


def test_live_messages_of_unknown_tasks_and_not_those_of_bare_queues(store):
    offer(store, "a", seconds=3_600, kind="gone.task")
    offer(store, "b", seconds=3_600, kind="gone.task")
    offer(store, "c", seconds=3_600, queue="contacts|json", kind="contacts|json")
    offer(store, "d", seconds=3_600, kind=ECHO)
    (unknown,) = diagnose(store)

    assert unknown.condition == "unknown task"
    assert unknown.sentence == "At least 2 live messages are of gone.task, a task that is unknown here."
    assert "aliases=['gone.task']" in unknown.cure


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_a_claim_that_does_not_go_by_its_index(store):
    given = [message(scheduled_at=store.now() + timedelta(days=1), kind=ECHO, payload='"' + "x" * 500 + '"')] * 2_000
    store.offer_many(given)
    assert diagnose(store) == []

    connection = connections[store.alias]
    with connection.cursor() as cursor:
        cursor.execute(DEFINITIONS[connection.vendor].replace("delayedq_dead", "delayedq_due"))
        ((definition,),) = cursor.fetchall()
    execute(store, "DROP INDEX delayedq_due")
    try:
        missing, plan = diagnose(store)
    finally:
        execute(store, definition)

    assert (missing.condition, plan.condition) == ("missing index", "plan of the claim")
    assert "delayedq_message" in plan.sentence
    assert "ANALYZE" in plan.cure


# check-pending


def test_messages_that_this_version_can_run(store):
    offer(store, "a", kind=ECHO, payload='{"args": [1]}')

    assert check_pending(store) == (1, [])


def test_messages_of_unknown_tasks_and_arguments_that_do_not_fit(store):
    offer(store, "a", kind="gone.task", payload='{"args": [1]}')
    offer(store, "b", kind="gone.task", payload='{"args": [2]}')
    offer(store, "c", kind=tasks.report.module_path, payload='{"args": [1, 2]}')
    checked, found = check_pending(store)

    assert checked == 3
    assert {(one.kind, one.number) for one in found} == {("gone.task", 2), (tasks.report.module_path, 1)}


def said(*arguments):
    out = StringIO()
    try:
        call_command("delayedq", *arguments, stdout=out)
    except SystemExit as ended:
        return ended.code, out.getvalue()
    return 0, out.getvalue()


def test_the_commands_have_an_exit_code_and_json(store):
    assert said("doctor") == (0, "Nothing is wrong.\n")
    assert said("check-pending") == (0, "This version can run all 0 messages that wait.\n")
    offer(store, "a", kind="gone.task", seconds=-300)

    code, text = said("doctor", "--json")
    assert (code, [one["condition"] for one in json.loads(text)]) == (1, ["no worker", "unknown task"])
    code, text = said("check-pending", "--json")
    assert (code, json.loads(text)[0]["kind"]) == (1, "gone.task")
    assert "Cure: manage.py run_workers" in said("doctor")[1]
