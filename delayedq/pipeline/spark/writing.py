"""The batch writer: a DataFrame becomes messages, each row exactly once, however often its tasks run.

Spark runs a task again when it failed, also after it had written. So every attempt at a partition stages its rows under
a token of its own, and only the tokens of the attempts that Spark took for done reach `commit`. There one transaction
makes messages of their rows and marks the load as loaded. A load that is loaded is never loaded again, so a run that
was cut short anywhere is just run again, with the same `load_id`.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from delayedq.core.deadlocks import retry
from delayedq.core.limits import MAX_PAYLOAD_BYTES, NAME_LENGTH
from delayedq.exceptions import InvalidOption, LoadFailed
from delayedq.pipeline.spark import writing_sql as sql
from delayedq.pipeline.spark.connecting import arrow, connect
from delayedq.pipeline.spark.offering import check_columns, offers
from delayedq.pipeline.spark.options import address, refuse_unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import StructType

    from delayedq.pipeline.spark.connecting import Address, Connection

_DEADLOCK = {"40P01", "40001", 1213, 1205}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """`load_id` names the load also in later runs: take it from what is loaded, not from the clock.

    once: all rows have keys, and a key that any load with this option has offered before is passed over.
    """

    address: Address
    load_id: str
    source: str = ""
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    once: bool = False


def load_options(options: Mapping[str, str]) -> LoadOptions:
    """Raises InvalidOption, naming the option."""
    refuse_unknown(options, ("address", "load_id", "source", "max_payload_bytes", "once"))
    load_id, size = options.get("load_id", ""), options.get("max_payload_bytes", str(MAX_PAYLOAD_BYTES))
    if not 1 <= len(load_id) <= NAME_LENGTH:
        raise InvalidOption(f"load_id: 1 to {NAME_LENGTH} characters that name what is loaded, not {load_id[:40]!r}.")
    if not size.isdecimal():
        raise InvalidOption(f"max_payload_bytes: a number of bytes, not {size!r}.")
    return LoadOptions(address(options), load_id, options.get("source", ""), int(size), options.get("once") == "true")


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What one attempt at a partition wrote. No two attempts share a token."""

    token: int
    rows: int


class MessageWriter(DataSourceArrowWriter):
    """Plain values only: it travels to the executors, and back to a new process for the commit."""

    def __init__(self, options: LoadOptions, schema: StructType) -> None:
        check_columns(schema)
        self.options = options

    def plan(self) -> None:
        """Record the load, unless it is loaded; delete what drivers that were killed have staged."""
        with connect(self.options.address) as connection:
            connection.execute(sql.SWEEP[connection.vendor], _now())
            connection.execute(sql.PLAN[connection.vendor], self._load | {"source": self.options.source} | _now())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        token = secrets.randbits(63)
        batches = (self._staged(batch, token) for batch in iterator)
        with connect(self.options.address) as connection:
            if _state(connection, sql.STATE, self._load) == "loaded":
                return Staged(token, 0)
            if connection.vendor != "postgresql":
                return Staged(token, _insert(connection, batches))
        return Staged(token, _copy(self.options.address, batches))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        winners = [message for message in messages if isinstance(message, Staged)]
        with connect(self.options.address) as connection:
            retry(lambda: self._offer(connection, winners), _is_deadlock)
            if connection.vendor == "postgresql":
                connection.execute(sql.NOTIFY)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what is known to be staged.

        What a killed task staged has no winner's token, and never becomes messages.
        """
        tokens = [message.token for message in messages if isinstance(message, Staged)]
        with connect(self.options.address) as connection:
            connection.execute(sql.UNSTAGE[connection.vendor], {"tokens": json.dumps(tokens)})
            connection.execute(sql.ABORTED[connection.vendor], self._load | _now())

    @property
    def _load(self) -> dict[str, Any]:
        return {"load_id": self.options.load_id}

    def _staged(self, batch: pa.RecordBatch, token: int) -> pa.RecordBatch:
        context = TaskContext.get()
        marks = {
            "load_id": pa.scalar(self.options.load_id),
            "partition_id": pa.scalar(context.partitionId() if context else 0, pa.int32()),
            "attempt": pa.scalar(token, pa.int64()),
        }
        given = offers(batch, self.options.max_payload_bytes)
        for name, value in marks.items():
            given = given.append_column(name, pa.repeat(value, given.num_rows))
        return given

    def _offer(self, connection: Connection, winners: list[Staged]) -> None:
        vendor, tokens = connection.vendor, {"tokens": json.dumps([winner.token for winner in winners])}
        with connection.transaction(*(sql.MYSQL_BEGIN if vendor == "mysql" else ())):
            if _state(connection, sql.LOCK[vendor], self._load) == "loaded":
                connection.execute(sql.UNSTAGE[vendor], tokens)
                return
            rows = sum(winner.rows for winner in winners)
            ((found,),) = connection.rows(sql.STAGED[vendor], tokens)
            if found != rows:
                raise LoadFailed(
                    f"{rows:,} rows were staged, and {found:,} are there. Run load {self.options.load_id} again."
                )
            if self.options.once:
                connection.execute(sql.CLAIM_KEYS[vendor], tokens)
            statements = sql.OFFER_ONCE if self.options.once else sql.OFFER
            inserted = connection.execute(statements[vendor], self._load | tokens | _now())
            counts = {"row_count": rows, "inserted": inserted, "duplicates": rows - inserted}
            connection.execute(sql.LOADED[vendor], self._load | counts | _now())
            connection.execute(sql.UNSTAGE_LOAD, self._load)


def _copy(address: Address, batches: Iterator[pa.RecordBatch]) -> int:
    """One COPY: all of it is there at the end, or nothing."""
    first = next(batches, None)
    if first is None:
        return 0
    count: int = first.num_rows

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal count
        yield first
        for batch in batches:
            count += batch.num_rows
            yield batch

    with arrow(address) as connection:
        connection.ingest(sql.STAGING, pa.RecordBatchReader.from_batches(first.schema, counted()))
    return count


def _insert(connection: Connection, batches: Iterator[pa.RecordBatch]) -> int:
    """A transaction per batch: others wait for the lock of SQLite no longer than that."""
    count = 0
    for batch in batches:
        with connection.transaction():
            connection.execute_many(sql.STAGE[connection.vendor], batch.to_pylist())
        count += batch.num_rows
    return count


def _state(connection: Connection, statement: str, load: Mapping[str, object]) -> str | None:
    found = connection.rows(statement, load)
    return found[0][0] if found else None


def _now() -> dict[str, Any]:
    """For SQLite, whose clock is the host's."""
    return {"now": datetime.now(UTC)}


def _is_deadlock(error: Exception) -> bool:
    return bool(_DEADLOCK & {getattr(error, "sqlstate", None), *error.args[:1]})
