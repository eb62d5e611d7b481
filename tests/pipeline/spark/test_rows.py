"""What becomes of a row: a message for a task, or reasons."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from delayedq.core.serialization import load_call
from delayedq.exceptions import InvalidOption
from delayedq.pipeline.spark.rows import Parameter, Recipe, Source, check, moment, read, source_of

COLUMNS = ["year", "month", "day", "carrier", "flight", "at"]
ROW = {"year": "2013", "month": "1", "day": "9", "carrier": "UA", "flight": "1545", "at": "2013-01-09T05:15"}


def recipe(**changes):
    given = {"queue": "default", "kind": "tests.app.tasks.remind", "priority": 0, "max_attempts": 8}
    return Recipe(**given, **{"max_payload_bytes": 1000} | changes)


def argument(name, type_=None, **changes):
    return Parameter(name, Source((name,)), type_, **changes)


def test_a_row_becomes_the_message_that_the_call_would_store():
    made = check(
        ROW,
        recipe(
            parameters=(argument("flight", int), argument("carrier", str)),
            key=source_of("{carrier}{flight}/{year}-{month:0>2}-{day:0>2}", COLUMNS),
            at=source_of("at", COLUMNS),
            zone="America/New_York",
        ),
    )

    assert made.reason is None
    assert made.payload == '{"kwargs":{"carrier":"UA","flight":1545}}'
    assert made.key == "UA1545/2013-01-09"
    assert made.scheduled_at == datetime(2013, 1, 9, 10, 15, tzinfo=UTC)


def test_all_that_is_wrong_with_a_row_is_told_with_the_row():
    row = ROW | {"flight": "15x", "carrier": None, "at": "soon"}

    made = check(
        row,
        recipe(
            parameters=(argument("flight", int), argument("carrier", str)),
            key=source_of("{carrier}{flight}", COLUMNS),
            at=source_of("at", COLUMNS),
        ),
    )

    assert made.reason == (
        "key: column carrier is empty; time: is not a time in ISO 8601; "
        "flight: is not a whole number; carrier: is empty"
    )
    assert '"flight": "15x"' in made.row
    assert (made.payload, made.key, made.scheduled_at) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        ("7", int, 7),
        (" -7 ", int, -7),
        ("7", float, 7.0),
        ("1e3", float, 1000.0),
        ("No", bool, False),
        ("1", bool, True),
        ("0.10", Decimal, Decimal("0.10")),
        ("2013-01-09", date, date(2013, 1, 9)),
        ("05:15", time, time(5, 15)),
        ("90.5", timedelta, timedelta(seconds=90.5)),
        ("2f6d1c0e-0000-4000-8000-000000000000", UUID, UUID("2f6d1c0e-0000-4000-8000-000000000000")),
        ("[1, 2]", list, [1, 2]),
        ('{"a": 1}', dict, {"a": 1}),
        (" x ", str, " x "),
        ("7", None, "7"),
        (8, float, 8.0),
    ],
)
def test_a_text_is_read_as_what_the_parameter_is_annotated_with(text, type_, value):
    found = read(text, type_)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "type_", "reason"),
    [
        ("7.0", int, "a whole number"),
        ("nan", float, "a number"),
        ("maybe", bool, "true or false"),
        ("ten", Decimal, "a decimal number"),
        ("9/1/2013", date, "a date"),
        ("1", list, "a JSON list"),
        ("[" * 9999, list, "a JSON list"),
        ("1e300", timedelta, "a number of seconds"),
        (True, int, "is bool, not a whole number"),
        (7, str, "is int, not a text"),
    ],
)
def test_what_does_not_read_as_its_type_is_a_reason(value, type_, reason):
    with pytest.raises(ValueError, match=reason):
        read(value, type_)


def test_an_empty_column_leaves_the_argument_to_its_default():
    parameters = (argument("a", int, required=False), argument("b", int, nullable=True))

    made = check({"a": None, "b": None}, recipe(parameters=parameters))

    assert load_call(made.payload) == ([], {"b": None})


def test_a_time_without_a_zone_is_refused_unless_one_is_named():
    with pytest.raises(ValueError, match="--timezone"):
        moment("2013-01-09T05:15", None)
    assert moment("2013-01-09T05:15Z", None) == datetime(2013, 1, 9, 5, 15, tzinfo=UTC)


def test_local_times_around_the_changes_of_clocks():
    zone = "America/New_York"

    with pytest.raises(ValueError, match="does not exist in America/New_York"):
        moment("2013-03-10T02:30", zone)
    assert moment("2013-03-10T03:00", zone).astimezone(UTC).hour == 7
    assert moment("2013-11-03T01:30", zone).astimezone(UTC) == datetime(2013, 11, 3, 5, 30, tzinfo=UTC)


def test_a_time_of_another_form_is_read_by_its_format():
    assert moment("2013-1-9 0515", "UTC", "%Y-%m-%d %H%M") == datetime(2013, 1, 9, 5, 15, tzinfo=UTC)
    with pytest.raises(ValueError, match="of the form %H"):
        moment("noon", "UTC", "%H")


@pytest.mark.parametrize("text", ["0001-01-01T00:00+14:00", "9999-12-31T23:59-12:00"])
def test_a_time_beyond_all_time_is_refused(text):
    with pytest.raises(ValueError, match="outside the range of times"):
        moment(text, None)


@pytest.mark.parametrize("text", ["nothing", "{nothing}", "{carrier.x}", "{carrier!r:{nothing}}", "{", ""])
def test_a_source_names_columns(text):
    with pytest.raises(InvalidOption):
        source_of(text, COLUMNS)


@pytest.mark.parametrize(
    ("key", "reason"), [("", "is empty"), (None, "is empty"), ("x" * 201, "201 characters"), ("a\0b", "NUL")]
)
def test_a_key_that_no_message_can_have_is_refused(key, reason):
    made = check({"carrier": key}, recipe(key=source_of("carrier", COLUMNS)))

    assert made.reason.startswith("key: ")
    assert reason in made.reason


def test_a_payload_over_the_limit_is_refused():
    made = check({"a": "x" * 2000}, recipe(parameters=(argument("a"),)))

    assert made.reason == "payload: takes more than 1,000 bytes"
