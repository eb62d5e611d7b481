"""The batch reader: messages as Arrow, in ranges of one snapshot on PostgreSQL, in one piece elsewhere."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from delayedq.exceptions import InvalidOption, SnapshotGone
from delayedq.pipeline.spark import reading_sql as sql
from delayedq.pipeline.spark.connecting import arrow, connect
from delayedq.pipeline.spark.options import Selection
from delayedq.pipeline.spark.schema import FINAL_STATES, LIVE_STATES, STATES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pyspark.sql.types import StructType

    from delayedq.pipeline.spark.connecting import Address, ArrowConnection, Connection

#: Rows that become one batch where the driver gives rows.
BATCH = 10_000
#: The most that `read_here` reads.
SMALL_ROWS, SMALL_BYTES = 50_000, 64 * 2**20
#: Below and above all ids: the outer ranges are open, so that no row can lie outside.
LOWEST, HIGHEST = -(2**63), 2**63 - 1

#: What PostgreSQL says of a snapshot that it does not know (any more).
_NO_SNAPSHOT = {"22023", "42704"}
_SNAPSHOT = re.compile(r"[0-9A-F]{1,16}(-[0-9A-F]{1,16}){1,2}", re.IGNORECASE)


@contextmanager
def snapshot(address: Address) -> Iterator[dict[str, str]]:
    """Hold one state of the database; gives the options that make a read of it.

        with snapshot(address) as options:
            spark.read.format("delayedq").options(**options).load()

    On PostgreSQL any number of readers then share it, so a read is divided into ranges. It holds back vacuum: read,
    and leave. Elsewhere one statement reads everything, and the options are just the address.
    """
    if address.vendor != "postgresql":
        yield {"address": address.reference}
        return
    with connect(address) as connection, connection.transaction(sql.BEGIN, sql.STAY):
        ((name,),) = connection.rows(sql.EXPORT)
        yield {"address": address.reference, "snapshot": name}


@dataclass(frozen=True, slots=True)
class Span(InputPartition):
    """The ids from `first`, up to and without `after`."""

    first: int = LOWEST
    after: int = HIGHEST


class MessageReader(DataSourceReader):
    """Plain values only: it travels to the executors."""

    def __init__(self, selection: Selection, schema: StructType) -> None:
        if selection.snapshot and not _SNAPSHOT.fullmatch(selection.snapshot):
            raise InvalidOption("snapshot: take it from `with snapshot(address) as options`.")
        self.selection = selection
        self.schema = schema

    # No pushFilters: Spark 4.3 would reuse the reader with the filters of another query on the same DataFrame.

    def partitions(self) -> list[Span]:
        """Ranges of ids that can be read at once; one for all without a snapshot."""
        if not self.selection.snapshot or self.selection.partitions == 1:
            return [Span()]
        with connect(self.selection.address) as connection, connection.transaction(sql.BEGIN):
            _enter(connection, self.selection.snapshot)
            return spans(connection, self.selection)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Span):
            return
        if self.selection.address.vendor != "postgresql":
            yield from read_rows(self.selection, self.schema)
            return
        statement = sql.select("postgresql", self.schema.names, conditions(self.selection, partition))
        target = to_arrow_schema(self.schema, timezone="UTC")
        yield from read_span(self.selection, settings(self.selection, partition), statement, target)


def read_here(
    address: Address, schema: StructType, states: tuple[str, ...] = STATES, until: datetime | None = None
) -> pa.Table | None:
    """All messages, with the columns of this schema (of MESSAGES), read by this process as one statement finds them.

    states, until: only these, and those that ended before then. None if their tables have more than SMALL_ROWS, or they
    have more than SMALL_BYTES, which is for Spark. A small queue is read here in less time than a Python worker of
    Spark takes to start. Raises DatabaseUnreachable.
    """
    selection = Selection(address, states=states, until=until)
    with connect(address) as connection:
        counts = [connection.rows(sql.COUNT.format(table), {"most": SMALL_ROWS + 1}) for table in tables(selection)]
    if sum(count for ((count,),) in counts) > SMALL_ROWS:
        return None
    batches, size = [], 0
    for batch in MessageReader(selection, schema).read(Span()):
        size += batch.nbytes
        if size > SMALL_BYTES:
            return None
        batches.append(batch)
    return pa.Table.from_batches(batches, to_arrow_schema(schema, timezone="UTC"))


def read_rows(selection: Selection, schema: StructType) -> Iterator[pa.RecordBatch]:
    """On SQLite and MySQL: all that is selected, as one statement finds it."""
    target = to_arrow_schema(schema, timezone="UTC")
    statement = sql.select(selection.address.vendor, schema.names, conditions(selection, Span()))
    with connect(selection.address) as connection:
        for rows in connection.stream(statement, selection.parameters(), BATCH):
            yield as_batch(rows, target)


def conditions(selection: Selection, span: Span) -> dict[str, str]:
    """By table: the condition of what is selected there, which asks for nothing that holds for all rows."""
    given = {option for option in ("kinds", "queues") if getattr(selection, option)}
    given |= {"window"} if selection.since or selection.until else set()
    given |= {"range"} if (span.first, span.after) != (LOWEST, HIGHEST) else set()
    found = {}
    for table in tables(selection):
        every = LIVE_STATES if table == sql.LIVE else FINAL_STATES
        states = set() if set(every) <= set(selection.states) else {"states"}
        found[table] = sql.selected(selection.address.vendor, table, given | states)
    return found


def tables(selection: Selection) -> list[str]:
    """The tables that hold what is selected."""
    return [sql.LIVE] * selection.live + [sql.ENDED] * selection.ended


def spans(connection: Connection, selection: Selection) -> list[Span]:
    """Ranges that hold about as many of the selected rows each, in this transaction of PostgreSQL."""
    connection.rows(sql.SET.format("%(settings)s"), {"settings": settings(selection, Span())})
    shares = [number / selection.partitions for number in range(1, selection.partitions)]
    ((inner,),) = connection.rows(sql.quantiles(tables(selection)), {"shares": shares})
    bounds = [LOWEST, *sorted({bound for bound in inner or [] if bound is not None}), HIGHEST]
    return [Span(*bounds) for bounds in pairwise(bounds)]


def settings(selection: Selection, span: Span, **others: str) -> str:
    """The settings of the transaction that reads the span, as JSON."""
    chosen = selection.parameters()
    since, until = (
        str(chosen.pop(name) or default) for name, default in (("since", "-infinity"), ("until", "infinity"))
    )
    return json.dumps(
        chosen | {"since": since, "until": until, "first": str(span.first), "after": str(span.after)} | others
    )


def read_span(selection: Selection, set_to: str, statement: str, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Stream what PostgreSQL copies out, with these settings of the transaction."""
    with arrow(selection.address) as connection:
        connection.execute(sql.BEGIN)
        if selection.snapshot:
            _enter(connection, selection.snapshot)
        connection.execute(sql.SET.format("$1"), set_to)
        for batch in connection.batches(statement):
            # What the table guarantees Arrow does not know: that a column is never NULL.
            yield pa.RecordBatch.from_arrays(batch.columns, schema=target)


def _enter(connection: Connection | ArrowConnection, snapshot: str) -> None:
    try:
        connection.execute(sql.IMPORT.format(snapshot))
    except Exception as error:  # of one driver or the other
        if getattr(error, "sqlstate", None) not in _NO_SNAPSHOT:
            raise
        raise SnapshotGone(
            "The snapshot of this DataFrame is no longer held: read it within `with snapshot(address)`, or load again."
        ) from error


def as_batch(rows: list[tuple[Any, ...]], target: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [_array(list(values), field.type) for values, field in zip(columns, target, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(type_) and any(isinstance(value, str) for value in values):  # SQLite's times are texts
        return pa.array(values, pa.string()).cast(pa.timestamp("us")).cast(type_)
    return pa.array(values, type_)
