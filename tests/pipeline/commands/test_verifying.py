"""Rows leave the database only if every column of their copy was read back equal."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delayedq.exceptions import ArchiveFailed
from delayedq.pipeline.books import source_of
from delayedq.pipeline.commands.archive import Archiving
from delayedq.pipeline.models import ArchiveBatch, ArchiveState
from delayedq.pipeline.spark import archive
from delayedq.pipeline.spark.lake import BatchPlace, Lake
from delayedq.pipeline.spark.schema import LAKE
from tests.pipeline.given import DAY, NOW, finished, history, ids

CHANGES = {
    "int64": lambda value: value + 1,
    "int32": lambda value: value + 1,
    "int16": lambda value: value + 1,
    "timestamp": lambda value: value + timedelta(microseconds=1),
    # Of the same length: "succeeded" and "cancelled" are, too.
    "string": lambda value: "cancelled" if value == "succeeded" else value[:-1] + chr(ord(value[-1]) ^ 1),
}


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


def copies(lake, directory):
    return sorted(Path(lake.path, "messages", directory).rglob("*.parquet"))


def rewritten(file, name, change):
    """The same Parquet file with one changed cell, in the first row that has one in this column."""
    table = pq.ParquetFile(file).read()
    type_ = table.schema.field(name).type
    values = table.column(name).to_pylist()
    at = next((row for row, value in enumerate(values) if value is not None), 0)
    values[at] = change(values[at], type_)
    changed = table.set_column(table.schema.get_field_index(name), name, pa.array(values, type_))
    pq.write_table(changed, file)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # else the reader finds it by itself


def other(value, type_):
    return CHANGES[str(type_).partition("[")[0]](value)


def nothing(value, type_):
    return None


@pytest.fixture
def written(spark, store, address, tmp_path):
    """A batch whose files are written and not yet read back; all columns have values."""
    finished(1, metadata='{"a":1}', errors="[]", key="first").save()
    finished(2, metadata='{"a":2}', errors="[]", key="second").save()
    lake = Lake(spark, str(tmp_path / "lake"))

    def tell(batch):
        if batch.state == ArchiveState.WRITTEN:
            raise Killed

    with pytest.raises(Killed):
        list(Archiving(spark, store, address, lake.path, tell, address).run(NOW))
    batch = ArchiveBatch.objects.get()
    place = BatchPlace(source_of(store.alias), batch.number, batch.directory)
    return archive.Copying(spark, address, lake, place, NOW, lake.table.snapshot(), here=address)


def test_a_single_changed_cell_is_found_in_every_column(written):
    lake, place = written.lake, written.place
    [file] = copies(lake, place.directory)
    right = file.read_bytes()
    for name in LAKE.names[:-1]:  # the last, `day`, is the name of a directory
        for change in (other, nothing) if LAKE[name].nullable else (other,):
            rewritten(file, name, change)
            assert archive.verify(written) is None, (name, change.__name__)
            file.write_bytes(right)
    assert archive.verify(written).row_count == 2


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_row_in_the_directory_of_another_day_is_found(written):
    [file] = copies(written.lake, written.place.directory)
    file.parent.rename(file.parent.with_name("day=2026-02-01"))

    assert archive.verify(written) is None


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
@pytest.mark.parametrize("name", ["created_at", "state", "payload", "priority"])
def test_no_row_is_deleted_after_a_changed_cell(spark, store, address, tmp_path, name):
    history(6)
    lake = Lake(spark, str(tmp_path / "lake"))

    def tell(batch):
        if batch.state == ArchiveState.WRITTEN:
            rewritten(copies(lake, batch.directory)[0], name, other)

    with pytest.raises(ArchiveFailed, match="never matched the table"):
        list(Archiving(spark, store, address, lake.path, tell, address).run(NOW - DAY / 2))

    assert len(ids()) == 6
    assert lake.table.snapshot().files == ()
