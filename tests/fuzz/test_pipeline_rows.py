"""Rows of files, batches of a DataFrame and arguments of `run_pipeline` are taken as they are, or refused in words."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from importlib.util import find_spec

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.effort import refused, texts, tried
from tests.missing import missing

if find_spec("pyspark") is None:
    missing("pyspark", allow_module_level=True)

from delayedq.core.bounds import KEY_LENGTH, is_storable
from delayedq.core.serialization import load_call
from delayedq.exceptions import ArgumentsMismatch, InvalidMessage, InvalidOption, ReferenceGone
from delayedq.pipeline.management import values as arguments
from delayedq.pipeline.spark import load
from delayedq.pipeline.spark.rows import TYPES, Parameter, Recipe, Source, source_of
from delayedq.pipeline.spark.writing import offers

TIMES = ("0001-01-01T00:00:00", "9999-12-31T23:59:59.999999", "0001-01-01T00:00+14:00", "2026-03-29T02:30:00", "24:00")
words = texts | st.sampled_from(
    [*TIMES, "9" * 5_000, "1E999999999", "[" * 10_000, '{"a": NaN}', "sNaN", "\u0663", "{a}"]
)
NUMBERS = (10**400, -(10**400), 2**63, float("inf"), float("nan"))
cells = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(NUMBERS) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=6,
)


# Rows of a file


def recipes():
    sources = st.sampled_from(
        [Source(("a",)), Source(("b",)), Source(("a", "b"), "{a}-{b:0>4}"), Source(("a",), "{a:d}")]
    )
    types = st.sampled_from([None, *sorted(TYPES, key=str)])
    parameters = st.builds(Parameter, st.sampled_from("xyz"), sources, types, st.booleans(), st.booleans())
    return st.builds(
        lambda given, key, at, format_, zone: Recipe(
            queue="q", kind="k", priority=0, max_attempts=1, max_payload_bytes=1_000, parameters=tuple(given), key=key,
            at=at, at_format=format_, zone=zone,
        ),
        st.lists(parameters, max_size=3, unique_by=lambda one: one.name),
        st.none() | sources,
        st.none() | sources,
        st.sampled_from([None, None, "%Y-%m-%d", "%d.%m.%Y %H:%M %z", "%G-%V-%u", "%", "%Q"]),
        st.sampled_from([None, "UTC", "Australia/Sydney", "America/New_York"]),
    )  # fmt: skip


def taken(parameter, value, **others):
    return Recipe(
        queue="q", kind="k", priority=0, max_attempts=1, max_payload_bytes=100,
        parameters=(Parameter("x", Source(("a",)), parameter),), **others,
    ), [json.dumps({"a": value})]  # fmt: skip


@tried(200)
@example(*taken(float, 10**400))
@example(*taken(datetime, "0001-01-01T00:00:00", zone="Australia/Sydney"))
@example(*taken(datetime, "9999-12-31T23:59:59", zone="America/New_York"))
@example(*taken(int, json.loads("[" * 3_000 + "]" * 3_000)))
@example(taken(int, 1)[0], ['{"\\ud800": 1}'])
@given(recipes(), st.lists(st.dictionaries(st.sampled_from("ab") | texts, cells).map(json.dumps) | words, max_size=3))
def test_a_line_is_a_message_or_is_refused_with_the_line(recipe, lines):
    lines = [line.encode("utf-8", "replace").decode() for line in lines]  # as Spark reads them
    place = {"__file": "f", "__start": 0, "__position": 1}
    batch = pa.RecordBatch.from_pylist([{"value": line, **place} for line in lines] or [{"value": "", **place}])
    [checked] = load._Checks(recipe, lines=True)(iter([batch]))
    [names] = load._names(iter([batch]))
    assert all(is_storable(name) for name in names.column(0).to_pylist())
    assert checked.num_rows == batch.num_rows
    for row in checked.to_pylist():
        assert (row["reason"] is None) == (row["payload"] is not None) == (row["row"] is None)
        if row["payload"] is not None:
            with suppress(ArgumentsMismatch, ReferenceGone):
                load_call(row["payload"])
            assert row["key"] is None or (1 <= len(row["key"]) <= KEY_LENGTH and is_storable(row["key"]))


@tried(150)
@example("{a.b}", ["a", "a.b"])
@example("{a:9999999999}", ["a"])
@given(
    words | st.sampled_from(["{a}", "{a!r}", "{a[0]}", "{}", "{0}", "{a:{b}}", "{a:x}", "{b.__class__}"]),
    st.lists(st.sampled_from(["a", "b", "", "0", "a[0]", "b.__class__"]), max_size=4),
)
def test_a_template_is_refused_or_gives_texts_of_what_is_in_the_row(template, columns):
    with refused(InvalidOption):
        source = source_of(template, columns)
        with suppress(ValueError, TypeError):  # reasons of a row
            value = source.value(dict.fromkeys(columns, "zq7"))
            assert value in {"zq7", "'zq7'"} or "zq7" in value
            assert len(value) < 10_000


# Batches

ARRAYS = (
    pa.array(["x"]),
    pa.array(["a\0b"]),
    pa.array(["x" * 300]),
    pa.array(["x"]).dictionary_encode(),
    pa.array([None], pa.string()),
    pa.nulls(1),
    pa.array([b"\xff"]),
    pa.array([["x"]]),
    pa.array([{"a": 1}]),
    pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())),
    pa.array([True]),
    pa.array([7]),
    pa.array([2**40]),
    pa.array([1.5]),
    pa.array([float("nan")]),
    pa.array([Decimal("1.5")]),
    pa.array([date(1, 1, 1)]),
    pa.array([time(1)]),
    pa.array([timedelta(1)]),
    pa.array([datetime(2026, 1, 1, tzinfo=UTC)]),
    pa.array([10**18], pa.timestamp("us", tz="UTC")),
    pa.array([-(10**18)], pa.timestamp("us")),
)
NAMES = ("queue", "kind", "key", "priority", "max_attempts", "payload", "metadata", "scheduled_at")


@tried(200)
@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(ARRAYS)))
def test_a_batch_is_offers_or_its_column_is_named(columns):
    given_ = {"kind": pa.array(["k"]), "payload": pa.array(["{}"])} | columns
    with refused(InvalidMessage):
        made = offers(pa.RecordBatch.from_arrays(list(given_.values()), names=list(given_)), 1_000)
        [row] = made.to_pylist()
        assert row["kind"]
        assert is_storable(row["payload"])
        assert -100 <= row["priority"] <= 100


def test_no_error_shows_a_part_of_a_payload():
    for name in ("payload", "metadata"):
        given_ = {"kind": pa.array(["k"]), "payload": pa.array(["{}"]), name: pa.array(["zq7\0"])}
        with pytest.raises(InvalidMessage, match=f"{name}: a value is not") as caught:
            offers(pa.RecordBatch.from_arrays(list(given_.values()), names=list(given_)), 1_000)
        assert "zq7" not in str(caught.value)


# Arguments

NOW = datetime(2026, 3, 1, tzinfo=UTC)
given_texts = words | st.sampled_from(
    ["999999999d", "9" * 400 + "d", "1e9d", "-1d", "0s", "\u0663d", "1,2,", "1," + "9" * 30]
)


@tried(200)
@example("999999999d")
@example("9999-12-31")
@example("9999-12-31T23:59:59-14:00")
@example("1," + "9" * 30)
@given(given_texts | st.builds("{}{}".format, st.floats(0), st.sampled_from("smhdw")))
def test_an_argument_is_read_or_refused(text):
    with refused(ArgumentTypeError):
        assert timedelta() <= arguments.duration(text)
        NOW - arguments.duration(text) - arguments.duration(text)  # as steps do
    with refused(ArgumentTypeError):
        arguments.day(text) + timedelta(days=1)
    with refused(ArgumentTypeError):
        assert arguments.moment(text).tzinfo is UTC
    with refused(ArgumentTypeError):
        pa.array(arguments.ids(text), pa.int64())
    with refused(ArgumentTypeError):
        assert 0 < arguments.share(text) < 1
    with refused(ArgumentTypeError):
        assert all(arguments.pair(text))
