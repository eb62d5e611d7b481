"""Files of a lake that are damaged, or written by others: they are read, or named in an error, and at once.

Whoever may write to the lake may change rows; what is tested here is that they do no more than that.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.effort import EFFORT, refused, texts, tried
from tests.missing import missing

if find_spec("deltalake") is None:
    missing("pyspark", allow_module_level=True)

import pyarrow as pa
from pyarrow import parquet

from delayedq.core.bounds import is_storable
from delayedq.core.errors import last_error
from delayedq.core.lifecycle import FinalOutcome
from delayedq.exceptions import LakeUnusable
from delayedq.models import FinishedMessage
from delayedq.pipeline.archived import as_ended
from delayedq.pipeline.lake import storable
from delayedq.pipeline.lake.columns import ARROW
from delayedq.pipeline.lake.damage import is_readable
from delayedq.pipeline.lake.parquet_files import Filter, as_dicts
from delayedq.pipeline.lake.parquet_files import read as read_file
from delayedq.pipeline.lake.rows import WantedRows, read
from delayedq.pipeline.lake.side_table import RecordedSteps
from delayedq.pipeline.lake.table import LakeTable
from tests.pipeline.lake.files import NOON, publish, row

#: What a value of the log may become.
ODD = (
    None, True, -1, 10**30, 1e300, "x", "", "../../x.parquet", "/etc/passwd", "file:///etc/passwd", [], {}, "\x00",
    "NaN", float("nan"), "9999-99-99", "+20000-01-01T00:00:00Z", {"a": 1}, ...,
)  # fmt: skip


def used(table, *, ids=(1, 10)):
    """As all readers do. Returns the rows."""
    snapshot = LakeTable(table.path).snapshot()
    wanted = WantedRows(datetime(2026, 1, 1, tzinfo=UTC), None, {"source": ["app"], "id": ids})
    files = wanted.files(snapshot)
    assert len({file.day for file in files}) <= len(files)
    assert snapshot.row_count + snapshot.last("app") >= 0
    table.unneeded(datetime(2026, 1, 1, tzinfo=UTC))
    return [found for part in read(table, files, wanted) for found in as_dicts(table.path, part)]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    made = LakeTable(str(tmp_path_factory.mktemp("fuzzed") / "lake"))
    made.create()
    publish(made, 1, [row(number, key=f"k{number}", errors="[]") for number in range(30)])
    publish(made, 2, [row(40)])
    return made


# The log


def places(value, before=()):
    """The ways to all parts of a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inner:
        yield (*before, name)
        yield from places(part, (*before, name))


def changed(value, place, part):
    """With another part at that place; `...`: without it."""
    value = json.loads(json.dumps(value))
    *way, last = place
    inner = value
    for name in way:
        inner = inner[name]
    if part is ...:
        del inner[last]
    else:
        inner[last] = part
    return value


def spoiled(text, chosen):
    """The text of a version, with one value changed, also within the statistics of a file, which are JSON in a text."""
    lines = [json.loads(line) for line in text.splitlines()]
    number = chosen.randrange(len(lines))
    line, odd = lines[number], chosen.choice(ODD)
    if "add" in line and chosen.random() < 0.5:
        statistics = json.loads(line["add"]["stats"])
        line["add"]["stats"] = json.dumps(changed(statistics, chosen.choice([*places(statistics)]), odd))
    else:
        lines[number] = changed(line, chosen.choice([*places(line)]), odd)
    return "\n".join(map(json.dumps, lines))


@tried(80)
@given(st.integers(0, 2), st.randoms(use_true_random=False))
def test_a_log_is_read_or_named(table, version, chosen):
    file = Path(table.path, "_delta_log", f"{version:020}.json")
    before = file.read_text()
    try:
        file.write_text(spoiled(before, chosen))
        with refused(LakeUnusable):
            used(table)
    finally:
        file.write_text(before)


def rewrite(table, version, change):
    """The lines of a version, each changed by a function."""
    file = Path(table.path, "_delta_log", f"{version:020}.json")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        change(line)
    file.write_text("\n".join(map(json.dumps, lines)))


@pytest.fixture
def lake(tmp_path):
    made = LakeTable(str(tmp_path / "lake"))
    made.create()
    publish(made, 1, [row(number) for number in range(3)])
    return made


@pytest.mark.parametrize("path", ["../../etc/x.parquet", "/etc/x.parquet", "file:///etc/x.parquet", "a/../../b"])
def test_no_file_outside_of_the_lake_is_part_of_it(lake, path):
    """Spark would read it."""
    rewrite(lake, 1, lambda line: line.get("add", {}).update(path=path))
    with pytest.raises(LakeUnusable, match=r"a file that delayedq has not written|can't be used"):
        lake.snapshot()


@pytest.mark.parametrize(
    ("feature", "reader"), [("deletionVectors", 3), ("typeWidening", 3), ("columnMapping", 3), ("columnMapping", 2)]
)
def test_what_other_engines_hide_in_the_files_is_never_shown(lake, feature, reader):
    """Rows that they have deleted are in the files still: who reads these has to know, or to refuse."""
    features = {"readerFeatures": [feature], "writerFeatures": [feature]} if reader == 3 else {}
    protocol = {"minReaderVersion": reader, "minWriterVersion": 7 if features else 5, **features}
    Path(lake.path, "_delta_log", f"{2:020}.json").write_text(json.dumps({"protocol": protocol}))
    with pytest.raises(LakeUnusable, match=f"Another engine has enabled {feature}"):
        lake.snapshot()


@pytest.mark.parametrize("feature", ["v2Checkpoint", "vacuumProtocolCheck", "timestampNtz"])
def test_features_that_change_no_file_are_read(lake, feature):
    named = {"readerFeatures": [feature], "writerFeatures": [feature]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **named}
    Path(lake.path, "_delta_log", f"{2:020}.json").write_text(json.dumps({"protocol": protocol}))
    assert lake.snapshot().row_count == 3


def test_files_of_a_side_table_without_statistics_are_read(lake):
    """Other engines need not write any."""
    steps = RecordedSteps(lake.path)
    given_ = {"kind": "k", "generation": 0, "name": "n", "result": "7", "recorded_at": NOON}
    for message_id in (1, 2):
        steps.add("app", 1, [{"message_id": message_id, **given_}])
        rewrite(steps, message_id, lambda line: line.get("add", {}).pop("stats", None))
    assert [found["message_id"] for found in steps.rows("app", [2])] == [2]
    assert (steps.count(), list(steps.faults()), list(steps.compact(2**20))) == (0, [], [])


# Files

#: In another process, which damaged bytes may end.
READER = """
import random, sys
from pathlib import Path
import pyarrow.compute as pc
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from delayedq.exceptions import LakeUnusable
from delayedq.pipeline.lake.columns import ARROW
from delayedq.pipeline.lake.parquet_files import Filter, read

directory, tries, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
schema = ARROW.remove(ARROW.get_field_index("day"))
store, file = SubTreeFileSystem(directory, LocalFileSystem()), Path(directory, "file.parquet")
whole, chosen = file.read_bytes(), random.Random(seed)
footer = int.from_bytes(whole[-8:-4], "little")
true = read(directory, store, "file.parquet", schema)
wanted = Filter(pc.field("source").isin(["app"]), ["source"])
for _ in range(tries):
    spoiled = bytearray(whole)
    for _ in range(chosen.choice([1, 1, 2, 8])):
        place = chosen.randrange(len(spoiled) - footer - 8 if chosen.random() < 0.7 else 0, len(spoiled))
        spoiled[place : place + chosen.choice([1, 1, 1, 9])] = chosen.randbytes(chosen.choice([1, 1, 1, 4]))
    file.write_bytes(spoiled)
    try:
        read(directory, store, "file.parquet", schema, wanted)
    except LakeUnusable as error:
        assert str(error).startswith(f"The file {directory}/file.parquet can't be read: ")
print("done")
"""


def written(path, rows, **options):
    parquet.write_table(rows, path, **options)
    return path


def arrow(*rows):
    return pa.Table.from_pylist(list(rows), ARROW).drop_columns(["day"])


@pytest.mark.timeout(100 * EFFORT)
def test_damaged_bytes_end_no_process(tmp_path):
    """In pyarrow 26, `read_table` with a filter is ended by one of about 400 damaged footers, or waits for ever."""
    given_ = [row(number, key=f"k{number}", errors="[]") for number in range(50)]
    written(tmp_path / "file.parquet", arrow(*given_), write_page_checksum=True)
    seed = "7" if EFFORT == 1 else str(random.randrange(10**9))
    command = [sys.executable, "-c", READER, str(tmp_path), str(400 * EFFORT), seed]
    told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=90 * EFFORT)
    assert told.stdout == "done\n", (seed, told.returncode, told.stderr[-800:])


def files(directory):
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    return SubTreeFileSystem(str(directory), LocalFileSystem())


SCHEMA = ARROW.remove(ARROW.get_field_index("day"))


def test_a_page_that_does_not_fit_its_checksum_is_not_shown(tmp_path):
    """A flipped bit in a text would be read as another text."""
    path = written(tmp_path / "f", arrow(row(1, payload="zq7" * 9)), compression="none", write_page_checksum=True)
    path.write_bytes(path.read_bytes().replace(b"zq7" * 9, b"zq7" * 8 + b"zq8"))
    with pytest.raises(LakeUnusable, match="can't be read"):
        read_file(str(tmp_path), files(tmp_path), "f", SCHEMA)


COLUMNS = (
    pa.array(["7"]),
    pa.array(["x"]),
    pa.array(["x"]).dictionary_encode(),
    pa.array([b"\xff"]),
    pa.array([7], pa.int8()),
    pa.array([2**40]),
    pa.array([-1], pa.int16()),
    pa.array([2**63], pa.uint64()),
    pa.array([1.5]),
    pa.array([float("nan")]),
    pa.array([None], pa.int16()),
    pa.array([True]),
    pa.array([["x"]]),
    pa.array([{"a": 1}]),
    pa.array([NOON]),
    pa.array([10**18], pa.timestamp("us", tz="UTC")),
    pa.array([-(10**18)], pa.timestamp("us")),
    pa.array([1], pa.timestamp("ns", tz="UTC")),
    pa.array([NOON.replace(tzinfo=None)], pa.timestamp("s")),
)


@tried(100)
@example("id", pa.array([1.5]))
@example("finished_at", pa.array([10**18], pa.timestamp("us", tz="UTC")))
@given(st.sampled_from(SCHEMA.names), st.sampled_from(COLUMNS))
def test_a_column_of_another_type_has_the_same_values_or_its_file_is_named(tmp_path_factory, name, column):
    directory = tmp_path_factory.mktemp("one")
    rows = arrow(row(1))
    written(directory / "f", rows.set_column(rows.schema.get_field_index(name), name, column))
    with refused(LakeUnusable):
        read_ = read_file(str(directory), files(directory), "f", SCHEMA)
        [found] = as_dicts(str(directory), read_)
        assert found[name] == as_dicts("", pa.table({name: column.cast(read_.column(name).type)}))[0][name]
        assert not pa.types.is_integer(read_.column(name).type) or found[name] in (None, column[0].as_py())


def test_a_file_with_other_columns_has_null_in_ours(tmp_path):
    written(tmp_path / "f", pa.table({"other": [1, 2]}))
    found = read_file(str(tmp_path), files(tmp_path), "f", SCHEMA)
    assert (found.num_rows, found.schema, found.column("id").null_count) == (2, SCHEMA, 2)
    wanted = Filter(WantedRows(values={"source": ["app"]}).condition(), ["source"])
    assert read_file(str(tmp_path), files(tmp_path), "f", SCHEMA, wanted).num_rows == 0


def test_row_groups_are_read_where_a_row_is_wanted(tmp_path):
    written(tmp_path / "f", arrow(*map(row, range(10))), row_group_size=3)
    wanted = Filter(WantedRows(values={"id": [4, 9]}).condition(), ["id"])
    found = read_file(str(tmp_path), files(tmp_path), "f", SCHEMA, wanted)
    assert found.to_pylist() == arrow(row(4), row(9)).to_pylist()


@tried(60)
@given(st.binary(max_size=200), st.sampled_from([b"", b"PAR1", b"crc\0\0\0\2\0"]))
def test_bytes_that_are_no_file_are_told_as_damage(table, content, begin):
    path = Path(table.path, "messages", "stray.parquet")
    sums = path.with_name(f".{path.name}.crc")
    try:
        path.write_bytes(b"PAR1" + content + b"PAR1")
        sums.write_bytes(begin + content)
        assert not is_readable(table, "messages/stray.parquet")
    finally:
        path.unlink()
        sums.unlink()


# Values

records = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["attempt", "exception", "message", "failed_at", "log"]) | texts, inner, max_size=4
    ),
    max_leaves=10,
)  # fmt: skip


@tried(200)
@example("[" * 100_000)
@example('[{"attempt":1,"message":' + "[" * 9_000 + "]" * 9_000 + "}]")
@example('[{"attempt":1,"message":' + '{"a":' * 5_000 + "1" + "}" * 5_000 + "}]")
@example('[{"attempt":1,"message":"\\ud800\\u0000"}]')
@given(records.map(json.dumps) | texts)
def test_errors_of_any_form_are_a_line_that_can_be_stored(errors):
    given_ = row(1, state=FinalOutcome.FAILED.value, errors=errors)
    message = as_ended(given_)
    assert (message.error, message.fingerprint) == last_error(errors)
    assert len(message.error) <= 300
    assert message.error.isprintable()
    assert message.error.encode().decode() == message.error
    assert -(2**63) <= message.fingerprint < 2**63


odd_texts = st.none() | st.sampled_from(["a\0b", "x" * 201, "x" * 200, "leased", "succeeded", ""])
odd_times = st.sampled_from([None, datetime(1, 1, 1, tzinfo=UTC), NOON, NOON.replace(year=9999)])
BY_TYPE = {pa.string(): odd_texts, SCHEMA.field("created_at").type: odd_times}


@tried(150)
@given(st.sampled_from(FinishedMessage._meta.concrete_fields), st.data())
def test_a_row_that_no_table_can_hold_is_named_before_it_is_put_back(field, data):
    name = {"outcome": "state"}.get(field.name, field.name)
    if name in SCHEMA.names:
        value = data.draw(BY_TYPE.get(SCHEMA.field(name).type, st.sampled_from([None, 7])))
        with refused(LakeUnusable, f"its {name} "):
            storable.check("lake", pa.Table.from_pylist([row(1), row(2) | {name: value}], ARROW))
            assert value is not None or field.null
            assert not isinstance(value, str) or (is_storable(value) and len(value) <= (field.max_length or 999))
            assert not isinstance(value, datetime) or value.year >= 1000
