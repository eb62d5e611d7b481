"""Whole years of many zones, tick by tick, compared with an oracle that tries every minute of the local clock."""

from __future__ import annotations

from datetime import date
from operator import lt

import pytest

from delayedq.cron.expressions import Cron, ticks
from tests.cron.oracle import Year, expressions

pytestmark = pytest.mark.slow

EXPRESSIONS = expressions(320, seed=2013)
#: Each with what happens to its clock.
YEARS = {
    "America/New_York": (date(2013, 1, 1), date(2014, 1, 1)),
    "Europe/London": (date(2013, 1, 1), date(2014, 1, 1)),
    "Australia/Lord_Howe": (date(2013, 1, 1), date(2014, 1, 1)),  # by half an hour
    "Pacific/Apia": (date(2011, 1, 1), date(2012, 1, 1)),  # no 30 December
    "Pacific/Kiritimati": (date(1994, 7, 1), date(1995, 7, 1)),  # no 31 December 1994
    "Africa/Casablanca": (date(2024, 1, 1), date(2025, 1, 1)),  # back for Ramadan, then forth
    "Asia/Kathmandu": (date(1985, 7, 1), date(1986, 7, 1)),  # from 5:30 to 5:45 ahead
    "UTC": (date(2012, 1, 1), date(2013, 1, 1)),
}
#: Changes at odd times: the weeks around them.
ODD = {
    "America/St_Johns": (date(2010, 10, 1), date(2010, 12, 1)),  # at 00:01, back into the day before
    "America/Sao_Paulo": (date(2018, 10, 1), date(2018, 12, 1)),  # at midnight, forth
    "America/Havana": (date(2013, 3, 1), date(2013, 4, 1)),  # at midnight, forth
    "Atlantic/Azores": (date(2013, 10, 1), date(2013, 11, 1)),  # at 01:00, back to midnight
    "Asia/Amman": (date(2013, 12, 1), date(2014, 5, 1)),  # at 24:00 of a Thursday, forth
    "Antarctica/Troll": (date(2013, 3, 1), date(2013, 11, 1)),  # by two hours
    "Pacific/Kwajalein": (date(1969, 9, 1), date(1969, 11, 1)),  # back by 23 hours
}


def agree(zone, days, chosen):
    year = Year(zone, *days)
    assert year.zone.key == "UTC" or year.again or year.skipped
    for expression in chosen:
        cron = Cron(str(expression), year.zone)
        found = [int(tick.timestamp()) for tick in ticks(cron, year.after, year.until)]
        assert cron.wall_clock == expression.wall_clock, str(expression)
        assert found == year.expected(expression), str(expression)
        assert all(map(lt, found, found[1:])), str(expression)


def test_the_expressions_are_of_all_sorts():
    assert len({str(expression) for expression in EXPRESSIONS}) >= 300
    assert sum(expression.wall_clock for expression in EXPRESSIONS) >= 100
    assert sum(not expression.wall_clock for expression in EXPRESSIONS) >= 50
    assert sum(expression.second is not None for expression in EXPRESSIONS) >= 30
    assert sum(expression.ticks_a_day > 500 for expression in EXPRESSIONS) == 2


@pytest.mark.parametrize("zone", YEARS)
def test_all_ticks_of_a_year_are_those_of_the_walk(zone):
    agree(zone, YEARS[zone], EXPRESSIONS)


@pytest.mark.parametrize("zone", ODD)
def test_so_are_those_where_clocks_are_changed_at_odd_times(zone):
    agree(zone, ODD[zone], EXPRESSIONS[::2])
