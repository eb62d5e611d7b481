"""Rows of somebody who may write to the tables and not to the code: each column with whatever a database lets in."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from django.db import DatabaseError, connections, models, transaction

from tests.fuzz.effort import NASTY

NOW = datetime(2026, 3, 8, 6, 59, 30, tzinfo=UTC)

called = []


def trap(*args, **kwargs):
    """Is imported and registered nowhere: whatever calls it was led here by a row."""
    called.append((args, kwargs))


PATHS = (f"{__name__}.trap", f"{__name__}:trap", "os.system", "builtins.eval", "subprocess.run", "tests.app.tasks")
DEEP = 3_000
JSON = (
    "", "null", "7", "NaN", "[", "[]", "{}", '"\\ud800"', "1e999", "9" * 5_000, "[" * 100_000, "\ufeff{}",
    '{"args":[{"$":"int","v":"' + "f" * 9_000 + '"}]}',
    '{"args":[' + "[" * DEEP + "]" * DEEP + "]}",
    '{"args":[' + '{"$":"tuple","v":[' * DEEP + "]}" * DEEP + "]}",
    json.dumps({"args": [{"$": "enum", "v": [f"{__name__}:trap", "__call__"]}]}),
    json.dumps({"args": [{"$": "model", "v": {"model": "auth.user", "pk": {"a": 1}, "db": "nowhere"}}]}),
    json.dumps({"args": [{"$": "model", "v": {"model": "auth.user", "pk": 10**30}}]}),
    json.dumps({"kwargs": {"\u0000": 1, "self": 2}}),
    json.dumps([{"attempt": [], "failed_at": 7, "exception": {}, "message": None, "traceback": 1e300}]),
)  # fmt: skip
OWN = (
    "channel", "delayedq.channel", "delayedq.expires", "delayedq.deadline", "delayedq.started", "delayedq.parent",
    "delayedq.root", "delayedq.flow", "delayedq.step", "delayedq.step_deadline", "cron", "delayedq.window",
)  # fmt: skip
ODD = (None, True, -1, 10**40, 1e308, "x", "", [], {}, [[]], {"schedule": 1, "nominal_at": "x", "overlap": "wait"})
METADATA = (*JSON, *(json.dumps({name: value}) for name in OWN for value in ODD), '{"delayedq.expires":NaN}')
TIMES = (
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    NOW - timedelta(days=36_500),
)
#: Times that are none of Python's. SQLite takes anything in any column: see docs/SECURITY.md.
RAW_TIMES = {"postgresql": ("-infinity", "infinity", "4713-01-01 BC", "200000-01-01")}
LARGEST = {"SmallIntegerField": 2**15 - 1, "IntegerField": 2**31 - 1}


def values(field, vendor):
    """What to put into a column."""
    kind = field.get_internal_type()
    if field.name == "metadata":
        return METADATA
    most = LARGEST.get(kind, 2**63 - 1)
    by_kind = {
        "TextField": (*JSON, *NASTY),
        "CharField": [text[: field.max_length] for text in (*NASTY, *PATHS, "x" * 300)],
        "DateTimeField": (None, *TIMES, *RAW_TIMES.get(vendor, ())),
    }
    return by_kind.get(kind, (None, 0, -1, most, most - 1, -most - 1))


def usual(field):
    """What to put into the columns beside it, unless the caller says."""
    kind = field.get_internal_type()
    if field.null:
        return None
    if field.has_default():
        return field.get_default()
    return {"DateTimeField": NOW, "CharField": "x", "TextField": "{}", "BooleanField": False}.get(kind, 1)


def insert(alias, model, row):
    """True if the database lets it in. By a statement, as somebody with a shell of the database would."""
    connection = connections[alias]
    adapt = connection.ops.adapt_datetimefield_value
    given = {field.column: usual(field) for field in model._meta.concrete_fields if not is_counted(field)} | row
    given = {name: adapt(value) if isinstance(value, datetime) else value for name, value in given.items()}
    names = ", ".join(map(connection.ops.quote_name, given))
    try:
        with transaction.atomic(using=alias), connection.cursor() as cursor:
            places = ", ".join(["%s"] * len(given))
            cursor.execute(f"INSERT INTO {model._meta.db_table} ({names}) VALUES ({places})", [*given.values()])
    except (DatabaseError, ValueError, OverflowError, UnicodeError):
        return False
    return True


def is_counted(field):
    return isinstance(field, models.AutoField)
