"""Read a Parquet file of the lake as if it were damaged: that is an error, and ends neither the process nor the wait.

pyarrow's `read_table` and its datasets compare a filter with the statistics in the footer of the file. In pyarrow 26, a
footer with one wrong byte then ends the process (SIGABRT), or is waited for without end. So no statistics of a file are
read here: those of the log tell which files are read at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from delayedq.core.instants import instant
from delayedq.exceptions import LakeUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import pyarrow.compute as pc
    from pyarrow.fs import FileSystem

#: What damaged bytes, and columns of other types, raise.
_DAMAGE = (OSError, pa.ArrowException, ValueError, KeyError, OverflowError)


class Filter(NamedTuple):
    """Which rows are wanted: `condition`, on these `columns`."""

    condition: pc.Expression
    columns: Collection[str]


def read(root: str, store: FileSystem, path: str, schema: pa.Schema, wanted: Filter | None = None) -> pa.Table:
    """The wanted rows of a file below `root`, with the columns of the schema; what the file lacks is NULL.

    Raises LakeUnusable, naming the file: if it can't be read, a page does not fit its checksum, or a column has values
    of another kind than in the schema, or larger ones.
    """
    try:
        with (
            store.open_input_file(path) as source,
            parquet.ParquetFile(source, pre_buffer=True, page_checksum_verification=True) as file,
        ):
            groups = [_group(file, number, schema, wanted) for number in range(file.num_row_groups)]
        return pa.concat_tables([schema.empty_table(), *groups])
    except _DAMAGE as error:
        raise _unreadable(f"{root}/{path}", error) from error


def as_dicts(root: str, rows: pa.Table) -> list[dict[str, Any]]:
    """The rows as Python has them. Raises LakeUnusable for times that it lacks: before the year 1 and after 9999."""
    try:
        return _dicts(rows)
    except (ValueError, OverflowError) as error:
        raise LakeUnusable(
            f"The lake at {root} has a row with a time outside the years 1 to 9999, which delayedq has not written: "
            f"{error}. `delayedq.history.read` shows it."
        ) from error


def _dicts(rows: pa.Table) -> list[dict[str, Any]]:
    """As `to_pylist`, to which a time takes 4 microseconds, and a number a twentieth of that."""
    times = [field.name for field in rows.schema if pa.types.is_timestamp(field.type)]
    as_numbers = [pa.field(field.name, pa.int64() if field.name in times else field.type) for field in rows.schema]
    found: list[dict[str, Any]] = rows.cast(pa.schema(as_numbers)).to_pylist()
    for row in found:
        for name in times:
            if (micros := row[name]) is not None:
                row[name] = instant(micros)
    return found


def _group(file: parquet.ParquetFile, number: int, schema: pa.Schema, wanted: Filter | None) -> pa.Table:
    """The wanted rows of a row group, of which a group without any is not read but for what tells that."""
    if wanted is None:
        return _columns(file, number, schema)
    deciding = _columns(file, number, pa.schema([field for field in schema if field.name in wanted.columns]))
    if not deciding.filter(wanted.condition).num_rows:
        return schema.empty_table()
    return _columns(file, number, schema).filter(wanted.condition)


def _columns(file: parquet.ParquetFile, number: int, schema: pa.Schema) -> pa.Table:
    there = [name for name in schema.names if name in file.schema_arrow.names]
    # A row group without any of the columns has rows, too.
    rows = file.read_row_group(number, columns=there or file.schema_arrow.names[:1])
    columns = [
        _as(rows.column(field.name), field) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _as(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Of a narrower type, or another form of texts, as other engines write them; never a number out of a text."""
    if _kind(column.type) not in {_kind(field.type), "null"}:
        raise pa.ArrowTypeError(f"{field.name} is {column.type}, and not {field.type}")
    return column.cast(field.type)


def _kind(type_: pa.DataType) -> str:
    type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
    return next((kind for kind, is_of_it in _KINDS.items() if is_of_it(type_)), "")


_TEXTS = {pa.string(), pa.large_string(), pa.string_view()}
_KINDS: dict[str, Callable[[pa.DataType], bool]] = {
    "integer": pa.types.is_integer,
    "time": pa.types.is_timestamp,
    "date": pa.types.is_date,
    "text": _TEXTS.__contains__,
    "null": pa.types.is_null,
}


def _unreadable(path: str, error: Exception) -> LakeUnusable:
    reason = str(error).strip().partition("\n")[0].rstrip(".")
    return LakeUnusable(
        f"The file {path} can't be read: {reason}. Restore it from a backup of the lake; `run_pipeline check` tells "
        "what else is missing."
    )
