"""`manage.py delayedq cron next`: the next ticks, and those around clock changes (DST)."""

from __future__ import annotations

import pytest

from tests.cron.given import disable
from tests.management.given import REPORT, SWEEP, cron, rows

# Words and layout: what is asked of a database, other tests ask of each.
pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


def test_next_shows_coming_ticks_in_the_zone_and_in_utc(now, schedules):
    schedules(report=REPORT, sweep=SWEEP)

    assert rows(cron("next", "--count", "2")) == [
        ["report", "Sun 2026-03-08 03:00 EDT", "2026-03-08 07:00"],
        ["report", "Mon 2026-03-09 02:30 EDT", "2026-03-09 06:30", "23:30:00"],
        ["sweep", "Sat 2026-03-07 15:30 UTC", "2026-03-07 15:30"],
        ["sweep", "Sat 2026-03-07 15:45 UTC", "2026-03-07 15:45", "0:15:00"],
    ]


def test_next_shows_five_ticks_of_the_named_schedules(now, schedules):
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


def test_a_zone_without_clock_changes_is_reported(now, schedules):
    schedules(sweep=SWEEP, tea={**REPORT, "timezone": "Asia/Kathmandu"})

    assert rows(cron("next", "--around-dst")) == [
        ["sweep", "The clock of UTC does not change."],
        ["tea", "The clock of Asia/Kathmandu does not change."],
    ]


@pytest.mark.parametrize("around", [[], ["--around-dst"]])
def test_next_marks_schedules_that_an_operator_disabled(store, now, schedules, around):
    schedules(report=REPORT, other=REPORT)
    disable(store, "report", now)

    names = [row[0] for row in rows(cron("next", *around)) if not row[0].startswith("02:00")]
    assert set(names) == {"report (disabled)", "other"}
