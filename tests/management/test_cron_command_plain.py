"""`manage.py delayedq cron` without the extra `cli`: the same cells, in plain text."""

from __future__ import annotations

import sys
from importlib import reload

import pytest

from delayedq.management import plain, tables
from tests.management.given import REPORT, SWEEP, cron, rows


@pytest.fixture(autouse=True)
def _without_the_extra(monkeypatch):
    with monkeypatch.context() as patch:
        for package in ("rich", "cron_descriptor"):
            patch.setitem(sys.modules, package, None)
        reload(tables)
        assert tables.Table is plain.Table
        yield
    reload(tables)


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_the_list_has_the_same_cells(now, schedules):
    schedules(report=REPORT, sweep=SWEEP)

    assert rows(cron("list")) == [
        [
            "report",
            "tests.app.tasks.mark",
            "30 2 * * *, America/New_York",
            "none yet",
            "Sun 2026-03-08 03:00 EDT, Sun 2026-03-08 07:00 UTC",
        ],
        ["sweep", "tests.app.tasks.mark", "every 0:15:00", "none yet", "Sat 2026-03-07 15:30 UTC"],
    ]


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_ticks_have_theirs(now, schedules):
    schedules(report=REPORT)

    first, second = rows(cron("next", "report", "--count", "2"))
    assert first == ["report", "Sun 2026-03-08 03:00 EDT", "2026-03-08 07:00"]
    assert second == ["report", "Mon 2026-03-09 02:30 EDT", "2026-03-09 06:30", "23:30:00"]
    assert "02:00 EST becomes 03:00 EDT" in cron("next", "--around-dst")


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_without_schedules_it_says_so(now, schedules):
    schedules()

    assert cron("list").startswith("There are no schedules")


def columns(table, width):
    console = plain.Console(file=None, width=width)
    return console.measure(table, options=console.options.update(max_width=9)).maximum


def test_cells_of_several_lines_stay_below_each_other():
    table = plain.Table(box=plain.SIMPLE_HEAD, leading=1)
    for title in ("name", "when"):
        table.add_column(title)
    table.add_row(plain.Text("a", "bold"), plain.Text("\n").join([plain.Text("one"), plain.Text("two")]))
    table.add_row("second name")

    assert table.lines() == [
        "name          when",
        "------------------",
        "a             one",
        "              two",
        "",
        "second name",
    ]
    assert columns(table, 80) == 18


def test_a_grid_has_no_titles():
    grid = plain.Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_row("task", "x")
    grid.add_row()
    grid.add_row("when", "y")
    assert grid.lines() == ["task  x", "", "when  y"]
