"""`manage.py delayedq cron`: what an operator sees of the schedules, and how one is run by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from delayedq import management
from delayedq.cron.beat import disable
from delayedq.cron.definitions import read
from delayedq.models import CronTick, FinishedMessage, Message
from tests.cron.given import HOURLY, beat_at, claim_due, nominal, run_due
from tests.store.given import fail, retry, settle, succeed

ROOT = Path(__file__).parents[2]

#: The day before New York's clocks skip an hour: 10:20 there.
NOW = datetime(2026, 3, 7, 15, 20, tzinfo=UTC)
TASK = {"task": "tests.app.tasks.mark", "args": ["x"]}
REPORT = {**TASK, "cron": "30 2 * * *", "timezone": "America/New_York"}
SWEEP = {**TASK, "every": timedelta(minutes=15)}
MINUTELY = {**TASK, "cron": "* * * * *", "timezone": "UTC"}


@pytest.fixture(autouse=True)
def _plain_output(monkeypatch):
    for variable in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def schedules(settings):
    """Put these schedules into the settings."""

    def define(**given):
        settings.DELAYEDQ = {"CRON": given}

    return define


@pytest.fixture
def now(store, monkeypatch):
    """Stop the clock of the store."""
    monkeypatch.setattr(type(store), "now", lambda self: NOW)
    return NOW


def cron(*arguments, stdout=None, **options):
    out = stdout or StringIO()
    call_command("delayedq", "cron", *arguments, stdout=out, **options)
    return out.getvalue()


def rows(output):
    """The cells of each line below the titles."""
    return [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()[2:] if line.strip()]


class Terminal(StringIO):
    def isatty(self):
        return True


@pytest.fixture
def on_terminal(monkeypatch):
    """What the command shows on a terminal of that width, without the codes for styles."""

    def show(width, *arguments):
        monkeypatch.setenv("COLUMNS", str(width))
        return cron(*arguments, stdout=Terminal(), no_color=True)

    return show


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


# Where it is shown


def test_a_file_has_one_line_per_schedule_and_nothing_is_cut(now, schedules):
    name = "a schedule with a name of one hundred characters, " * 2
    schedules(**{name: REPORT, "sweep": SWEEP})

    first, second = rows(cron("list"))
    assert (first[0], second[0]) == (name.strip(), "sweep")


def test_a_wide_terminal_shows_a_table(now, schedules, on_terminal):
    schedules(report=REPORT, sweep=SWEEP)

    assert on_terminal(100, "list").splitlines()[2:] == [
        "report     tests.app.tasks.mark   30 2 * * *         none yet    Sun 2026-03-08 03:00 EDT",
        "                                  At 02:30                       Sun 2026-03-08 07:00 UTC",
        "                                  America/New_York                                       ",
        "                                                                                         ",
        "sweep      tests.app.tasks.mark   every 0:15:00      none yet    Sat 2026-03-07 15:30 UTC",
    ]


def test_a_narrow_terminal_shows_one_schedule_below_the_other(now, schedules, on_terminal):
    schedules(report=REPORT, sweep=SWEEP)

    assert [line.rstrip() for line in on_terminal(80, "list").splitlines()] == [
        "schedule   report",
        "task       tests.app.tasks.mark",
        "when       30 2 * * *, At 02:30, America/New_York",
        "last tick  none yet",
        "next tick  Sun 2026-03-08 03:00 EDT, Sun 2026-03-08 07:00 UTC",
        "",
        "schedule   sweep",
        "task       tests.app.tasks.mark",
        "when       every 0:15:00",
        "last tick  none yet",
        "next tick  Sat 2026-03-07 15:30 UTC",
    ]


@pytest.mark.parametrize("arguments", [["list"], ["next"], ["next", "--around-dst"]], ids=" ".join)
def test_no_terminal_is_too_narrow_for_the_whole_name(now, schedules, on_terminal, arguments):
    name = "€" * 100
    schedules(**{name: REPORT})

    output = on_terminal(60, *arguments)
    assert output.count("€") in {100, 500, 1000}
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= 60


@pytest.mark.parametrize("arguments", [["next"], ["next", "--around-dst"]], ids=" ".join)
def test_ticks_fit_into_80_columns(now, schedules, on_terminal, arguments):
    schedules(report=REPORT)

    assert [line.split()[0] for line in on_terminal(80, *arguments).splitlines()[2:7]].count("report") >= 4


def test_colors_are_for_terminals_or_on_request(now, schedules):
    schedules(report=REPORT)

    assert "\x1b[" not in cron("list")
    assert "\x1b[" in cron("list", force_color=True)
    assert "\x1b[" in cron("list", stdout=Terminal())


# next


def test_next_tells_the_ticks_to_come_in_the_zone_and_in_utc(now, schedules):
    schedules(report=REPORT, sweep=SWEEP)

    assert rows(cron("next", "--count", "2")) == [
        ["report", "Sun 2026-03-08 03:00 EDT", "2026-03-08 07:00"],
        ["report", "Mon 2026-03-09 02:30 EDT", "2026-03-09 06:30", "23:30:00"],
        ["sweep", "Sat 2026-03-07 15:30 UTC", "2026-03-07 15:30"],
        ["sweep", "Sat 2026-03-07 15:45 UTC", "2026-03-07 15:45", "0:15:00"],
    ]


def test_next_tells_five_ticks_of_those_that_are_named(now, schedules):
    schedules(report=REPORT, sweep=SWEEP, off={**SWEEP, "enabled": False})

    assert [row[0] for row in rows(cron("next", "sweep", "off"))] == ["sweep"] * 5 + ["off (disabled)"] * 5


def test_around_dst_shows_the_tick_of_the_gap_and_the_one_after_the_repeated_hour(now, schedules):
    schedules(report=REPORT)

    assert rows(cron("next", "--around-dst")) == [
        ["report", "Fri 2026-03-06 02:30 EST", "2026-03-06 07:30"],
        ["report", "Sat 2026-03-07 02:30 EST", "2026-03-07 07:30", "1 day, 0:00:00"],
        ["02:00 EST becomes 03:00 EDT", "2026-03-08 07:00"],
        ["report", "Sun 2026-03-08 03:00 EDT", "2026-03-08 07:00", "23:30:00"],
        ["report", "Mon 2026-03-09 02:30 EDT", "2026-03-09 06:30", "23:30:00"],
        ["report", "Tue 2026-03-10 02:30 EDT", "2026-03-10 06:30", "1 day, 0:00:00"],
        ["report", "Fri 2026-10-30 02:30 EDT", "2026-10-30 06:30"],
        ["report", "Sat 2026-10-31 02:30 EDT", "2026-10-31 06:30", "1 day, 0:00:00"],
        ["02:00 EDT becomes 01:00 EST", "2026-11-01 06:00"],
        ["report", "Sun 2026-11-01 02:30 EST", "2026-11-01 07:30", "1 day, 1:00:00"],
        ["report", "Mon 2026-11-02 02:30 EST", "2026-11-02 07:30", "1 day, 0:00:00"],
        ["report", "Tue 2026-11-03 02:30 EST", "2026-11-03 07:30", "1 day, 0:00:00"],
    ]


def test_around_dst_shows_that_the_repeated_hour_counts_once(now, schedules):
    schedules(early={**REPORT, "cron": "30 1 * * *"})

    ticks = [row[1] for row in rows(cron("next", "--around-dst", "--count", "4")) if row[0] == "early"]
    assert [tick for tick in ticks if "2026-11-01" in tick] == ["Sun 2026-11-01 01:30 EDT"]


def test_around_dst_with_one_tick_shows_that_of_the_change(now, schedules):
    schedules(report=REPORT)

    ticks = [row[1] for row in rows(cron("next", "--around-dst", "--count", "1")) if row[0] == "report"]
    assert ticks == ["Sun 2026-03-08 03:00 EDT", "Sun 2026-11-01 02:30 EST"]


def test_around_dst_finds_the_few_ticks_of_a_rare_schedule(now, schedules):
    schedules(yearly={**REPORT, "cron": "0 0 1 1 *"})

    ticks = [row[1] for row in rows(cron("next", "--around-dst", "--count", "2")) if row[0] == "yearly"]
    assert ticks[:2] == ["Thu 2026-01-01 00:00 EST", "Fri 2027-01-01 00:00 EST"]


def test_a_clock_that_is_not_changed_is_told(now, schedules):
    schedules(sweep=SWEEP, tea={**REPORT, "timezone": "Asia/Kathmandu"})

    assert rows(cron("next", "--around-dst")) == [
        ["sweep", "The clock of UTC is not changed."],
        ["tea", "The clock of Asia/Kathmandu is not changed."],
    ]


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


@pytest.mark.parametrize("around", [[], ["--around-dst"]])
def test_next_tells_what_was_disabled_by_hand(store, now, schedules, around):
    schedules(report=REPORT, other=REPORT)
    disable(store, "report", now)

    names = [row[0] for row in rows(cron("next", *around)) if not row[0].startswith("02:00")]
    assert set(names) == {"report (disabled)", "other"}


def test_an_expression_means_the_same_to_the_command_and_to_the_workers(store, now, schedules):
    drawn = {**TASK, "cron": "H H * * *", "timezone": "UTC"}
    schedules(drawn=drawn)
    beat_at(store, now, drawn=drawn)

    (row,) = rows(cron("list"))
    assert row[-1] == f"{read('drawn', drawn).schedule.next_after(now):%a %Y-%m-%d %H:%M} UTC"
    assert nominal(Message.objects.get()) == read("drawn", drawn).schedule.next_after(now)
