"""`manage.py delayedq cron` without the extra `cli`: the same cells, but for expressions in words."""

from __future__ import annotations

import sys

import pytest

from tests.management.given import REPORT, SWEEP, cron, rows


@pytest.fixture(autouse=True)
def _without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cron_descriptor", None)


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
