"""`manage.py delayedq import-from celery-beat`: from its real tables, in a project of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GIVEN = """
import json
from datetime import UTC, datetime
import django; django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django_celery_beat.models import *
MARK = "tests.app.tasks.mark"
def add(name, task=MARK, args='["x"]', **fields):
    PeriodicTask.objects.create(name=name, task=task, args=args, **fields)
ten = IntervalSchedule.objects.create(every=10, period="minutes")
def crontab(**fields):
    return CrontabSchedule.objects.create(timezone="Europe/London", **fields)
later = ClockedSchedule.objects.create(clocked_time=datetime(2099, 1, 1, 12, 0, 0, 7, tzinfo=UTC))
sun = SolarSchedule.objects.create(event="sunrise", latitude=51, longitude=0)
add("every ten minutes", interval=ten, expire_seconds=120, priority=3)
add("nightly", crontab=crontab(minute="30", hour="2"), kwargs='{"value": "v"}', enabled=False)
add("working days", crontab=crontab(minute="0", hour="9", day_of_week="mon-fri"), one_off=True)
add("from then on", interval=ten, start_time=datetime(2099, 1, 1, 12, 0, 0, 7, tzinfo=UTC), queue="mail", exchange="x")
add("both days", crontab=crontab(minute="0", hour="9", day_of_month="13", day_of_week="fri"))
add("once", clocked=later, one_off=True)
past = ClockedSchedule.objects.create(clocked_time=datetime(2020, 1, 1, 12, tzinfo=UTC))
add("past", clocked=past, one_off=True)
add("sunrise", solar=sun)
add("elsewhere", task="old.app.mark", interval=ten)
add("unknown", task="old.app.unknown", interval=ten)
add("broken", args="[", interval=ten)
"""
READ = """
import json
import django; django.setup()
from delayedq import schedules
from delayedq.models import CronSchedule, Message
names = CronSchedule.objects.order_by("name").values_list("name", flat=True)
print(json.dumps({"schedules": {n: schedules.get(n) for n in names}, "messages": Message.objects.count()}, default=str))
"""


@pytest.fixture
def project(tmp_path):
    """Runs Python, or the command, in that project."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.management.celery_beat_settings",
        "DATABASE_FILE": str(tmp_path / "beat.sqlite3"),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "300",
    }

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def import_(project, *flags):
    output = project(
        "-m", "django", "delayedq", "import-from", "celery-beat", "--task", "old.app.mark=tests.app.tasks.mark", *flags
    )
    return {line.split("  ")[0]: line for line in output.splitlines()}


def test_periodic_tasks_become_schedules_or_are_refused_with_the_reason(project):
    project("-c", GIVEN)
    would = import_(project, "--dry-run")
    assert "would be imported" in would["nightly"]
    assert json.loads(project("-c", READ)) == {"schedules": {}, "messages": 0}

    told = import_(project)
    for name, reason in (
        ("sunrise", "is a solar schedule (sunrise)"),
        ("both days", "Celery requires both to match; here one of them is enough"),
        ("unknown", "No task is registered as 'old.app.unknown'"),
        ("broken", "Its args are not JSON: '['"),
    ):
        assert "refused" in told[name], name
        assert reason in told[name], name
    assert "counts from the Unix epoch" in told["every ten minutes"]
    assert "priority 3 of the broker was left out" in told["every ten minutes"]
    assert "exchange, routing key and headers were left out" in told["from then on"]
    assert "disabled, as it was" in told["nightly"]
    assert "its time has passed" in told["past"], "and it must not run a day later, at the same time"

    found = json.loads(project("-c", READ))
    mark = {"task": "tests.app.tasks.mark", "args": ["x"]}
    assert found["schedules"] == {
        "elsewhere": {**mark, "every": "0:10:00"},
        "every ten minutes": {**mark, "every": "0:10:00", "starting_deadline": "0:02:00"},
        "from then on": {**mark, "every": "0:10:00", "start": "2099-01-01 12:00:00+00:00", "queue_name": "mail"},
        "nightly": {**mark, "cron": "30 2 * * *", "timezone": "Europe/London", "kwargs": {"value": "v"}},
        "once": {
            **mark,
            "every": "1 day, 0:00:00",
            "anchor": "2099-01-01 12:00:00+00:00",
            "start": "2099-01-01 12:00:00+00:00",
            "end": "2099-01-01 12:00:00+00:00",
        },
        "past": {
            **mark,
            "every": "1 day, 0:00:00",
            "anchor": "2020-01-01 12:00:00+00:00",
            "start": "2020-01-01 12:00:00+00:00",
            "end": "2020-01-01 12:00:00+00:00",
        },
        "working days": {**mark, "cron": "0 9 * * mon-fri", "timezone": "Europe/London", "max_runs": 1},
    }
    assert found["messages"] == 5, "the disabled one has none"
    assert "There is a schedule 'nightly' already" in import_(project)["nightly"]


ODD = """
add("args are a number", args="5", interval=ten)
add("args are names", args='{"name": "x"}', interval=ten)
add("kwargs are a list", kwargs='["x"]', interval=ten)
add("kwargs are null", kwargs="null", interval=ten)
def spoiled(name, schedule, **columns):
    add(name, **{"interval" if type(schedule) is IntervalSchedule else "crontab": schedule})
    type(schedule).objects.filter(pk=schedule.pk).update(**columns)
spoiled("no time", IntervalSchedule.objects.create(every=1, period="hours"), every=0)
spoiled("of no unit", IntervalSchedule.objects.create(every=2, period="hours"), period="fortnights")
spoiled("of no field", crontab(minute="1"), hour="noon")
add("over", crontab=crontab(minute="2"), expires=datetime(2020, 1, 1, tzinfo=UTC))
add("one-off, disabled", interval=ten, one_off=True, enabled=False)
add("long " * 40, interval=ten)
elsewhere = crontab(minute="3")
add("of no zone", crontab=elsewhere)
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute(
        "UPDATE django_celery_beat_crontabschedule SET timezone = 'Mars/Olympus' WHERE id = %s", [elsewhere.pk]
    )
"""


def test_odd_rows_are_refused_with_the_reason_and_keep_no_other_from_being_imported(project):
    project("-c", GIVEN + ODD)
    told = import_(project)
    for name, reason in (
        ("args are a number", "Its args are not a list: '5'"),
        ("args are names", "Its args are not a list: "),
        ("kwargs are a list", "Its kwargs are not a dict"),
        ("no time", "period"),
        ("of no unit", "fortnights"),
        ("of no field", "noon"),
        ("of no zone", "Mars/Olympus"),
    ):
        assert "refused" in told[name], name
        assert reason in told[name], name
    for name in ("kwargs are null", "over", "one-off, disabled", "nightly"):
        assert "imported" in told[name], name
    assert "it will not run" in told["over"]
    assert "disabled, as it was" in told["one-off, disabled"]
    assert sum("refused" in line or "imported" in line for line in told.values()) == 22, "each row is told"

    again = import_(project)
    assert not any("imported" in line for line in again.values())
