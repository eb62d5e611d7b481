"""`manage.py delayedq cron list` and `run`."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from getpass import getuser
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from delayedq import schedules as in_database
from delayedq.cron.definitions import read
from delayedq.models import CronTick, Edit, FinishedMessage, Message
from tests.cron.given import HOURLY, beat_at, claim_due, disable, nominal, run_due
from tests.management.given import NOW, REPORT, SWEEP, TASK, cron, rows
from tests.store.given import fail, retry, settle, succeed

ROOT = Path(__file__).parents[2]
MINUTELY = {**TASK, "cron": "* * * * *", "timezone": "UTC"}


# list


def test_the_list_shows_each_schedule_with_its_task_times_and_next_tick(now, schedules):
    schedules(report=REPORT, sweep=SWEEP)

    assert rows(cron("list")) == [
        [
            "report",
            "tests.app.tasks.mark",
            "30 2 * * *, At 02:30, America/New_York",
            "none yet",
            "Sun 2026-03-08 03:00 EDT, Sun 2026-03-08 07:00 UTC",
        ],
        ["sweep", "tests.app.tasks.mark", "every 0:15:00", "none yet", "Sat 2026-03-07 15:30 UTC"],
    ]


def test_the_list_shows_the_last_tick_and_its_outcome(store, now, schedules):
    schedules(report=REPORT)
    beat_at(store, now - timedelta(hours=9), report=REPORT)
    run_due(store, now)
    beat_at(store, now, report=REPORT)

    (row,) = rows(cron("list"))
    assert row[3] == "Sat 2026-03-07 02:30 EST, succeeded"


def test_ticks_of_other_schedules_are_not_shown(store, now, schedules):
    schedules(other=REPORT)
    beat_at(store, now - timedelta(hours=9), report=REPORT)

    other, lost = rows(cron("list"))
    assert other[3] == "none yet"
    assert (lost[0], lost[-1]) == ("report", "not defined")


@pytest.mark.parametrize("state", ["due", "running", "retrying", "succeeded", "failed", "unknown"])
def test_the_list_shows_the_state_of_the_last_tick(store, schedules, state):
    schedules(own=MINUTELY)
    moment = store.now()
    beat_at(store, moment - timedelta(hours=1), own=MINUTELY)
    claims = [] if state == "due" else claim_due(store, moment)
    ends = {"retrying": retry, "failed": fail, "succeeded": succeed, "unknown": succeed}
    settle(store, *(ends[state](claimed) for claimed in claims if state in ends), now=moment)
    if state == "unknown":
        FinishedMessage.objects.all().delete()

    (row,) = rows(cron("list"))
    assert row[3].endswith(f" UTC, {state}")


def test_a_disabled_schedule_is_marked_in_the_list(now, schedules):
    schedules(report={**REPORT, "enabled": False})

    (row,) = rows(cron("list"))
    assert row[-1] == "disabled"


def test_seconds_are_shown_only_if_not_zero(now, schedules):
    schedules(dense={**TASK, "cron": "0 0 * * * 30", "timezone": "Asia/Kathmandu"})

    (row,) = rows(cron("list"))
    assert row[-1] == "Sun 2026-03-08 00:00:30 +0545, Sat 2026-03-07 18:15:30 UTC"


def test_without_schedules_the_command_says_so(alias, schedules):
    schedules()

    for verb in (["list"], ["next"], ["next", "--around-dst"]):
        assert cron(*verb) == "There are no schedules, neither in DELAYEDQ['CRON'] nor in the database.\n"


def test_markup_in_the_name_of_a_schedule_is_shown_as_text(now, schedules):
    schedules(**{"[red]alert[/red] :smile:": REPORT})

    assert rows(cron("list"))[0][0] == rows(cron("next"))[0][0] == "[red]alert[/red] :smile:"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("30 2 * * *", ["At 02:30"]),
        ("*/15 * * * *", ["Every 15 minutes"]),
        ("0 9 * * mon-fri", ["At 09:00, Monday through Friday"]),
        ("0 0 * * 7", ["At 00:00, only on Sunday"]),
        ("0 0 13 * 5", ["At 00:00, on day 13 of the month, or on Friday"]),
        ("* * * * * */10", ["Every 10 seconds"]),
        ("@daily", ["At 00:00"]),
        ("0 0 * * L5", []),
        ("H 2 * * *", []),
        ("0 0 * * fri#2", []),
    ],
)
def test_an_expression_is_described_in_words_if_possible(now, schedules, expression, words):
    schedules(own={**TASK, "cron": expression, "timezone": "UTC"})

    (row,) = rows(cron("list"))
    assert row[2] == ", ".join([expression, *words, "UTC"])


def test_without_cron_descriptor_expressions_have_no_description(now, schedules, monkeypatch):
    monkeypatch.setitem(sys.modules, "cron_descriptor", None)
    schedules(daily={**TASK, "cron": "@daily", "timezone": "UTC"})

    (row,) = rows(cron("list"))
    assert row[2] == "@daily, UTC"


# run


@pytest.mark.parametrize("enabled", [True, False])
def test_run_puts_its_message_into_the_queue_outside_of_the_schedule(store, now, schedules, enabled):
    schedules(report={**REPORT, "enabled": enabled, "priority": 3})
    output = cron("run", "report")

    message = Message.objects.get()
    assert output == f"report is due now, as message {message.id}.\n"
    assert (message.kind, message.priority, message.key) == ("tests.app.tasks.mark", 3, None)
    assert json.loads(message.metadata) == {"cron": {"schedule": "report", "nominal_at": NOW.isoformat()}}
    assert not CronTick.objects.exists()


def test_a_manual_run_replaces_no_tick(store, now, schedules):
    schedules(hourly=HOURLY)
    beat_at(store, now, hourly=HOURLY)
    cron("run", "hourly")

    assert sorted(map(nominal, Message.objects.all())) == [now, now.replace(hour=16, minute=0)]


# Errors


@pytest.mark.parametrize("arguments", [["next", "nope"], ["run", "nope"]], ids=" ".join)
def test_an_unknown_name_is_refused_with_the_known_names(alias, schedules, arguments):
    schedules(report=REPORT, sweep=SWEEP)

    with pytest.raises(CommandError, match="There is no schedule 'nope'; there are report, sweep"):
        cron(*arguments)
    assert not Message.objects.exists()


def test_without_schedules_every_name_is_refused(alias, schedules):
    schedules()

    with pytest.raises(CommandError, match="There is no schedule 'nope'; there are none"):
        cron("run", "nope")


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_the_count_must_be_over_zero(alias, schedules, count):
    with pytest.raises(CommandError, match="is not a whole number over 0"):
        cron("next", f"--count={count}")


def test_system_checks_report_invalid_settings(environment):
    schedules = json.dumps({"report": {**REPORT, "timezone": "Europe/Nowhere"}})
    ended = subprocess.run(
        [sys.executable, "-m", "django", "delayedq", "cron", "list"],
        cwd=ROOT,
        env={**environment, "CRON": schedules},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 1
    assert "SystemCheckError" in ended.stderr
    assert "DELAYEDQ['CRON']['report']['timezone']" in ended.stderr


def test_the_list_marks_schedules_that_an_operator_disabled(store, now, schedules):
    schedules(report=REPORT, sweep=SWEEP)
    disable(store, "report", now)

    report, sweep = rows(cron("list"))
    assert report[-1] == "disabled"
    assert "disabled" not in sweep


def test_an_expression_means_the_same_to_the_command_and_to_the_workers(store, now, schedules):
    drawn = {**TASK, "cron": "H H * * *", "timezone": "UTC"}
    schedules(drawn=drawn)
    beat_at(store, now, drawn=drawn)

    (row,) = rows(cron("list"))
    assert row[-1] == f"{read('drawn', drawn).schedule.next_after(now):%a %Y-%m-%d %H:%M} UTC"
    assert nominal(Message.objects.get()) == read("drawn", drawn).schedule.next_after(now)


# Schedules of the database


def test_a_schedule_is_added_listed_disabled_enabled_run_and_removed(store, now):
    said = cron("add", "tea", "tests.app.tasks.mark", "--cron", "0 16 * * *", "--timezone", "UTC", "--args", '["x"]')
    assert said == "tea is added; it ticks first at 2026-03-07T16:00:00+00:00.\n"
    (row,) = rows(cron("list"))
    assert row[-1] == "Sat 2026-03-07 16:00 UTC"
    assert cron("disable", "tea") == "tea is disabled.\n"
    assert cron("disable", "tea") == "tea was already disabled.\n"
    assert rows(cron("list"))[0][-1] == "disabled"
    assert cron("enable", "tea") == "tea is enabled.\n"
    assert rows(cron("next", "tea", "--count", "1"))[0][1] == "Sat 2026-03-07 16:00 UTC"
    assert "tea is due now" in cron("run", "tea")
    assert cron("remove", "tea") == "tea is deleted.\n"
    assert "There are no schedules" in cron("list")
    with pytest.raises(CommandError, match="There is no schedule 'tea' in the database"):
        cron("remove", "tea")


def test_all_keys_can_be_given(store, now):
    cron(
        *("add", "own", "tests.app.tasks.mark", "--every", "15:00", "--anchor", "2026-03-07T00:05:00+00:00"),
        *("--kwargs", '{"name": "x"}', "--priority", "5", "--misfire", "skip", "--starting-deadline", "60"),
        *(
            "--overlap",
            "wait",
            "--jitter",
            "30",
            "--start",
            "2026-03-08T00:00:00+00:00",
            "--max-runs",
            "3",
            "--disabled",
        ),
    )
    given = in_database.get("own")
    assert (given["every"], given["jitter"]) == (timedelta(minutes=15), timedelta(seconds=30))
    assert (given["overlap"], given["max_runs"], given["priority"]) == ("wait", 3, 5)
    assert rows(cron("list"))[0][-1] == "disabled"


@pytest.mark.parametrize("given", [["--cron", "61 * * * *"], ["--every", "soon"], ["--args", "x"], []], ids=str)
def test_what_is_wrong_is_refused(store, now, given):
    with pytest.raises(CommandError):
        cron("add", "own", "tests.app.tasks.nothing", *given)


def test_a_schedule_that_lost_its_definition_is_listed(store, now, schedules):
    schedules()
    beat_at(store, now - timedelta(hours=9), report=REPORT)

    (row,) = rows(cron("list"))
    assert (row[0], row[-1]) == ("report", "not defined")


def test_one_of_the_settings_is_disabled_and_enabled(store, now, schedules):
    schedules(report=REPORT)
    assert cron("disable", "report") == "report is disabled.\n"
    assert rows(cron("list"))[0][-1] == "disabled"
    with pytest.raises(CommandError, match="is changed there"):
        cron("remove", "report")


@pytest.mark.parametrize("by", [None, "ann"])
def test_who_changed_a_schedule_is_recorded(store, by):
    given = [] if by is None else ["--by", by, "--why", "too early"]
    call_command(
        "delayedq",
        "cron",
        "add",
        "tea",
        "tests.app.tasks.remind",
        "--cron",
        "0 4 * * *",
        "--timezone",
        "UTC",
        "--args",
        "[7]",
        *given,
    )
    call_command("delayedq", "cron", "disable", "tea", *given)
    call_command("delayedq", "cron", "run", "tea", *given)
    edits = Edit.objects.order_by("id")
    who_and_why = (getuser(), "") if by is None else (by, "too early")
    assert [(edit.made_by, edit.why) for edit in edits] == [who_and_why] * 3
    assert [edit.description for edit in edits] == ["Add schedule tea", "Disable schedule tea", "Run schedule tea now"]
