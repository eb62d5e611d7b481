"""From the batches of a DataFrame to messages as they are staged. What can be none is refused, with the reason."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from delayedq.core.limits import EARLIEST, KEY_LENGTH, NAME_LENGTH
from delayedq.exceptions import InvalidMessage, InvalidOption
from delayedq.pipeline.spark.schema import OFFERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

_TARGET = to_arrow_schema(OFFERS, timezone="UTC")
#: Columns that a DataFrame may leave out.
_DEFAULTS: Mapping[str, object] = {
    "queue": "default",
    "key": None,
    "priority": 0,
    "max_attempts": 1,
    "metadata": None,
    "scheduled_at": None,
}
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)


def check_columns(schema: StructType) -> None:
    """Raises InvalidOption, naming the columns."""
    if unknown := sorted(set(schema.names) - set(OFFERS.names)):
        raise InvalidOption(f"Columns {', '.join(unknown)} unknown; a message has {', '.join(OFFERS.names)}.")
    if missing := sorted(set(OFFERS.names) - set(schema.names) - set(_DEFAULTS)):
        raise InvalidOption(f"Columns {', '.join(missing)} missing; a message needs them.")


def offers(batch: pa.RecordBatch, max_payload_bytes: int) -> pa.RecordBatch:
    """The batch in the columns and types of OFFERS. Raises InvalidMessage if a row is no message."""
    columns = {field.name: _column(batch, field) for field in _TARGET}
    _check(columns, max_payload_bytes)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=_TARGET)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in batch.schema.names:
        return pa.repeat(pa.scalar(_DEFAULTS[field.name], field.type), batch.num_rows)
    try:
        column = batch.column(field.name).cast(field.type)
    except pa.ArrowInvalid as error:
        raise InvalidMessage(f"{field.name}: {error}") from None
    if field.name in {"priority", "max_attempts", "queue"}:
        column = pc.fill_null(column, pa.scalar(_DEFAULTS[field.name], field.type))
    return column


def _check(columns: Mapping[str, pa.Array], max_payload_bytes: int) -> None:
    for name, longest in (("queue", NAME_LENGTH), ("kind", NAME_LENGTH), ("key", KEY_LENGTH)):
        length = pc.utf8_length(columns[name])
        _refuse(
            columns[name], pc.or_(pc.less(length, 1), pc.greater(length, longest)), name, f"1 to {longest} characters"
        )
    for name in ("queue", "kind", "payload"):
        _refuse(columns[name], columns[name].is_null(), name, "a text")
    for name in ("queue", "kind", "key", "payload", "metadata"):
        _refuse(columns[name], pc.match_substring(columns[name], "\0"), name, "no NUL")
    size = pc.binary_length(columns["payload"])
    _refuse(size, pc.greater(size, max_payload_bytes), "payload", f"at most {max_payload_bytes:,} bytes")
    ranges = {"priority": (-100, 100), "max_attempts": (1, 2**15 - 1), "scheduled_at": (EARLIEST, _LATEST)}
    for name, (least, most) in ranges.items():
        column = columns[name]
        outside = pc.or_(pc.less(column, _scalar(least, column)), pc.greater(column, _scalar(most, column)))
        _refuse(column, outside, name, f"{least} to {most}")


def _scalar(value: object, column: pa.Array) -> pa.Scalar:
    return pa.scalar(value, column.type)


def _refuse(column: pa.Array, wrong: pa.Array, name: str, allowed: str) -> None:
    if pc.any(wrong).as_py():
        example: Any = column.filter(wrong)[0].as_py()
        raise InvalidMessage(f"{name}: {example!r:.60} is not {allowed}.")
