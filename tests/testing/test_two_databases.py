"""The test tools where backends have two databases, SQLite and PostgreSQL, in the transactions of a test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from delayedq import current_message
from delayedq.models import CronTick, Message
from delayedq.testing import assert_scheduled, clock, run_due, run_until, scheduled
from tests.app import tasks
from tests.app.models import Mark

BACKEND = "delayedq.backend.DelayedQBackend"
START = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def backends(alias, settings, django_db_setup, postgresql, django_db_blocker):
    """The router gives SQLite to all models; the backend "second" has PostgreSQL."""
    settings.TASKS = {
        "default": {"BACKEND": BACKEND, "QUEUES": []},
        "second": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"DATABASE": "postgresql"}},
    }
    with django_db_blocker.unblock(), transaction.atomic(using="default"), transaction.atomic(using="postgresql"):
        yield
        for one in ("default", "postgresql"):
            transaction.set_rollback(True, using=one)


pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


def there(task, **options):
    return task.using(backend="second", **options)


def test_what_is_due_in_both_runs_the_highest_priority_first(backends):
    tasks.remind.enqueue(1)
    there(tasks.remind, priority=5).enqueue(2)
    there(tasks.remind, priority=-5).enqueue(3)
    assert [attempt.args for attempt in run_due(limit=2)] == [[2], [1]]
    assert [attempt.args for attempt in run_due(using="default")] == []
    assert [attempt.args for attempt in run_due()] == [[3]]


def test_what_a_task_enqueues_in_the_other_one_is_followed(backends):
    tasks.bodies["here"] = lambda: there(tasks.remind).enqueue(7) and None
    tasks.play.enqueue("here")
    assert [attempt.task.rpartition(".")[2] for attempt in run_due()] == ["play", "remind"]


def test_an_exactly_once_task_ends_in_the_database_of_its_message(backends):
    tasks.bodies["once"] = lambda: Mark.objects.using("postgresql").create(name=str(current_message().id)) and None
    result = there(tasks.play_once).enqueue("once")
    (attempt,) = run_due()
    assert attempt.outcome == "succeeded"
    assert not Message.objects.using("postgresql").exists()
    assert there(tasks.play_once).get_result(result.id).status == "SUCCESSFUL"
    assert Mark.objects.using("postgresql").get().name == result.id


def test_time_is_played_in_both(backends, settings):
    ticking = {"task": "tests.app.tasks.nothing", "cron": "0 12 * * *", "timezone": "UTC"}
    settings.DELAYEDQ = {"CRON": {"noon": ticking}}
    with clock(START):
        there(tasks.remind).schedule_at(START + 8 * HOUR, 7)
        there(tasks.fail).using(max_attempts=2).enqueue()
        assert_scheduled(there(tasks.remind), args=[7], at=START + 8 * HOUR)
        assert scheduled(tasks.remind) == []
        attempts = run_until(START + 24 * HOUR, raise_failures=False)
    names = [(attempt.task.rpartition(".")[2], attempt.outcome) for attempt in attempts]
    assert names == [("fail", "retry"), ("fail", "failed"), ("nothing", "succeeded"), ("remind", "succeeded")]
    assert (CronTick.objects.using("default").exists(), CronTick.objects.using("postgresql").exists()) == (True, False)
