"""The streaming reader: every finished message once, also one whose transaction commits late.

Neither ids nor times tell what is new: a message may end before another and be committed after it, minutes later if the
transaction was long. On PostgreSQL the stream therefore goes by the numbers of transactions, and only up to the oldest
one that is still open: below it nothing will ever appear. An open transaction that writes holds the stream up, and
loses nothing. `lateness` says how long after its end a message may at most be recorded, by a worker that could not
reach the database; it only bounds how far back an index is read.

SQLite and MySQL do not tell which transaction wrote a row. There the stream goes by `finished_at`, up to `lateness`
before the oldest open transaction, and what is recorded later than that is missed.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from delayedq.exceptions import InvalidOption, PipelineError
from delayedq.pipeline.spark import reading
from delayedq.pipeline.spark.connecting import as_instant, connect
from delayedq.pipeline.spark.reading import (
    ENDED,
    SELECTED,
    IdSpan,
    MessageReader,
    read_rows,
    read_span,
    settings,
    spans,
)
from delayedq.pipeline.spark.writing import MessageWriter, load_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from delayedq.pipeline.spark.connecting import Connection
    from delayedq.pipeline.spark.reading import ReadSelection

# The statements of the streaming reader: where the stream is, and which rows lie between two such places.


# PostgreSQL: by transaction ------------------------------------------------------------------------------------------

# All transactions below `settled` have ended, and `next` is not drawn yet.
TRANSACTIONS = """
SELECT pg_snapshot_xmin(snapshot)::text::bigint, pg_snapshot_xmax(snapshot)::text::bigint, statement_timestamp()
FROM pg_current_snapshot() AS snapshot
"""

# A row knows the lower 32 bits of the number of the transaction that wrote it. They are compared on a circle, as in
# PostgreSQL itself: of two numbers, the later one is ahead by less than half of it.
_AHEAD = "(xmin::text::bigint - current_setting('delayedq.{}')::bigint) & 4294967295"

BETWEEN = f"""({_AHEAD.format("settled")}) >= 2147483648
    AND (current_setting('delayedq.begun') = '0' OR ({_AHEAD.format("begun")}) < 2147483648)
    AND finished_at >= current_setting('delayedq.recorded')::timestamptz"""

ANY_BETWEEN = f"SELECT 1 FROM {ENDED} WHERE {SELECTED['postgresql'][ENDED]} AND {BETWEEN} LIMIT 1"

# SQLite and MySQL: by time -------------------------------------------------------------------------------------------

# When the oldest transaction that has written something, and is still open, began; now, if there is none.
OLDEST = """
SELECT least(UTC_TIMESTAMP(6), coalesce(min(CONVERT_TZ(trx_started, 'SYSTEM', '+00:00')), UTC_TIMESTAMP(6)))
FROM information_schema.innodb_trx WHERE trx_rows_modified > 0
"""

ANY_ENDED = {vendor: f"SELECT 1 FROM {ENDED} WHERE {SELECTED[vendor][ENDED]} LIMIT 1" for vendor in ("mysql", "sqlite")}


# Streaming


type Offset = dict[str, Any]

_EVER = "-infinity"
#: No moment of a checkpoint is earlier: `lateness`, of at most a year, is taken from it.
_FIRST = datetime(2, 1, 2, tzinfo=UTC)


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_moment(value: object) -> bool:
    if value == _EVER:
        return True
    try:
        moment = datetime.fromisoformat(str(value))
        return moment.utcoffset() is not None and moment.astimezone(UTC) >= _FIRST
    except (ValueError, OverflowError):
        return False


def stream_reader(selection: ReadSelection, schema: StructType) -> DataSourceStreamReader:
    by_transaction = selection.address.vendor == "postgresql"
    return TransactionReader(selection, schema) if by_transaction else TimeReader(selection, schema)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`commit` is not ours to act on: Spark leaves it out for the last batch.

    Offsets come from the checkpoint, a directory of JSON files that anybody may have written.
    """

    #: What an offset has, and how a value of it is known.
    parts: ClassVar[dict[str, Callable[[object], bool]]]

    def __init__(self, selection: ReadSelection, schema: StructType) -> None:
        self.selection = selection
        self.schema = schema
        #: Where a run that takes only what there is now ends.
        self._end: Offset | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with connect(self.selection.address) as connection:
            self._end = self._place(connection)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: ARG002, N802
        """`start` itself if nothing has ended since."""
        self._check(start)
        with connect(self.selection.address) as connection:
            return self._next(connection, start, self._end or self._place(connection))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Raises PipelineError if these are no offsets of such a stream."""
        self._check(start)
        self._check(end)
        return [] if end["moment"] == _EVER else self._parts(start, end)

    @classmethod
    def _check(cls, offset: Offset) -> None:
        found = offset if isinstance(offset, dict) else {}
        for name, is_valid in cls.parts.items():
            if not is_valid(found.get(name)):
                raise PipelineError(
                    f"The checkpoint was not written by a stream of such a database: its offset has no valid {name!r}. "
                    "Restore the checkpoint, or begin with another one."
                )

    @abstractmethod
    def _parts(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """What is read at once, of what lies between the two."""

    @abstractmethod
    def _place(self, connection: Connection) -> Offset:
        """Up to where a batch that begins now may go."""

    @abstractmethod
    def _next(self, connection: Connection, start: Offset, place: Offset) -> Offset:
        """Where the batch after `start` ends: at `place`, or at `start` if there is nothing."""


@dataclass(frozen=True, slots=True)
class TransactionSpan(IdSpan):
    """The rows of the transactions from `begun` up to and without `settled`."""

    begun: int = 0
    settled: int = 0
    recorded: str = _EVER


class TransactionReader(_StreamReader):
    """On PostgreSQL. An offset says

    `settled`   all transactions below it have ended, and were read
    `next`      the first number that was not drawn yet
    `moment`    when that was
    `recorded`  what is yet to be read was written after that moment
    """

    parts: ClassVar = {"settled": _is_number, "next": _is_number, "moment": _is_moment, "recorded": _is_moment}

    def initialOffset(self) -> Offset:  # noqa: N802
        return {"settled": 0, "next": 0, "moment": _EVER, "recorded": _EVER}

    def _place(self, connection: Connection) -> Offset:
        ((settled, following, moment),) = connection.rows(TRANSACTIONS)
        return {"settled": settled, "next": following, "moment": moment.isoformat()}

    def _next(self, connection: Connection, start: Offset, place: Offset) -> Offset:
        if place["settled"] < start["settled"]:
            raise PipelineError(
                "This checkpoint belongs to another database: its transaction numbers are higher than here."
            )
        # What is not settled yet drew its number after all those that were drawn at `start`, or else began before.
        renewed = place["settled"] >= start["next"]
        end = place | {"recorded": start["moment"] if renewed else start["recorded"]}
        with connection.transaction():
            connection.rows(reading.SET.format("%(settings)s"), {"settings": self._settings(self._span(start, end))})
            return end if connection.rows(ANY_BETWEEN) else start

    def _span(self, start: Offset, end: Offset) -> TransactionSpan:
        recorded = start["recorded"]
        if recorded != _EVER:
            recorded = (datetime.fromisoformat(recorded) - self.selection.lateness).isoformat()
        return TransactionSpan(begun=start["settled"], settled=end["settled"], recorded=recorded)

    def _settings(self, span: TransactionSpan) -> str:
        bounds = {"begun": str(span.begun), "settled": str(span.settled), "recorded": span.recorded}
        return settings(self.selection, span, **bounds)

    def _parts(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The first batch may be all of history; what was settled stays as it is, so its ranges need no snapshot."""
        whole = self._span(start, end)
        if start["settled"]:
            return [whole]
        with connect(self.selection.address) as connection, connection.transaction():
            parts = spans(connection, self.selection)
        return [replace(whole, first=part.first, after=part.after) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TransactionSpan):
            names, ended = self.schema.names, {reading.ENDED: reading.SELECTED["postgresql"][reading.ENDED]}
            statement = reading.select("postgresql", names, ended, BETWEEN)
            target = to_arrow_schema(self.schema, timezone="UTC")
            yield from read_span(self.selection, self._settings(partition), statement, target)


@dataclass(frozen=True, slots=True)
class TimeSpan(IdSpan):
    since: datetime | None = None
    until: datetime | None = None


class TimeReader(_StreamReader):
    """On SQLite and MySQL. An offset says up to which `moment` what ended was read."""

    parts: ClassVar = {"moment": _is_moment}

    def initialOffset(self) -> Offset:  # noqa: N802
        return {"moment": _EVER}

    def _place(self, connection: Connection) -> Offset:
        return {"moment": (_oldest_open(connection) - self.selection.lateness).isoformat()}

    def _next(self, connection: Connection, start: Offset, place: Offset) -> Offset:
        selected = self._selected(self._span(start, place)).parameters()
        later = start["moment"] == _EVER or place["moment"] > start["moment"]
        return place if later and connection.rows(ANY_ENDED[connection.vendor], selected) else start

    def _span(self, start: Offset, end: Offset) -> TimeSpan:
        since = None if start["moment"] == _EVER else datetime.fromisoformat(start["moment"])
        return TimeSpan(since=since, until=datetime.fromisoformat(end["moment"]))

    def _selected(self, span: TimeSpan) -> ReadSelection:
        """What lies in the window that was asked for, and in this one."""
        since = max(filter(None, (self.selection.since, span.since)), default=None)
        until = min(filter(None, (self.selection.until, span.until)), default=None)
        return replace(self.selection, since=since, until=until)

    def _parts(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [self._span(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TimeSpan):
            yield from read_rows(self._selected(partition), self.schema)


def _oldest_open(connection: Connection) -> datetime:
    """No transaction that is still open wrote before that."""
    if connection.vendor == "sqlite":
        with connection.transaction():  # it takes SQLite's write lock: no other transaction writes now
            return datetime.now(UTC)
    ((moment,),) = connection.rows(OLDEST)
    return as_instant(moment)


# `format("delayedq")`: the queue as a source and a sink of Spark.


class DelayedQDataSource(DataSource):
    """Spark makes one wherever it plans; each option is checked there."""

    @classmethod
    def name(cls) -> str:
        return "delayedq"

    def schema(self) -> StructType:
        with _in_one_line():
            return reading.columns(self.options)

    def reader(self, schema: StructType) -> MessageReader:
        with _in_one_line():
            return MessageReader(reading.selection(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        with _in_one_line():
            return stream_reader(reading.stream_selection(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> MessageWriter:
        if overwrite:
            raise InvalidOption('The queue is never overwritten: use mode("append").')
        with _in_one_line():
            writer = MessageWriter(load_options(self.options), schema)
            writer.plan()
        return writer


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Have Spark show an error of ours without the frames of the process that plans, which ends with it."""
    try:
        yield
    except PipelineError:
        if "SPARK_BUFFER_SIZE" in os.environ:  # only Spark's processes have it
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
