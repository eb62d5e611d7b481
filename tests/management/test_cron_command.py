"""`manage.py delayedq cron`: what an operator sees of the schedules, and how one is run by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management.base import CommandError

from delayedq import management
from delayedq.cron.beat import disable
from delayedq.cron.definitions import read
from delayedq.models import CronTick, FinishedMessage, Message
from tests.cron.given import HOURLY, beat_at, claim_due, nominal, run_due
from tests.management.given import NOW, REPORT, SWEEP, TASK, cron, rows
from tests.store.given import fail, retry, settle, succeed

ROOT = Path(__file__).parents[2]
MINUTELY = {**TASK, "cron": "* * * * *", "timezone": "UTC"}


# list


def test_the_list_tells_what_runs_when(now, schedules):
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


def test_the_list_tells_the_last_tick_and_how_it_ended(store, now, schedules):
    schedules(report=REPORT)
    beat_at(store, now - timedelta(hours=9), report=REPORT)
    run_due(store, now)
    beat_at(store, now, report=REPORT)

    (row,) = rows(cron("list"))
    assert row[3] == "Sat 2026-03-07 02:30 EST, succeeded"


def test_only_ticks_of_the_schedule_itself_count(store, now, schedules):
    schedules(other=REPORT)
    beat_at(store, now - timedelta(hours=9), report=REPORT)

    (row,) = rows(cron("list"))
    assert row[3] == "none yet"


@pytest.mark.parametrize("state", ["due", "running", "retrying", "succeeded", "failed", "unknown"])
def test_the_list_tells_what_became_of_the_last_tick(store, schedules, state):
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


def test_a_disabled_schedule_is_listed_as_such(now, schedules):
    schedules(report={**REPORT, "enabled": False})

    (row,) = rows(cron("list"))
    assert row[-1] == "disabled"


def test_seconds_are_told_where_there_are_any(now, schedules):
    schedules(dense={**TASK, "cron": "0 0 * * * 30", "timezone": "Asia/Kathmandu"})

    (row,) = rows(cron("list"))
    assert row[-1] == "Sun 2026-03-08 00:00:30 +0545, Sat 2026-03-07 18:15:30 UTC"


def test_without_schedules_the_command_says_so(alias, schedules):
    schedules()

    for verb in (["list"], ["next"], ["next", "--around-dst"]):
        assert cron(*verb) == "There are no schedules in DELAYEDQ['CRON'].\n"


def test_a_schedule_whose_name_looks_like_markup_is_shown_as_it_is(now, schedules):
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
def test_an_expression_is_told_in_words_if_there_are_any(now, schedules, expression, words):
    schedules(own={**TASK, "cron": expression, "timezone": "UTC"})

    (row,) = rows(cron("list"))
    assert row[2] == ", ".join([expression, *words, "UTC"])


def test_without_the_library_that_has_the_words_there_are_none(now, schedules, monkeypatch):
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


def test_a_run_by_hand_takes_no_ticks_place(store, now, schedules):
    schedules(hourly=HOURLY)
    beat_at(store, now, hourly=HOURLY)
    cron("run", "hourly")

    assert sorted(map(nominal, Message.objects.all())) == [now, now.replace(hour=16, minute=0)]


# What goes wrong


@pytest.mark.parametrize("arguments", [["next", "nope"], ["run", "nope"]], ids=" ".join)
def test_an_unknown_name_is_refused_with_those_that_are_known(alias, schedules, arguments):
    schedules(report=REPORT, sweep=SWEEP)

    with pytest.raises(CommandError, match="has no schedule 'nope'; it has report, sweep"):
        cron(*arguments)
    assert not Message.objects.exists()


def test_where_there_are_no_schedules_no_name_is_known(alias, schedules):
    schedules()

    with pytest.raises(CommandError, match="has no schedule 'nope'; it has none"):
        cron("run", "nope")


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_count_is_over_zero(alias, schedules, count):
    with pytest.raises(CommandError, match="is not a whole number over 0"):
        cron("next", f"--count={count}")


def test_the_system_checks_tell_what_is_wrong_with_the_settings(environment):
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


def test_what_tables_need_is_named_if_it_is_missing_and_run_works_without(alias, schedules, monkeypatch):
    schedules(report=REPORT)
    monkeypatch.setitem(sys.modules, "rich.box", None)
    monkeypatch.delitem(sys.modules, "delayedq.management.tables", raising=False)
    monkeypatch.delattr(management, "tables", raising=False)

    with pytest.raises(CommandError, match=r"rich is missing: pip install 'delayedq\[cli\]'"):
        cron("list")
    cron("run", "report")
    assert Message.objects.count() == 1


def test_the_list_tells_what_was_disabled_by_hand(store, now, schedules):
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
