"""`manage.py delayedq import-from`: what waits in the tables of the real frameworks, in a project of its own."""

from __future__ import annotations

import json
import shutil

import pytest
from django.db import connections

from tests.template import TEMPLATES

pytestmark = pytest.mark.slow

MARK = "tests.app.tasks.mark"
#: PostgreSQL, once it has a database that was migrated, to be copied.
MIGRATED = set()
THERE = "tests.management.framework_tasks"
READ = """
import json
from delayedq.core.serialization import loads
from delayedq.models import Message
every = Message.objects.order_by("id").values("kind", "key", "queue", "priority", "max_attempts", "payload", "metadata",
    "scheduled_at")
print(json.dumps([{**one, "payload": loads(one["payload"]), "metadata": loads(one["metadata"])} for one in every],
    default=str))
"""
SCHEDULES = """
import json
from delayedq import schedules
from delayedq.models import CronSchedule
names = CronSchedule.objects.order_by("name").values_list("name", flat=True)
print(json.dumps({name: schedules.get(name) for name in names}, default=str))
"""
TASKS_DB = """
from datetime import UTC, datetime
from django_tasks_db.models import DBTaskResult
from tests.management.framework_tasks import in_tasks_db
in_tasks_db.using(priority=7, run_after=datetime(2099, 1, 1, tzinfo=UTC)).enqueue("later", value="v")
in_tasks_db.using(queue_name="mail").enqueue("now")
in_tasks_db.enqueue(1, 2, 3)
DBTaskResult.objects.filter(pk=in_tasks_db.enqueue("held").id).update(status="RUNNING")
"""
OX = """
from datetime import UTC, datetime
from django_ox.models import OxSchedule, OxTask
from tests.management.framework_tasks import in_ox
in_ox.using(priority=-3, run_after=datetime(2099, 1, 1, tzinfo=UTC)).enqueue("later", value="v")
OxTask.objects.filter(pk=in_ox.enqueue("tried").id).update(attempts=2, max_attempts=5)
OxTask.objects.filter(pk=in_ox.enqueue("held").id).update(status="RUNNING")
start = datetime(2013, 1, 1, tzinfo=UTC)
def add(name, **fields):
    moments = dict.fromkeys(["start_time", "created_at", "updated_at"], start)
    OxSchedule.objects.create(name=name, task_key="mark", **moments, **fields)
add("nightly", trigger="cron", cron="30 2 * * *", arguments={"name": "x"}, starting_deadline_seconds=60)
add("wrong", trigger="cron", cron="at noon")
add("a list", trigger="cron", cron="0 1 * * *", arguments=["x"])
add("unread", trigger="interval", every_seconds=9, arguments="x")
add("over", trigger="cron", cron="0 1 * * *", arguments={"name": "x"}, end_time=datetime(2014, 1, 1, tzinfo=UTC))
add("often", trigger="interval", every_seconds=600, phase_seconds=60, arguments={"name": "x"}, enabled=False)
"""
DJANGO_Q = """
from datetime import UTC, datetime, timedelta
from django.utils import timezone
from django_q.models import OrmQ, Schedule
from django_q.tasks import async_task
async_task("tests.app.tasks.mark", "text", value="v")
from tests.management.framework_tasks import in_django_q
async_task(in_django_q, "function")
async_task("tests.app.tasks.mark", "hooked", hook="tests.app.tasks.nothing")
async_task("tests.app.tasks.mark", "held")
OrmQ.objects.filter(pk=OrmQ.objects.latest("pk").pk).update(lock=timezone.now() + timedelta(hours=1))
OrmQ.objects.create(key="there", payload="spoiled", lock=timezone.now())
at = datetime(2099, 3, 14, 15, 30, tzinfo=UTC)  # a Saturday; 11:30 in New York
def add(name, kind, **fields):
    Schedule.objects.create(**{"name": name, "func": "tests.app.tasks.mark", "schedule_type": kind, "next_run": at,
        "args": "'x',", **fields})
add("once", "O")
add("minutes", "I", minutes=10, repeats=3)
add("daily", "D", kwargs="value='v'")
add("weekly", "W", kwargs="{'value': 'v'}")
add("quarterly", "Q")
add("cron", "C", cron="0 9 * * 1", next_run=None, cluster="big")
add("every second month", "BM")
add("yearly", "Y")
add("late", "M", next_run=datetime(2099, 3, 31, 15, tzinfo=UTC))
add("hooked", "H", hook="tests.app.tasks.nothing")
add("code", "H", args="open('x')")
add("past", "O", next_run=datetime(2020, 1, 1, tzinfo=UTC))
add("ended", "H", repeats=0)
add("nowhere", "D", next_run=None, cluster="big")
add("unnamed", "H", kwargs="'v'")
add("spread", "H", kwargs="**{'value': 'v'}")
add("unknown", "H", func="old.app.task")
add("no minutes", "I", minutes=None)
add("daily", "H")
"""
PROCRASTINATE = """
from datetime import UTC, datetime
from procrastinate.contrib.django import app
from procrastinate.contrib.django.models import ProcrastinateJob
def defer(**options):
    return app.configure_task("tests.app.tasks.mark", allow_unknown=True, **options)
later = datetime(2099, 1, 1, tzinfo=UTC)
defer(queueing_lock="a", queue="mail", priority=7, schedule_at=later).defer(name="later", value="v")
defer(lock="one at a time").defer(name="locked")
defer(queueing_lock="taken", priority=1000).defer(name="urgent")
defer().defer(nothing_like_that=1)
"""
AGAIN = """
from procrastinate.contrib.django import app
app.configure_task("tests.app.tasks.mark", allow_unknown=True, queueing_lock="taken").defer(name="another")
"""


ZONE = """
from django.conf import settings
settings.Q_CLUSTER["time_zone"] = "Europe/Berlin"
from datetime import UTC, datetime
from django.core.management import call_command
from django_q.models import Schedule
at = datetime(2099, 3, 14, 15, 30, tzinfo=UTC)  # 16:30 in Berlin, and 11:30 in TIME_ZONE
for name, kind, given in [("nine", "C", {"cron": "0 9 * * 1"}), ("daily", "D", {}), ("minutes", "I", {"minutes": 10})]:
    Schedule.objects.create(
        name=name, func="tests.app.tasks.mark", args="'x'", schedule_type=kind, next_run=at, **given
    )
call_command("delayedq", "import-from", "django-q2")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of the databases in files: each test gets a copy of the one that was migrated, at one address."""
    return tmp_path_factory.mktemp("moved")


@pytest.fixture
def project(alias, environment, folder):
    """Runs a command, or Python, in a project of its own, on a database as its migrations leave it."""
    connection = connections[alias]
    empty, moved = folder / "empty.sqlite3", folder / "moved.sqlite3"
    url = f"sqlite:///{moved}"
    if connection.vendor != "sqlite":
        url = environment["DATABASE_URL"].replace(f"/{connection.settings_dict['NAME']}?", "/moved?")
    own = {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.management.frameworks_settings", "COLUMNS": "300"}

    def run(*words, status=0):
        process = TEMPLATES.start([*words], environment | own)
        output, _ = process.communicate()
        assert process.returncode == status, output
        return output

    def execute(statement):
        with connection.cursor() as cursor:
            cursor.execute(statement)

    if connection.vendor == "sqlite":
        moved.unlink(missing_ok=True)
        if empty.exists():
            shutil.copy(empty, moved)
        else:
            run("migrate", "-v", "0")
            shutil.copy(moved, empty)
        yield run
    else:
        execute("CREATE DATABASE moved" + " TEMPLATE moved_empty" * (connection.vendor in MIGRATED))
        if connection.vendor not in MIGRATED:
            run("migrate", "-v", "0")
        if connection.vendor == "postgresql" and not MIGRATED:
            execute("CREATE DATABASE moved_empty TEMPLATE moved")
            MIGRATED.add(connection.vendor)
        yield run
        execute("DROP DATABASE moved")


def import_from(project, origin, *flags, status=0):
    return project("delayedq", "import-from", origin, *flags, status=status)


def code(project, text):
    """Run it, and return the last line that it has written: errors and warnings come by the same pipe."""
    return project("shell", "--verbosity", "0", "--command", text).rstrip("\n").rpartition("\n")[2]


def messages(project):
    return json.loads(code(project, READ))


def schedules(project):
    return json.loads(code(project, SCHEDULES))


def row(output, *words):
    """The one line of a table that has these words."""
    (line,) = (line for line in output.splitlines() if all(word in line for word in words))
    return line


def test_what_waits_in_django_tasks_db_is_moved_and_the_rest_stays(project):
    code(project, TASKS_DB)
    which = ("--task", f"{THERE}.in_tasks_db={MARK}")
    assert "would be moved" in row(import_from(project, "django-tasks-db", "--dry-run", *which), " 2 ")
    assert messages(project) == []

    told = import_from(project, "django-tasks-db", *which)
    assert "moved" in row(told, " 2 ")
    assert "refused" in row(told, "too many positional arguments")
    by_name = {one["payload"]["args"][0]: one for one in messages(project)}
    assert by_name.keys() == {"later", "now"}
    later = by_name["later"]
    assert (later["kind"], later["priority"], later["scheduled_at"]) == (MARK, 7, "2099-01-01 00:00:00+00:00")
    assert by_name["now"]["queue"] == "mail"
    assert later["metadata"]["imported_from"].startswith("django_tasks_db ")

    again = import_from(project, "django-tasks-db", *which)
    assert "moved" not in again, "what was moved is there no more"
    assert len(messages(project)) == 2
    left = "from django_tasks_db.models import *; print(sorted(DBTaskResult.objects.values_list('status', flat=True)))"
    assert code(project, left) == "['READY', 'RUNNING']"


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_what_waits_in_django_ox_is_moved_with_its_attempts_and_its_schedules_are_copied(project):
    code(project, OX)
    which = ("--task", f"{THERE}.in_ox={MARK}", "--task", f"mark={MARK}")
    would = import_from(project, "django-ox", "--dry-run", *which)
    assert "would be imported" in row(would, "nightly")
    assert messages(project) == []
    told = import_from(project, "django-ox", *which)
    by_name = {one["payload"]["args"][0]: one for one in messages(project) if "args" in one["payload"]}
    assert by_name.keys() == {"later", "tried"}
    assert (by_name["later"]["priority"], by_name["later"]["scheduled_at"]) == (-3, "2099-01-01 00:00:00+00:00")
    assert by_name["tried"]["max_attempts"] == 3
    assert "30 2 * * *" in row(told, "nightly", "imported")
    assert "disabled, as it was" in row(told, "often", "every 0:10:00")
    found = schedules(project)
    given = {"task": MARK, "kwargs": {"name": "x"}, "start": "2013-01-01 00:00:00+00:00"}
    assert found["nightly"] == {**given, "cron": "30 2 * * *", "starting_deadline": "0:01:00"}
    assert found["often"] == {**given, "every": "0:10:00", "anchor": "1970-01-01 00:01:00+00:00"}
    for name, reason in (("wrong", "at noon"), ("a list", "kwargs"), ("unread", "kwargs")):
        assert reason in row(told, f"{name} ", "refused")
    assert "its time has passed: it will not run" in row(told, "over ", "imported")
    again = import_from(project, "django-ox", *which)
    assert "There is a schedule 'nightly' already" in again
    assert "imported" not in again


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_what_waits_in_django_q_is_moved_and_its_schedules_are_copied(project):
    code(project, DJANGO_Q)
    assert "would be moved" in import_from(project, "django-q2", "--dry-run")
    assert messages(project) == []
    told = import_from(project, "django-q2", "--task", f"{THERE}.in_django_q={MARK}")
    assert [one["payload"] for one in messages(project) if not one["key"]] == [
        {"args": ["text"], "kwargs": {"value": "v"}},
        {"args": ["function"]},
    ]
    assert "It has hook" in row(told, MARK, "refused", " 1 ", "no equal")
    assert "can't be read" in row(told, "refused", "BadSignature")
    for name, times in (
        ("once", "once, at 2099-03-14 15:30:00+00:00"),
        ("minutes", "every 0:10:00"),
        ("daily", "30 11 * * *"),
        ("weekly", "30 11 * * 6"),
        ("quarterly", "30 11 14 3,6,9,12 *"),
        ("cron", "0 9 * * 1"),
        ("every second month", "30 11 14 1,3,5,7,9,11 *"),
        ("yearly", "30 11 14 3 *"),
    ):
        assert times in row(told, f"{name} ", "imported")
    for name, reason in (
        ("late", "day 31"),
        ("hooked", "hook"),
        ("code", "not literals"),
        ("nowhere", "no next run"),
        ("unnamed", "not all names with values"),
        ("spread", "not all names with values"),
        ("unknown", "No task is registered as 'old.app.task'"),
        ("no minutes", "every"),
        ("daily", "There is a schedule 'daily' already"),
    ):
        assert reason in row(told, f"{name} ", "refused")
    assert "its cluster 'big' was left out" in row(told, "cron ", "imported")
    minutes = schedules(project)["minutes"]
    assert (minutes["max_runs"], minutes["args"]) == (3, ["x"])
    assert "its time has passed: it will not run" in row(told, "past ", "imported")
    assert "disabled, as it was" in row(told, "ended ", "imported")
    again = import_from(project, "django-q2", "--task", f"{THERE}.in_django_q={MARK}")
    assert "imported" not in again
    assert "moved" not in again
    held = "from django_q.models import *; print(OrmQ.objects.count())"
    assert code(project, held) == "3", "the held one, the hooked one and the spoiled one"


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_local_times_of_django_q_are_in_its_own_time_zone_if_it_has_one(project):
    told = project("shell", "--verbosity", "0", "--command", ZONE)
    assert "30 16 * * * Europe/Berlin" in row(told, "daily ", "imported")
    times = {name: (one.get("cron"), one.get("timezone")) for name, one in schedules(project).items()}
    assert times == {
        "nine": ("0 9 * * 1", "Europe/Berlin"),
        "daily": ("30 16 * * *", "Europe/Berlin"),
        "minutes": (None, None),
    }


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_what_waits_in_procrastinate_is_moved_with_its_queueing_lock_as_the_key(project):
    code(project, PROCRASTINATE)
    assert "would be moved" in import_from(project, "procrastinate", "--dry-run")
    assert messages(project) == []
    told = import_from(project, "procrastinate")
    moved, urgent = messages(project)
    assert (moved["key"], moved["priority"], moved["queue"]) == ("a", 7, "mail")
    assert (urgent["key"], urgent["priority"]) == ("taken", 100), "more than there is here"
    assert moved["payload"] == {"kwargs": {"name": "later", "value": "v"}}
    assert "may not overlap" in row(told, "refused", "channel")
    assert "missing a required argument: 'name'" in row(told, "refused", "mark: ")
    code(project, AGAIN)
    told = import_from(project, "procrastinate")
    assert "moved" not in told
    assert "refused" in row(told, "A live message has the key 'taken'.")
    assert messages(project) == [moved, urgent], "it is kept as it was"


HOSTILE = """
from datetime import UTC, datetime
from django_ox.models import OxTask
from django_tasks_db.models import DBTaskResult
from tests.management.framework_tasks import in_ox, in_tasks_db
def spoiled(**fields):
    DBTaskResult.objects.filter(pk=in_tasks_db.enqueue("x").id).update(**fields)
spoiled(args_kwargs={"args": "text", "kwargs": {}})
spoiled(args_kwargs={"args": [], "kwargs": [["name", "x"]]})
spoiled(args_kwargs={"nothing": 1})
spoiled(args_kwargs=7)
spoiled(task_path="os.system")
spoiled(run_after=datetime(9999, 12, 30, tzinfo=UTC))
in_tasks_db.enqueue("sound")
OxTask.objects.filter(pk=in_ox.enqueue("y").id).update(args="text")
OxTask.objects.filter(pk=in_ox.enqueue("y").id).update(kwargs=[1])
OxTask.objects.filter(pk=in_ox.enqueue("y").id).update(max_attempts=32_767)
"""


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_rows_that_hold_anything_stay_there_with_the_reason_and_the_others_are_moved(project):
    code(project, HOSTILE)
    told = import_from(project, "django-tasks-db", "--task", f"{THERE}.in_tasks_db={MARK}")
    for reason in ("'text'", "['name', 'x']", "KeyError: 'args'", "not subscriptable", "os.system"):
        assert "refused" in row(told, reason)
    by_name = {one["payload"]["args"][0] for one in messages(project)}
    assert "sound" in by_name
    told = import_from(project, "django-ox", "--task", f"{THERE}.in_ox={MARK}")
    for reason in ("'text'", "[1]", "attempts"):
        assert "refused" in row(told, reason)


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["celery-beat"], "'django_celery_beat' is not in INSTALLED_APPS"),
        (["django-q2", "--task", "x"], "--task takes OLD=NEW, not 'x'"),
        (["airflow"], "invalid choice: 'airflow'"),
    ],
)
def test_what_can_not_be_imported_is_said_in_a_sentence(project, flags, said):
    error = import_from(project, *flags, status=1 if said.startswith(("'", "-")) else 2)
    assert said in error
    assert "Traceback" not in error
