"""The batch writer: a DataFrame becomes messages, each row exactly once, however often its tasks run.

Spark runs a task again when it failed, also after it had written. So every attempt at a partition stages its rows under
a token of its own, and only the tokens of the attempts that Spark took for done reach `commit`. There one transaction
makes messages of their rows and marks the load as loaded. A load that is loaded is never loaded again, so a run that
was cut short anywhere is just run again, with the same `load_id`.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from delayedq.core.backoff import retry
from delayedq.core.bounds import EARLIEST, KEY_LENGTH, MAX_PAYLOAD_BYTES, NAME_LENGTH, is_storable
from delayedq.exceptions import InvalidMessage, InvalidOption, LoadFailed
from delayedq.pipeline.spark.connecting import arrow, connect
from delayedq.pipeline.spark.reading import address, refuse_unknown, shown
from delayedq.pipeline.spark.schema import OFFERS
from delayedq.sql.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import StructType

    from delayedq.pipeline.spark.connecting import Address, Connection

# The statements of the writer, by engine.
#
# What the attempts at the partitions of a load stage carries their tokens. One transaction turns what the winners
# staged into messages; a message with the key of a live one is left out. Never INSERT IGNORE: it cuts texts.


# SQLite tells milliseconds only.
NOW = {vendor: "%(now)s" if vendor == "sqlite" else dialect.now for vendor, dialect in DIALECTS.items()}

NOTIFY = "NOTIFY delayedq"

#: MySQL would lock gaps between the staged rows.
MYSQL_BEGIN = ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN")

_WON = {
    # An array leaves the rows in their order; a join would not.
    "postgresql": "attempt = ANY(ARRAY(SELECT value::bigint FROM json_array_elements_text(%(tokens)s::json)))",
    "mysql": "attempt IN (SELECT token FROM JSON_TABLE(%(tokens)s, '$[*]' COLUMNS (token BIGINT PATH '$')) AS given)",
    "sqlite": "attempt IN (SELECT value FROM json_each(%(tokens)s))",
}

# One row per load ---------------------------------------------------------------------------------------------------
LOADS = "delayedq_pipeline_load"

_PLAN = """
INSERT INTO {loads} (load_id, state, source, started_at)
VALUES (%(load_id)s, 'staging', %(source)s, {now})
"""

_ON_CONFLICT = """
ON CONFLICT (load_id) DO UPDATE SET started_at = excluded.started_at, state = 'staging'
WHERE load.state <> 'loaded'
"""

PLAN = {
    vendor: _PLAN.format(loads=f"{LOADS} AS load", now=now) + _ON_CONFLICT
    for vendor, now in NOW.items()
    if vendor != "mysql"
} | {
    "mysql": _PLAN.format(loads=LOADS, now=NOW["mysql"])
    + """
ON DUPLICATE KEY UPDATE
    started_at = IF(state = 'loaded', started_at, VALUES(started_at)), state = IF(state = 'loaded', state, 'staging')
"""
}

STATE = f"SELECT state FROM {LOADS} WHERE load_id = %(load_id)s"

LOCK = {"postgresql": f"{STATE} FOR UPDATE", "mysql": f"{STATE} FOR UPDATE", "sqlite": STATE}

LOADED = {
    vendor: f"""
UPDATE {LOADS} SET state = 'loaded', finished_at = {now},
    row_count = %(row_count)s, inserted = %(inserted)s, duplicates = %(duplicates)s
WHERE load_id = %(load_id)s
"""
    for vendor, now in NOW.items()
}

ABORTED = {
    vendor: f"""
UPDATE {LOADS} SET state = 'aborted', finished_at = {now} WHERE load_id = %(load_id)s AND state = 'staging'
"""
    for vendor, now in NOW.items()
}

# What is staged -------------------------------------------------------------------------------------------------------
STAGING = "delayedq_pipeline_loadstaging"

_KEY = {vendor: dialect.key for vendor, dialect in DIALECTS.items()}

# PostgreSQL's comes as Arrow.
STAGE = {
    vendor: f"""
INSERT INTO {STAGING} (
    queue, kind, {_KEY[vendor]}, priority, max_attempts, payload, metadata, scheduled_at, load_id, partition_id, attempt
) VALUES (
    %(queue)s, %(kind)s, %(key)s, %(priority)s, %(max_attempts)s, %(payload)s, %(metadata)s, %(scheduled_at)s,
    %(load_id)s, %(partition_id)s, %(attempt)s
)
"""
    for vendor in ("mysql", "sqlite")
}

STAGED = {vendor: f"SELECT count(*) FROM {STAGING} WHERE {won}" for vendor, won in _WON.items()}

UNSTAGE = {vendor: f"DELETE FROM {STAGING} WHERE {won}" for vendor, won in _WON.items()}

UNSTAGE_LOAD = f"DELETE FROM {STAGING} WHERE load_id = %(load_id)s"

# Left by drivers that were killed. A load takes less than a week; if not, it finds that its rows are gone, and fails.
_WEEK = {
    "postgresql": "statement_timestamp() - interval '7 days'",
    "mysql": "UTC_TIMESTAMP(6) - INTERVAL 7 DAY",
    "sqlite": "datetime(%(now)s, '-7 days')",
}

SWEEP = {
    vendor: f"DELETE FROM {STAGING} WHERE load_id IN (SELECT load_id FROM {LOADS} WHERE started_at < {week})"
    for vendor, week in _WEEK.items()
}

# Messages -------------------------------------------------------------------------------------------------------------
_KEEP = {
    "postgresql": "ON CONFLICT (kind, key) WHERE key IS NOT NULL DO NOTHING",
    "mysql": "ON DUPLICATE KEY UPDATE delayedq_message.id = delayedq_message.id",
    "sqlite": "ON CONFLICT (kind, key) WHERE key IS NOT NULL DO NOTHING",
}

_OFFER = {
    vendor: f"""
INSERT INTO delayedq_message (
    queue, kind, {_KEY[vendor]}, priority, max_attempts, payload, metadata,
    scheduled_at, scheduled_at_initially, created_at, attempt, generation
)
SELECT queue, kind, {_KEY[vendor]}, priority, max_attempts, payload, metadata,
    coalesce(scheduled_at, {now}), coalesce(scheduled_at, {now}), {now}, 0, 0
FROM {STAGING} WHERE {_WON[vendor]}{{among}}
{_KEEP[vendor]}
"""
    for vendor, now in NOW.items()
}

OFFER = {vendor: statement.format(among="") for vendor, statement in _OFFER.items()}

# Only keys that no load has offered before with the option `once`. The unique key makes a second load that commits at
# the same time wait for the first, and then finds what that offered.
REPLAYED = "delayedq_pipeline_replayedmessage"

_SKIP = {
    "postgresql": "ON CONFLICT (key) DO NOTHING",
    "mysql": f"ON DUPLICATE KEY UPDATE {REPLAYED}.load_id = {REPLAYED}.load_id",
    "sqlite": "ON CONFLICT (key) DO NOTHING",
}

CLAIM_KEYS = {
    vendor: f"""
INSERT INTO {REPLAYED} ({key}, load_id)
SELECT {key}, load_id FROM {STAGING} WHERE {_WON[vendor]}
{_SKIP[vendor]}
"""
    for vendor, key in _KEY.items()
}

OFFER_ONCE = {
    vendor: statement.format(
        among=f" AND {_KEY[vendor]} IN (SELECT {_KEY[vendor]} FROM {REPLAYED} WHERE load_id = %(load_id)s)"
    )
    for vendor, statement in _OFFER.items()
}


# From the batches of a DataFrame to messages as they are staged. What can be none is refused, with the reason.


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
    except pa.ArrowException as error:
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
        raise InvalidMessage(f"{name}: {_example(column.filter(wrong)[0], name):.60} is not {allowed}.")


def _example(value: pa.Scalar, name: str) -> str:
    if name in {"payload", "metadata"} and value.is_valid and pa.types.is_string(value.type):
        return "a value"  # of which only those may know who see arguments
    if pa.types.is_timestamp(value.type):  # Python has no years beyond 9999
        return str(value.cast(pa.string()))
    return repr(value.as_py())


# Writing


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
    load_id, source = options.get("load_id", ""), options.get("source", "")
    size, once = options.get("max_payload_bytes", str(MAX_PAYLOAD_BYTES)), options.get("once", "false").lower()
    if not 1 <= len(load_id) <= NAME_LENGTH or not is_storable(load_id):
        raise InvalidOption(f"load_id: 1 to {NAME_LENGTH} characters that name what is loaded, not {load_id[:40]!r}.")
    if not is_storable(source):
        raise InvalidOption(f"source: a text without NUL, not {shown(source)}.")
    if not re.fullmatch("[0-9]{1,9}", size):
        raise InvalidOption(f"max_payload_bytes: a number of bytes, below 1,000,000,000, not {shown(size)}.")
    if once not in {"true", "false"}:
        raise InvalidOption(f"once: true or false, not {shown(once)}.")
    return LoadOptions(address(options), load_id, source, int(size), once == "true")


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
            connection.execute(SWEEP[connection.vendor], _now())
            connection.execute(PLAN[connection.vendor], self._load | {"source": self.options.source} | _now())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        token = secrets.randbits(63)
        batches = (self._staged(batch, token) for batch in iterator)
        with connect(self.options.address) as connection:
            if _state(connection, STATE, self._load) == "loaded":
                return Staged(token, 0)
            if connection.vendor != "postgresql":
                return Staged(token, _insert(connection, batches))
        return Staged(token, _copy(self.options.address, batches))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        winners = [message for message in messages if isinstance(message, Staged)]
        with connect(self.options.address) as connection:
            retry(lambda: self._offer(connection, winners), _is_deadlock)
            if connection.vendor == "postgresql":
                connection.execute(NOTIFY)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what is known to be staged.

        What a killed task staged has no winner's token, and never becomes messages.
        """
        tokens = [message.token for message in messages if isinstance(message, Staged)]
        with connect(self.options.address) as connection:
            connection.execute(UNSTAGE[connection.vendor], {"tokens": json.dumps(tokens)})
            connection.execute(ABORTED[connection.vendor], self._load | _now())

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
        with connection.transaction(*(MYSQL_BEGIN if vendor == "mysql" else ())):
            if _state(connection, LOCK[vendor], self._load) == "loaded":
                connection.execute(UNSTAGE[vendor], tokens)
                return
            rows = sum(winner.rows for winner in winners)
            ((found,),) = connection.rows(STAGED[vendor], tokens)
            if found != rows:
                raise LoadFailed(
                    f"{rows:,} rows were staged, and {found:,} are there. Run load {self.options.load_id} again."
                )
            if self.options.once:
                connection.execute(CLAIM_KEYS[vendor], tokens)
            statements = OFFER_ONCE if self.options.once else OFFER
            inserted = connection.execute(statements[vendor], self._load | tokens | _now())
            counts = {"row_count": rows, "inserted": inserted, "duplicates": rows - inserted}
            connection.execute(LOADED[vendor], self._load | counts | _now())
            connection.execute(UNSTAGE_LOAD, self._load)


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
        connection.ingest(STAGING, pa.RecordBatchReader.from_batches(first.schema, counted()))
    return count


def _insert(connection: Connection, batches: Iterator[pa.RecordBatch]) -> int:
    """A transaction per batch: others wait for the lock of SQLite no longer than that."""
    count = 0
    for batch in batches:
        with connection.transaction():
            connection.execute_many(STAGE[connection.vendor], batch.to_pylist())
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
