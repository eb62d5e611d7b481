"""docs/cron.md names every key, and its tables of expressions, clock changes and missed ticks are true."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from delayedq.cron.definitions import KEYS
from delayedq.cron.expressions import Cron, ticks
from delayedq.cron.ticks import Misfire, still_due
from delayedq.models import CronTick, Message
from tests.worker.conftest import eventually

GUIDE = (Path(__file__).parents[2] / "docs" / "cron.md").read_text()
NEW_YORK = ZoneInfo("America/New_York")
SPRING, AUTUMN = date(2013, 3, 10), date(2013, 11, 3)


def table(title):
    """The rows of the table whose first title begins with this text, as cells without backticks."""
    _, lines = GUIDE.split(f"| {title}", 1)
    rows = [line for line in lines.split("\n\n", 1)[0].splitlines()[2:] if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def blocks():
    return re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def ticks_on(day, expression):
    midnight, end = (datetime.combine(one, time(), NEW_YORK) for one in (day, day + timedelta(days=1)))
    second = timedelta(seconds=1)
    found = ticks(Cron(expression, NEW_YORK), midnight.astimezone(UTC) - second, end.astimezone(UTC) - second)
    return [f"{tick.astimezone(NEW_YORK):%H:%M %Z}" for tick in found]


def test_the_guide_names_every_key_of_a_definition():
    told = {key for row in table("Key") for key in re.findall(r"`(\w+)`", row[0])}

    assert told == set(KEYS)


def test_every_expression_of_the_guide_is_valid():
    expressions = [expression for row in table("Expression") for expression in re.findall(r"`([^`]+)`", row[0])]

    assert len(expressions) > 15
    for expression in expressions:
        assert Cron(expression, NEW_YORK, seed="report").next_after(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("expression", "spring", "autumn"),
    [
        ("30 2 * * *", ["03:00 EDT"], ["02:30 EST"]),
        ("30 1 * * *", ["01:30 EST"], ["01:30 EDT"]),
        ("0,30 0-5 * * *", 10, 12),
        ("*/15 * * * *", 92, 100),
        ("0 */2 * * *", ["00:00 EST", "04:00 EDT", "06:00 EDT"], ["00:00 EDT", "02:00 EST", "04:00 EST"]),
    ],
)
def test_the_guides_table_of_clock_changes_is_true(expression, spring, autumn):
    assert any(row[0] == f"`{expression}`" for row in table("New York"))
    for day, expected in ((SPRING, spring), (AUTUMN, autumn)):
        found = ticks_on(day, expression)
        assert (len(found) if isinstance(expected, int) else found[: len(expected)]) == expected


def test_the_guides_table_of_missed_ticks_is_true():
    now = datetime(2026, 5, 20, 15, 20, tzinfo=UTC)
    missed = [now.replace(hour=hour, minute=0) for hour in range(10, 16)]
    said = {}
    for name, *cells in table("`misfire` | When"):
        said[name.strip('`"')] = [[int(hour) for hour in re.findall(r"(\d\d):00", cell)] for cell in cells]

    assert said.keys() == set(Misfire)
    for misfire in Misfire:
        for deadline, hours in zip((None, timedelta(hours=2)), said[misfire], strict=True):
            assert [tick.hour for tick in still_due(missed, misfire, deadline, now)] == hours


def test_the_example_of_a_bare_queue_runs(alias):
    (example,) = (block for block in blocks() if "install_daily_schedule" in block)
    before, close = example.split("schedule.close()")
    names = {}
    exec(before, names)
    eventually(Message.objects.exists)
    exec(f"schedule.close(){close}", names)

    assert Message.objects.filter(key__startswith="digest/").count() == CronTick.objects.count() > 0
