"""`manage.py delayedq cron` fits its layout to the terminal; in a file nothing is cut."""

from __future__ import annotations

from io import StringIO

import pytest

from tests.management.given import REPORT, SWEEP, cron, rows

# Words and layout: what is asked of a database, other tests ask of each.
pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


class Terminal(StringIO):
    def isatty(self):
        return True


@pytest.fixture
def on_terminal(monkeypatch):
    """The output of the command on a terminal of that width, without escape codes of styles."""

    def show(width, *arguments):
        monkeypatch.setenv("COLUMNS", str(width))
        return cron(*arguments, stdout=Terminal(), no_color=True)

    return show


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
def test_names_are_complete_on_the_narrowest_terminal(now, schedules, on_terminal, arguments):
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
