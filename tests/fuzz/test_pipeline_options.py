"""What Spark passes to `format("delayedq")`, as texts, JSON of a checkpoint and an address, is read or refused."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from importlib.util import find_spec

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.effort import refused, texts, tried
from tests.missing import missing

if find_spec("pyspark") is None:
    missing("pyspark", allow_module_level=True)

from pyspark.sql.pandas.types import to_arrow_schema

from delayedq.core.bounds import is_storable
from delayedq.exceptions import DatabaseUnreachable, InvalidOption, PipelineError
from delayedq.pipeline.spark import reading, streaming, writing
from delayedq.pipeline.spark.connecting import Address, arrow, connect
from delayedq.pipeline.spark.schema import MESSAGES

DEEP = "[" * 100_000
values = texts | st.sampled_from([
    DEEP, "[]", ",", " , ", '["a", 7]', '["\\ud800"]', '["\\u0000"]', "[null]", '{"a": 1}', "waiting", "failed,failed",
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01", "2026-01-01T00:00Z", "2026-02-30T00:00Z",
    "\u0661", "1_0", "9" * 5_000, "-0", "1e-9", "inf", "nan", "00000003-0000001B-1", "'; SELECT 1 --", "true", "yes",
])  # fmt: skip
ADDRESS = {"address": "env:DELAYEDQ_FUZZ_URL"}
READ = ("states", "kinds", "queues", "since", "until", "snapshot", "partitions", "lateness", "columns", "load_id")
WRITE = ("load_id", "source", "max_payload_bytes", "once", "overwrite")


def options(names):
    return st.dictionaries(st.sampled_from(names) | texts, values, max_size=4).map(lambda given: given | ADDRESS)


# Options


@pytest.fixture
def postgresql_url(monkeypatch):
    monkeypatch.setenv("DELAYEDQ_FUZZ_URL", "postgresql://localhost/db")


@tried(200)
@example(ADDRESS | {"kinds": DEEP})
@example(ADDRESS | {"queues": '["\\u0000"]'})
@example(ADDRESS | {"since": "0001-01-01T00:00:00+14:00"})
@given(options(READ))
def test_options_of_a_read_are_taken_or_named(options):
    with refused(InvalidOption):
        chosen = reading.selection(options)
        assert all(is_storable(name) for name in (*chosen.kinds, *chosen.queues))
        assert 1 <= chosen.partitions <= reading.MOST_PARTITIONS
        assert all(moment is None or moment.tzinfo is UTC for moment in (chosen.since, chosen.until))
        json.loads(reading.settings(chosen, reading.IdSpan()))
        reading.columns(options)
        reading.MessageReader(chosen, MESSAGES)


@pytest.mark.parametrize("given", ["[]", ",", "[ ]", " , ,"])
@pytest.mark.parametrize("option", ["states", "kinds", "queues", "columns"])
def test_a_list_without_names_never_means_everything(option, given):
    read = reading.columns if option == "columns" else reading.selection
    with pytest.raises(InvalidOption, match=f"{option}: names separated by commas"):
        read(ADDRESS | {option: given})


@tried(50)
@given(options(READ))
def test_options_of_a_stream_are_taken_or_named(options):
    os.environ.setdefault("DELAYEDQ_FUZZ_URL", "postgresql://localhost/db")
    with refused(InvalidOption):
        chosen = reading.stream_selection(options)
        assert not chosen.live
        assert not chosen.snapshot


@tried(100)
@example(ADDRESS | {"load_id": "x", "max_payload_bytes": "9" * 5_000})
@example(ADDRESS | {"load_id": "x", "once": "yes"})
@given(options(WRITE))
def test_options_of_a_write_are_taken_or_named(options):
    with refused(InvalidOption):
        chosen = writing.load_options(options)
        assert is_storable(chosen.load_id)
        assert is_storable(chosen.source)
        assert 0 <= chosen.max_payload_bytes < 2**31
        assert options.get("once", "false").lower() == str(chosen.once).lower()


# Checkpoints

GOOD = {"settled": 7, "next": 9, "moment": "2026-01-01T00:00:00+00:00", "recorded": "-infinity"}
parts = (
    st.none()
    | st.integers()
    | st.floats()
    | values
    | st.sampled_from([*GOOD.values(), True, 2**63, "0001-01-01T00:00:00+00:00", "2026-01-01T00:00:00", [], {}])
)
offsets = (
    st.dictionaries(st.sampled_from([*GOOD]), parts).map(lambda given: GOOD | given)
    | st.dictionaries(st.sampled_from([*GOOD]), parts)
    | parts
)


@tried(200)
@example("postgresql", GOOD | {"recorded": "0001-01-01T00:00:00+00:00"}, GOOD)
@example("sqlite", {"moment": "2026-01-01T00:00:00"}, GOOD)
@example("sqlite", {"moment": "-infinity"}, {"moment": "-infinity"})
@example("postgresql", {"moment": "-infinity"}, GOOD)
@given(st.sampled_from(["postgresql", "sqlite"]), offsets, offsets)
def test_a_checkpoint_is_read_or_refused(vendor, start, end):
    """What it says becomes settings of a transaction, or times: nothing else raises, also in the first statement."""
    address = Address("sqlite:/nowhere")
    reader = (streaming.TransactionReader if vendor == "postgresql" else streaming.TimeReader)(
        reading.ReadSelection(address, states=("failed",)), MESSAGES
    )
    with refused(PipelineError):
        for part in reader.partitions(start, end):
            if isinstance(part, streaming.TransactionSpan):
                found = json.loads(reader._settings(part))
                assert (int(found["begun"]), int(found["settled"])) == (start["settled"], end["settled"])
            else:
                assert reader._selected(part).until == datetime.fromisoformat(end["moment"])
    if start != GOOD:
        with refused(PipelineError):
            reader.latestOffset(start, None)


# Addresses

RESERVED = "@:/?#&=%[] \\'"
secrets = st.text(alphabet=RESERVED + "ab", max_size=6).map(lambda text: f"zq7{text}zq7")


@tried(20)
@example("postgresql", "zq7@zq7")
@example("mysql", "zq7/zq7")
@example("query", "zq7&zq7")
@given(st.sampled_from(["postgresql", "mysql", "query"]), secrets)
def test_no_error_shows_a_part_of_a_password(kind, secret):
    """Whatever it has in it, and was not quoted: drivers tell of the part that they can't read."""
    forms = {
        "mysql": "mysql://u:{}@127.0.0.1:1/db",
        "query": "postgresql://127.0.0.1:1/db?connect_timeout=1&password={}",
    }
    os.environ["DELAYEDQ_FUZZ_URL"] = forms.get(kind, "postgresql://u:{}@127.0.0.1:1/db?connect_timeout=1").format(
        secret
    )
    for opener in (connect,) if kind == "mysql" else (connect, arrow):
        with pytest.raises(DatabaseUnreachable) as caught:
            opener(Address(ADDRESS["address"]))
        assert "zq7" not in str(caught.value)


@tried(100)
@example("file:a\0b")
@example("env:a\0b")
@example("file:/")
@example("file:/etc/passwd")
@given(st.builds("{}:{}".format, st.sampled_from(["env", "file", "service", "sqlite", "postgresql"]), values) | values)
def test_an_address_leads_to_a_url_or_is_refused(reference):
    with refused(InvalidOption), refused(DatabaseUnreachable):
        assert Address(reference).vendor in {"postgresql", "mysql", "sqlite"}


def test_bytes_that_are_no_text_are_no_url(tmp_path):
    (tmp_path / "url").write_bytes(b"postgresql://u:\xff\xfe@h/db")
    with pytest.raises(DatabaseUnreachable, match="can't be read: UnicodeDecodeError"):
        Address(f"file:{tmp_path}/url").resolve()


@pytest.mark.parametrize("name", ["a%20b?c#d.db", "a?mode=memory", "é 'x'.db", "a%00.db"])
def test_a_file_of_sqlite_is_the_one_that_is_named(tmp_path, name):
    with closing(sqlite3.connect(tmp_path / name)) as made:
        made.execute("CREATE TABLE named (id)")
    with connect(Address(f"sqlite:{tmp_path}/{name}")) as connection:
        assert connection.rows("SELECT name FROM sqlite_master") == [("named",)]


def test_the_name_of_a_service_is_one_value():
    assert Address("service:a host='evil' \\").resolve() == r"service='a host=\'evil\' \\'"


# Rows

cells = (
    st.none()
    | st.integers()
    | st.floats()
    | st.binary(max_size=4)
    | texts
    | st.sampled_from(
        [2**40, -1, 5, "2026-01-01 00:00:00", "2026-01-01T00:00:00Z", "0001-01-01 00:00:00", "10000-01-01"]
    )
)
TARGET = to_arrow_schema(MESSAGES, timezone="UTC")
ROW = {
    field.name: "2026-01-01 00:00:00" if pa.types.is_timestamp(field.type) else "x" if field.type == pa.string() else 7
    for field in TARGET
}


@tried(200)
@example("finished_at", 5)
@example("priority", 2**40)
@example("id", 0.5)
@given(st.sampled_from(TARGET.names), cells)
def test_a_cell_is_read_as_it_is_or_its_column_is_named(name, value):
    """SQLite keeps a value of any type in any column."""
    with refused(PipelineError, repr(name), type(value).__name__):
        batch = reading.as_batch([tuple((ROW | {name: value}).values())] * 2, TARGET)
        [read, same] = batch.column(name).cast(pa.string() if isinstance(value, str) else TARGET.field(name).type)
        assert read == same
        if not isinstance(value, str | bytes):
            assert read.as_py() == value
