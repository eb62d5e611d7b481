"""How the databases differ, in the words of those statements that all of them share.

What only one of them does stands in its folder of the store. A word in braces is filled in by the statement that uses
it; `%(name)s` is a parameter.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.core.bounds import EARLIEST

if TYPE_CHECKING:
    from collections.abc import Callable


class Dialect(NamedTuple):
    """One database's words and values."""

    #: A time as a parameter of a statement.
    stored: Callable[[datetime], Any]
    #: The reverse, for a time in a row.
    instant: Callable[[Any], datetime]
    #: What it is now, by the clock of the database.
    now: str
    #: The column `key`, whose name is a word of MySQL's.
    key: str
    #: The rows beyond %(at)s and %(id)s, as one range of an index on time and id.
    after: str
    #: The rows of a {table} whose {column}, of type `time_type` or bigint, lies in a slice: slice by slice, by index.
    sliced: str
    #: The same for dead letters by their own index, and nothing else of them; "" if the database has no such index.
    dead: str
    time_type: str
    #: The number of the bucket that {time} lies in.
    bucket: str
    #: Seconds from {earlier} to {later}.
    seconds: str
    #: The time in the parameter {}.
    moment: str
    #: The end of a SELECT that locks its rows, for who changes no key; "" where who writes is alone.
    lock: str
    #: Whether an upsert names the columns in which it meets another row.
    names_conflicts: bool = True
    #: The function that finds a text in another: 0 if it is not in it.
    position: str = "instr"
    #: What a transaction says before it counts.
    prepare: str = ""


# For `Dialect.after`: on MySQL a comparison of rows is no range of an index; to the others, a choice is none.
BY_ROWS = "({columns}) {sign} (%(at)s, %(id)s)"

BY_CHOICE = "({time} {sign}= %(at)s AND ({time} {sign} %(at)s OR id {sign} %(id)s))"


def text(moment: datetime) -> str:
    """A time as a text without an offset, in UTC: as SQLite stores it, and MySQL's DATETIME takes it."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return str(moment.replace(tzinfo=None))


def instant(stored: datetime | str) -> datetime:
    """The reverse of `text`; columns with a declared type arrive parsed."""
    return _read(stored) if isinstance(stored, str) else stored.replace(tzinfo=stored.tzinfo or UTC)


@lru_cache(maxsize=512)
def _read(stored: str) -> datetime:
    """Most times of a message are equal, and many messages have those of others."""
    moment = datetime.fromisoformat(stored)
    return moment.replace(tzinfo=moment.tzinfo or UTC)


POSTGRESQL = Dialect(
    stored=lambda moment: moment,
    instant=lambda stored: stored,
    now="statement_timestamp()",
    key="key",
    after=BY_ROWS,
    # The order in each slice leaves the planner no other way.
    sliced="""json_array_elements(%(slices)s) AS slice CROSS JOIN LATERAL (
        SELECT * FROM {table} WHERE {column} >= (slice->>0)::{type} AND {column} < (slice->>1)::{type}
        ORDER BY {column} OFFSET 0
    ) AS message""",
    dead="""json_array_elements(%(slices)s) AS slice CROSS JOIN LATERAL (
        SELECT finished_at FROM delayedq_finishedmessage WHERE outcome = 'failed'
            AND finished_at >= (slice->>0)::timestamptz AND finished_at < (slice->>1)::timestamptz
        ORDER BY finished_at OFFSET 0
    ) AS message""",
    time_type="timestamptz",
    bucket="floor(extract(epoch FROM {time} - %(start)s::timestamptz) / %(width)s)::int",
    seconds="extract(epoch FROM {later} - {earlier})::float8",
    moment="%({})s::timestamptz",
    lock="FOR NO KEY UPDATE",
    position="strpos",
    # PostgreSQL would take longer to compile one of these statements than to run it.
    prepare="SET LOCAL jit = off",
)

SQLITE = Dialect(
    stored=text,
    instant=instant,
    now="strftime('%Y-%m-%d %H:%M:%f', 'now')",
    key="key",
    after=BY_ROWS,
    # CROSS JOIN: the slices come first, whatever the planner thinks.
    sliced="""json_each(%(slices)s) AS slice CROSS JOIN {table} AS message
    ON message.{column} >= json_extract(slice.value, '$[0]') AND message.{column} < json_extract(slice.value, '$[1]')
    """,
    dead="""json_each(%(slices)s) AS slice CROSS JOIN delayedq_finishedmessage AS message INDEXED BY delayedq_dead
    ON finished_at >= json_extract(slice.value, '$[0]') AND finished_at < json_extract(slice.value, '$[1]')
    AND outcome = 'failed'
    """,
    time_type="",
    bucket="(strftime('%%s', {time}) - strftime('%%s', %(start)s)) / %(width)s",
    seconds="round((julianday({later}) - julianday({earlier})) * 86400, 3)",
    moment="%({})s",
    lock="",
)

MYSQL = Dialect(
    stored=lambda moment: text(max(moment, EARLIEST)),
    instant=instant,
    now="UTC_TIMESTAMP(6)",
    key="`key`",
    after=BY_CHOICE,
    sliced="""JSON_TABLE(%(slices)s, '$[*]' COLUMNS (low {type} PATH '$[0]', high {type} PATH '$[1]')) AS slice
    STRAIGHT_JOIN {table} AS message ON message.{column} >= slice.low AND message.{column} < slice.high
    """,
    dead="",
    time_type="DATETIME(6)",
    bucket="TIMESTAMPDIFF(SECOND, CAST(%(start)s AS DATETIME(6)), {time}) DIV %(width)s",
    seconds="TIMESTAMPDIFF(MICROSECOND, {earlier}, {later}) / 1e6",
    moment="CAST(%({})s AS DATETIME(6))",
    lock="FOR UPDATE",
    names_conflicts=False,
)

#: By the name that Django has for the database; MariaDB goes by MySQL's.
DIALECTS = {"postgresql": POSTGRESQL, "sqlite": SQLITE, "mysql": MYSQL}
