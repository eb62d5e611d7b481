"""The batch reader: messages as Arrow, in ranges of one snapshot on PostgreSQL, in one piece elsewhere."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from delayedq.core.bounds import is_storable
from delayedq.exceptions import InvalidOption, PipelineError, SnapshotGone
from delayedq.pipeline.spark.connecting import Address, arrow, connect
from delayedq.pipeline.spark.schema import MESSAGES, STATES
from delayedq.sql.dialects import MYSQL, POSTGRESQL, SQLITE
from delayedq.sql.leases import held
from delayedq.sql.states import FINAL_STATES, LIVE_STATES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from delayedq.pipeline.spark.connecting import ArrowConnection, Connection
    from delayedq.sql.dialects import Dialect

# The statements of the readers.
#
# What is selected never becomes part of a statement. On SQLite and MySQL it is a parameter. On PostgreSQL it is a
# setting of the transaction: a query with parameters is answered as one result, which has to fit into memory; one
# without them as a stream (a COPY). The planner takes a setting for the constant that it is.


LIVE, ENDED = "delayedq_message", "delayedq_finishedmessage"

# Columns -------------------------------------------------------------------------------------------------------------
_SAME = (
    "id", "queue", "kind", "priority", "max_attempts", "created_at", "scheduled_at_initially", "scheduled_at",
    "payload", "metadata", "errors",
)  # fmt: skip


def _live(dialect: Dialect, no_text: str = "NULL", no_time: str = "NULL") -> dict[str, str]:
    is_held = held(LIVE, dialect.now)
    return {name: name for name in _SAME} | {
        "state": f"CASE WHEN {is_held} THEN 'leased' ELSE 'waiting' END",
        "worker": f"CASE WHEN {is_held} THEN leased_by END",
        "attempts": "attempt",
        "key": dialect.key,
        "started_at": no_time,
        "finished_at": no_time,
        "result": no_text,
    }


def _ended(key: str) -> dict[str, str]:
    names = (*_SAME, "attempts", "started_at", "finished_at", "worker", "result")
    return {name: name for name in names} | {"state": "outcome", "key": key}


# By engine and table: what gives a column of `schema.MESSAGES`.
COLUMNS = {
    "postgresql": {LIVE: _live(POSTGRESQL, "NULL::text", "NULL::timestamptz"), ENDED: _ended(POSTGRESQL.key)},
    "mysql": {LIVE: _live(MYSQL), ENDED: _ended(MYSQL.key)},
    "sqlite": {LIVE: _live(SQLITE), ENDED: _ended(SQLITE.key)},
}

#: How many rows a table has, up to a number.
COUNT = "SELECT count(*) FROM (SELECT 1 FROM {} LIMIT %(most)s) AS found"

# Rows ----------------------------------------------------------------------------------------------------------------

# A JSON list of names.
_AMONG = {
    "postgresql": """{1} = ANY(ARRAY(
        SELECT json_array_elements_text(nullif(current_setting('delayedq.{0}'), '')::json)
    ))""",
    "mysql": """{1} IN (
        SELECT name FROM JSON_TABLE(%({0})s, '$[*]' COLUMNS (name VARCHAR(200) CHARACTER SET utf8mb4 PATH '$')) AS given
    )""",
    "sqlite": "{1} IN (SELECT value FROM json_each(nullif(%({0})s, '')))",
}

_ALL = {"postgresql": "current_setting('delayedq.{0}') = ''", "mysql": "%({0})s = ''", "sqlite": "%({0})s = ''"}

_RANGE = "id >= current_setting('delayedq.first')::bigint AND id < current_setting('delayedq.after')::bigint"

_WINDOW = {
    "postgresql": """finished_at >= current_setting('delayedq.since')::timestamptz
        AND finished_at < current_setting('delayedq.until')::timestamptz""",
    "mysql": "finished_at >= coalesce(%(since)s, '1000-01-01') AND finished_at < coalesce(%(until)s, '9999-12-31')",
    "sqlite": "finished_at >= coalesce(%(since)s, '') AND finished_at < coalesce(%(until)s, 'Z')",
}


def _conditions(vendor: str, table: str) -> dict[str, tuple[str, str]]:
    """By the option: the condition if it was given, and the one that also holds if it was not."""
    columns = COLUMNS[vendor][table]
    found = {}
    for option, column in (("states", "state"), ("kinds", "kind"), ("queues", "queue")):
        among = _AMONG[vendor].format(option, columns[column])
        found[option] = (among, f"({_ALL[vendor].format(option)} OR {among})")
    if table == ENDED:
        found["window"] = (_WINDOW[vendor], _WINDOW[vendor])
    if vendor == "postgresql":
        found["range"] = (_RANGE, _RANGE)
    return found


_CONDITIONS = {vendor: {table: _conditions(vendor, table) for table in tables} for vendor, tables in COLUMNS.items()}

# By engine and table: whether a row is selected, whatever was given.
SELECTED = {
    vendor: {table: " AND ".join(either for _, either in found.values()) for table, found in tables.items()}
    for vendor, tables in _CONDITIONS.items()
}


def selected(vendor: str, table: str, given: Collection[str]) -> str:
    """Whether a row is selected by the options that were given, of `states`, `kinds`, `queues`, `window` and `range`.

    PostgreSQL looks a setting up for each row that it compares: all of them take longer than the row itself.
    """
    return " AND ".join(found for option, (found, _) in _CONDITIONS[vendor][table].items() if option in given) or "true"


# PostgreSQL: one snapshot for all readers ----------------------------------------------------------------------------
BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

IMPORT = "SET TRANSACTION SNAPSHOT '{}'"

EXPORT = "SELECT pg_export_snapshot()"

#: A snapshot lives as long as its transaction, which waits for the readers.
STAY = "SET LOCAL idle_in_transaction_session_timeout = 0"

SET = "SELECT set_config('delayedq.' || name, value, true) FROM json_each_text({}::json) AS setting (name, value)"

# Ids that divide the selected rows into equal parts: those at `shares` among the rows of a thousand pages of each
# table. The least and the greatest id would not do: dead letters stay for years, far below all others.
# A table of partitions has no pages of its own.
_SAMPLE = """
SELECT id FROM {0} TABLESAMPLE SYSTEM (least(100, 1e5 / greatest(1, (
    SELECT sum(pg_relation_size(part)) / 8192
    FROM (SELECT '{0}'::regclass UNION SELECT relid FROM pg_partition_tree('{0}')) AS tree (part)
)))) WHERE {1}
"""

QUANTILES = """
SELECT percentile_disc(%(shares)s::float8[]) WITHIN GROUP (ORDER BY id) FROM ({rows}) AS sample
"""


def select(vendor: str, columns: list[str], conditions: Mapping[str, str], condition: str = "true") -> str:
    """These columns of the rows that are selected, by the table that holds them."""
    return " UNION ALL ".join(
        f"SELECT {', '.join(COLUMNS[vendor][table][name] for name in columns)} FROM {table}"
        f" WHERE {selected} AND {condition}"
        for table, selected in conditions.items()
    )


def quantiles(tables: list[str]) -> str:
    rows = " UNION ALL ".join(_SAMPLE.format(table, SELECTED["postgresql"][table]) for table in tables)
    return QUANTILES.format(rows=rows)


# The options of `format("delayedq")`, read and checked. Spark passes them as texts and shows them in its logs.


#: How many ranges a read is divided into, and the most of them: each is a connection, which takes some 100 ms to open.
PARTITIONS, MOST_PARTITIONS = 4, 64


@dataclass(frozen=True, slots=True)
class ReadSelection:
    """Which messages are read. An empty tuple selects all; the window is on `finished_at`, and what lives is in any."""

    address: Address
    states: tuple[str, ...] = STATES
    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    snapshot: str | None = None
    partitions: int = PARTITIONS
    #: How long after its end a message may at most be recorded, as a stream reads it.
    lateness: timedelta = timedelta(minutes=1)

    @property
    def live(self) -> bool:
        """Are messages selected that have not ended?"""
        return any(state in LIVE_STATES for state in self.states)

    @property
    def ended(self) -> bool:
        """Is history selected?"""
        return any(state in FINAL_STATES for state in self.states)

    def parameters(self) -> dict[str, str | datetime | None]:
        """Those of the statements in this module; lists as JSON, empty for all."""
        lists = {"states": self.states, "kinds": self.kinds, "queues": self.queues}
        return {name: json.dumps(names) if names else "" for name, names in lists.items()} | {
            "since": self.since,
            "until": self.until,
        }


def selection(options: Mapping[str, str]) -> ReadSelection:
    """Raises InvalidOption, naming the option."""
    known = ("address", "states", "kinds", "queues", "since", "until", "snapshot", "partitions", "lateness", "columns")
    refuse_unknown(options, known)
    return ReadSelection(
        address=address(options),
        states=_states(_names(options, "states")) or STATES,
        kinds=_names(options, "kinds"),
        queues=_names(options, "queues"),
        since=_moment(options, "since"),
        until=_moment(options, "until"),
        snapshot=options.get("snapshot") or None,
        partitions=int(_number(options, "partitions", PARTITIONS, 1, MOST_PARTITIONS)),
        lateness=timedelta(seconds=_number(options, "lateness", 60, 0, 366 * 86_400)),
    )


def stream_selection(options: Mapping[str, str]) -> ReadSelection:
    """Only what has ended is streamed, and no snapshot holds it. Raises InvalidOption."""
    selected = selection({"states": ",".join(FINAL_STATES), **options})
    if selected.live:
        raise InvalidOption(f"states: a stream is of finished messages: {', '.join(FINAL_STATES)}.")
    if selected.snapshot:
        raise InvalidOption("snapshot: a stream can't read one, because it continues after it.")
    if "lateness" not in options and selected.address.vendor == "postgresql":
        return replace(selected, lateness=timedelta(hours=1))  # where it costs nothing
    return selected


def columns(options: Mapping[str, str]) -> StructType:
    """The columns of MESSAGES that were asked for, in the order in which they were; without the option, all."""
    names = _names(options, "columns") or tuple(MESSAGES.names)
    if unknown := sorted(set(names) - set(MESSAGES.names)):
        raise InvalidOption(f"columns: {', '.join(unknown)} unknown; known are {', '.join(MESSAGES.names)}.")
    return StructType([MESSAGES[name] for name in dict.fromkeys(names)])


def address(options: Mapping[str, str]) -> Address:
    """Raises InvalidOption if there is none."""
    if "address" not in options:
        raise InvalidOption(
            "address: missing; it says where the URL of the database is kept, as in file:/run/secrets/db."
        )
    return Address(options["address"])


def refuse_unknown(options: Mapping[str, str], known: Collection[str]) -> None:
    """Raises InvalidOption, naming the unknown options and those that there are."""
    # Spark's dict lowers the names.
    if unknown := sorted({name.lower() for name in options} - set(known)):
        raise InvalidOption(f"{', '.join(unknown)}: unknown; known are {', '.join(known)}.")


def _names(options: Mapping[str, str], option: str) -> tuple[str, ...]:
    """Separated by commas; or a JSON list, for names that have commas. None without the option, or if it is empty.

    A list without names would be read as all of them: it is refused.
    """
    text = options.get(option, "").strip()
    if not text:
        return ()
    names = _listed(text) if text.startswith("[") else [name.strip() for name in text.split(",") if name.strip()]
    if not names or not all(isinstance(name, str) and is_storable(name) for name in names):
        raise InvalidOption(f"{option}: names separated by commas, or a JSON list of them, not {shown(text)}.")
    return tuple(names)


def _listed(text: str) -> list[Any]:
    """Of a JSON list; none if it is no list."""
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return names if isinstance(names, list) else []


def shown(text: str) -> str:
    """As an error shows what was given: at most 60 characters."""
    return repr(text[:60])


def _states(states: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := sorted(set(states) - set(STATES)):
        raise InvalidOption(f"states: {', '.join(unknown)} unknown; known are {', '.join(STATES)}.")
    return states


def _moment(options: Mapping[str, str], option: str) -> datetime | None:
    text = options.get(option)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption(f"{option}: a time in ISO 8601, not {shown(text)}.") from None
    if moment.utcoffset() is None:
        raise InvalidOption(f"{option}: {text} has no time zone; add one, as in {text}Z.")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise InvalidOption(f"{option}: {text} is outside the years 1 to 9999 in UTC.") from None


def _number(options: Mapping[str, str], option: str, default: int, least: int, most: int) -> float:
    text = options.get(option, str(default))
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise InvalidOption(f"{option}: a number from {least} to {most}, not {shown(text)}.")
    return number


# Reading


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
    with connect(address) as connection, connection.transaction(BEGIN, STAY):
        ((name,),) = connection.rows(EXPORT)
        yield {"address": address.reference, "snapshot": name}


@dataclass(frozen=True, slots=True)
class IdSpan(InputPartition):
    """The ids from `first`, up to and without `after`."""

    first: int = LOWEST
    after: int = HIGHEST


class MessageReader(DataSourceReader):
    """Plain values only: it travels to the executors."""

    def __init__(self, selection: ReadSelection, schema: StructType) -> None:
        if selection.snapshot and not _SNAPSHOT.fullmatch(selection.snapshot):
            raise InvalidOption("snapshot: take it from `with snapshot(address) as options`.")
        self.selection = selection
        self.schema = schema

    # No pushFilters: Spark 4.3 would reuse the reader with the filters of another query on the same DataFrame.

    def partitions(self) -> list[IdSpan]:
        """Ranges of ids that can be read at once; one for all without a snapshot."""
        if not self.selection.snapshot or self.selection.partitions == 1:
            return [IdSpan()]
        with connect(self.selection.address) as connection, connection.transaction(BEGIN):
            _enter(connection, self.selection.snapshot)
            return spans(connection, self.selection)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, IdSpan):
            return
        if self.selection.address.vendor != "postgresql":
            yield from read_rows(self.selection, self.schema)
            return
        statement = select("postgresql", self.schema.names, conditions(self.selection, partition))
        target = to_arrow_schema(self.schema, timezone="UTC")
        yield from read_span(self.selection, settings(self.selection, partition), statement, target)


def read_here(
    address: Address,
    schema: StructType,
    states: tuple[str, ...] = STATES,
    since: datetime | None = None,
    until: datetime | None = None,
) -> pa.Table | None:
    """All messages, with the columns of this schema (of MESSAGES), read by this process as one statement finds them.

    states, since, until: only these, and of those that ended what did so from `since` until before `until`. None if
    their tables have more than SMALL_ROWS, or they have more than SMALL_BYTES, which is for Spark. A small queue is
    read here in less time than a Python worker of Spark takes to start. Raises DatabaseUnreachable.
    """
    selection = ReadSelection(address, states=states, since=since, until=until)
    with connect(address) as connection:
        counts = [connection.rows(COUNT.format(table), {"most": SMALL_ROWS + 1}) for table in tables(selection)]
    if sum(count for ((count,),) in counts) > SMALL_ROWS:
        return None
    batches, size = [], 0
    for batch in MessageReader(selection, schema).read(IdSpan()):
        size += batch.nbytes
        if size > SMALL_BYTES:
            return None
        batches.append(batch)
    return pa.Table.from_batches(batches, to_arrow_schema(schema, timezone="UTC"))


def read_rows(selection: ReadSelection, schema: StructType) -> Iterator[pa.RecordBatch]:
    """On SQLite and MySQL: all that is selected, as one statement finds it."""
    target = to_arrow_schema(schema, timezone="UTC")
    statement = select(selection.address.vendor, schema.names, conditions(selection, IdSpan()))
    with connect(selection.address) as connection:
        for rows in connection.stream(statement, selection.parameters(), BATCH):
            yield as_batch(rows, target)


def conditions(selection: ReadSelection, span: IdSpan) -> dict[str, str]:
    """By table: the condition of what is selected there, which asks for nothing that holds for all rows."""
    given = {option for option in ("kinds", "queues") if getattr(selection, option)}
    given |= {"window"} if selection.since or selection.until else set()
    given |= {"range"} if (span.first, span.after) != (LOWEST, HIGHEST) else set()
    found = {}
    for table in tables(selection):
        every = LIVE_STATES if table == LIVE else FINAL_STATES
        states = set() if set(every) <= set(selection.states) else {"states"}
        found[table] = selected(selection.address.vendor, table, given | states)
    return found


def tables(selection: ReadSelection) -> list[str]:
    """The tables that hold what is selected."""
    return [LIVE] * selection.live + [ENDED] * selection.ended


def spans(connection: Connection, selection: ReadSelection) -> list[IdSpan]:
    """Ranges that hold about as many of the selected rows each, in this transaction of PostgreSQL."""
    connection.rows(SET.format("%(settings)s"), {"settings": settings(selection, IdSpan())})
    shares = [number / selection.partitions for number in range(1, selection.partitions)]
    ((inner,),) = connection.rows(quantiles(tables(selection)), {"shares": shares})
    bounds = [LOWEST, *sorted({bound for bound in inner or [] if bound is not None}), HIGHEST]
    return [IdSpan(*bounds) for bounds in pairwise(bounds)]


def settings(selection: ReadSelection, span: IdSpan, **others: str) -> str:
    """The settings of the transaction that reads the span, as JSON."""
    chosen = selection.parameters()
    since, until = (
        str(chosen.pop(name) or default) for name, default in (("since", "-infinity"), ("until", "infinity"))
    )
    return json.dumps(
        chosen | {"since": since, "until": until, "first": str(span.first), "after": str(span.after)} | others
    )


def read_span(selection: ReadSelection, set_to: str, statement: str, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Stream what PostgreSQL copies out, with these settings of the transaction."""
    with arrow(selection.address) as connection:
        connection.execute(BEGIN)
        if selection.snapshot:
            _enter(connection, selection.snapshot)
        connection.execute(SET.format("$1"), set_to)
        for batch in connection.batches(statement):
            # What the table guarantees Arrow does not know: that a column is never NULL.
            yield pa.RecordBatch.from_arrays(batch.columns, schema=target)


def _enter(connection: Connection | ArrowConnection, snapshot: str) -> None:
    try:
        connection.execute(IMPORT.format(snapshot))
    except Exception as error:  # of one driver or the other
        if getattr(error, "sqlstate", None) not in _NO_SNAPSHOT:
            raise
        raise SnapshotGone(
            "The snapshot of this DataFrame is no longer held: read it within `with snapshot(address)`, or load again."
        ) from error


def as_batch(rows: list[tuple[Any, ...]], target: pa.Schema) -> pa.RecordBatch:
    """Rows as drivers give them. Raises PipelineError, naming the column of a value that has another type."""
    columns = zip(*rows, strict=True)
    arrays = [_array(list(values), field) for values, field in zip(columns, target, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


_UNREADABLE = (pa.ArrowException, TypeError, OverflowError, UnicodeEncodeError)


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    """Raises PipelineError: SQLite keeps a value of any type in any column."""
    try:
        return _typed(values, field.type)
    except _UNREADABLE:
        wrong = [value for value in values if _is_wrong(value, field.type)][:1] or values
        types = " or ".join(sorted({type(value).__name__ for value in wrong}))
        raise PipelineError(
            f"A message of the database has a value in {field.name!r} that can't be read as {field.type}: it is of the "
            f"type {types}, and was not written by delayedq. Mend or delete that row."
        ) from None


def _typed(values: list[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(type_) and not {datetime, type(None)}.issuperset(map(type, values)):
        # SQLite's times are texts. Arrow would take a number as microseconds since 1970.
        return pa.array(values, pa.string()).cast(pa.timestamp("us")).cast(type_)
    if pa.types.is_integer(type_) and not {int, type(None)}.issuperset(map(type, values)):
        raise TypeError("Arrow would cut off what is behind the point.")
    return pa.array(values, type_)


def _is_wrong(value: Any, type_: pa.DataType) -> bool:
    try:
        _typed([value], type_)
    except _UNREADABLE:
        return True
    return False
