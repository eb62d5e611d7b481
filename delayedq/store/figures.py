"""Count for the dashboard, by bucket, in the slices of a sample: see `core.sampling`."""

from __future__ import annotations

import json
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from delayedq.core.instants import EPOCH, instant
from delayedq.sql.leases import free
from delayedq.sql.priority import METADATA_KEY
from delayedq.sql.waits import in_sql

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from delayedq.core.sampling import Sample
    from delayedq.sql.dialects import Dialect
    from delayedq.store.database import Database

# The statements behind the dashboard: one text for all databases, but for a few words by vendor.
#
# Each reads the slices of a sample along an index, and counts by bucket: of `width` seconds, from `start` on.


# `place` numbers the latencies of each bucket in their order; what never started, or was moved after its start, has
# none (`sql.waits`). Messages with a channel may have waited for a limit: theirs are numbered apart.
ENDED = """
WITH ended AS (
    SELECT {ended_in} AS bucket, outcome, {latency} AS latency, CASE WHEN {limited} THEN 1 ELSE 0 END AS limited
    FROM {ended_then}
    WHERE outcome <> 'superseded' {only}
),
ranked AS (
    SELECT bucket, outcome, latency, limited, count(latency) OVER (PARTITION BY bucket, limited) AS started,
        row_number() OVER (PARTITION BY bucket, limited, latency IS NULL ORDER BY latency) AS place
    FROM ended
)
SELECT bucket, count(*), count(CASE WHEN outcome = 'failed' THEN 1 END),
    min(CASE WHEN limited = 0 AND place >= 0.50 * started THEN latency END),
    min(CASE WHEN limited = 0 AND place >= 0.95 * started THEN latency END),
    min(CASE WHEN limited = 1 AND place >= 0.95 * started THEN latency END)
FROM ranked GROUP BY bucket ORDER BY bucket
"""

# The same by task and by queue, with how long the last attempts ran. `by_wait` and `by_run` number those that have one.
_DURATIONS = """
WITH ended AS (
    SELECT {group} AS name, outcome, {{latency}} AS wait, {{run}} AS run
    FROM {{ended_then}}
    WHERE outcome <> 'superseded' {{only}}
),
ranked AS (
    SELECT name, outcome, wait, run, count(run) OVER (PARTITION BY name) AS ran,
        count(wait) OVER (PARTITION BY name) AS waited,
        row_number() OVER (PARTITION BY name, wait IS NULL ORDER BY wait) AS by_wait,
        row_number() OVER (PARTITION BY name, run IS NULL ORDER BY run) AS by_run
    FROM ended
)
SELECT name, count(*), count(CASE WHEN outcome = 'failed' THEN 1 END),
    min(CASE WHEN by_wait >= 0.50 * waited THEN wait END), min(CASE WHEN by_wait >= 0.95 * waited THEN wait END),
    min(CASE WHEN by_run >= 0.50 * ran THEN run END), min(CASE WHEN by_run >= 0.95 * ran THEN run END), max(run),
    sum(count(*)) OVER ()
FROM ranked GROUP BY name ORDER BY count(*) DESC, name LIMIT %(limit)s
"""

DURATIONS_OF_TASKS = _DURATIONS.format(group="message.kind")

DURATIONS_OF_QUEUES = _DURATIONS.format(group="message.queue")

# When threads were busy, by queue or by worker: for each pair of buckets in which attempts began and ended, how many,
# and the sums of both moments in seconds from `start` on. What never started has no first bucket. Clocks of hosts
# differ: what ended before it started took no time. Bare queues have no threads of a worker, and no name here.
_BUSY = """
WITH ended AS (
    SELECT CASE WHEN queue LIKE '%%|%%' THEN NULL ELSE {group} END AS name, started_at, finished_at,
        CASE WHEN started_at < {{start}} THEN {{start}} WHEN started_at > finished_at THEN finished_at
            ELSE started_at END AS begun_at
    FROM {{ended_then}}
),
divided AS (
    SELECT name, {{begun_in}} AS begun_in, {{ended_in}} AS ended_in, {{begun_after}} AS begun_after,
        {{ended_after}} AS ended_after
    FROM ended
)
SELECT name, begun_in, ended_in, count(*), sum(begun_after), sum(ended_after)
FROM divided GROUP BY name, begun_in, ended_in
"""

BUSY_BY_QUEUE = _BUSY.format(group="queue")

BUSY_BY_WORKER = _BUSY.format(group="worker")

# The dead letters have an index of their own.
DEAD = """
SELECT {ended_in} AS bucket, count(*)
FROM {dead_then}
GROUP BY bucket ORDER BY bucket
"""

# What came in and has ended did both in the same span. A superseded attempt has an id of its own, but is no message.
CREATED_ENDED = """
SELECT {created_in} AS bucket, count(*)
FROM {ended_then}
WHERE created_at >= {start} AND created_at < {end} AND outcome <> 'superseded' {only}
GROUP BY bucket ORDER BY bucket
"""

# Creation times are in no index, but ids rise with them.
CREATED_LIVE = """
SELECT {created_in} AS bucket, count(*)
FROM {live}
WHERE created_at >= {start} AND created_at < {end} {only}
GROUP BY bucket ORDER BY bucket
"""

# Bucket -1 has what is overdue.
FALLING_DUE = f"""
SELECT CASE WHEN scheduled_at < {{start}} THEN -1 ELSE {{due_in}} END AS bucket, count(*)
FROM {{live}}
WHERE scheduled_at < {{end}} AND {free("message", "{start}")}
GROUP BY bucket ORDER BY bucket
"""

#: Of one task, or of one queue.
ONLY = {"kind": "AND message.kind = %(kind)s", "queue": "AND message.queue = %(queue)s"}


def in_words(template: str, dialect: Dialect, only: Iterable[str] = ()) -> str:
    """One of the statements above, in the words of a database. `only`: which of ONLY it asks."""
    return template.format(
        only=" ".join(ONLY[name] for name in only),
        ended_then=dialect.sliced.format(
            table="delayedq_finishedmessage", column="finished_at", type=dialect.time_type
        ),
        dead_then=dialect.dead,
        live=dialect.sliced.format(table="delayedq_message", column="id", type="bigint"),
        start=dialect.moment.format("start"),
        end=dialect.moment.format("end"),
        limited=f"message.metadata LIKE '%%\"{METADATA_KEY}\"%%'",
        latency=in_sql(dialect.seconds.format(later="started_at", earlier="scheduled_at")),
        run=dialect.seconds.format(later="finished_at", earlier="started_at"),
        begun_in=dialect.bucket.format(time="begun_at"),
        begun_after=dialect.seconds.format(later="begun_at", earlier=dialect.moment.format("start")),
        ended_after=dialect.seconds.format(later="finished_at", earlier=dialect.moment.format("start")),
        ended_in=dialect.bucket.format(time="finished_at"),
        created_in=dialect.bucket.format(time="created_at"),
        place_due_in=dialect.bucket.format(time="due_at"),
        due_in=dialect.bucket.format(time="scheduled_at"),
    )


# Figures


class Grid(NamedTuple):
    """Buckets of `width` seconds, from `start` (on a whole second) until `end`, which is not included."""

    start: datetime
    end: datetime
    width: int

    @classmethod
    def around(cls, now: datetime, buckets: int, width: int) -> Grid:
        """So many buckets, of which the last one contains `now`. Each begins at a multiple of its width."""
        step = timedelta(seconds=width)
        end = EPOCH + ((now - EPOCH) // step + 1) * step
        return cls(end - buckets * step, end, width)

    def start_of(self, number: int) -> datetime:
        """Where a bucket begins, in UTC; the first one has the number 0."""
        return (self.start + number * timedelta(seconds=self.width)).astimezone(UTC)


class EndedCount(NamedTuple):
    """How many messages of the sample ended in a bucket, and how late they had started: seconds after they were due.

    The latencies are None if none had started, or none is known (`sql.waits`). `limited_p95`: of those with a channel,
    which the others are without.
    """

    bucket: int
    ended: int
    failed: int
    p50: float | None
    p95: float | None
    limited_p95: float | None


class Durations(NamedTuple):
    """Of the messages of a sample that are of one task, or queue: how many ended, how many of them failed, and in
    seconds how long they waited from due to the start of their last attempt, and how long that ran.

    The durations are None if none had started.
    """

    name: str
    ended: int
    failed: int
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None
    slowest: float | None
    #: How many ended of all tasks, or queues, also of those that are not told.
    of_all: int


class Busy(NamedTuple):
    """Attempts of a queue, or by a worker, that began in one bucket and ended in another, or the same one.

    `began` and `ended`: the sums of both moments, in seconds after the beginning of the first bucket. Of what never
    started, all but `number` is None; `name` is "" for bare queues, and where no worker is known.
    """

    name: str
    began_in: int | None
    ended_in: int
    number: int
    began: float
    ended: float


class FiguresStore:
    """Of one database. A sample is of `finished_at`, in microseconds since the epoch, or of ids."""

    def __init__(self, database: Database, only: Mapping[str, str] | None = None) -> None:
        self._database = database
        self._only = only or {}

    def of(self, **only: str) -> Self:
        """Those of one task (`kind`), one `queue`, or both; but `dead` and what falls due are of all."""
        return type(self)(self._database, only)

    def ended(self, grid: Grid, times: Sample) -> list[EndedCount]:
        return [EndedCount(*row) for row in self.rows(ENDED, grid, self._instants(times))]

    def durations(self, times: Sample, limit: int, *, by_queue: bool) -> list[Durations]:
        """By task, or by queue: those of which most ended, at most `limit`."""
        statement = DURATIONS_OF_QUEUES if by_queue else DURATIONS_OF_TASKS
        rows = self._counted(statement, self._instants(times), limit=limit)
        return [Durations._make([*row[:-1], int(row[-1])]) for row in rows]

    def busy(self, grid: Grid, times: Sample, *, by_worker: bool) -> list[Busy]:
        """When the last attempts of what ended ran, by queue or by worker."""
        rows = self.rows(BUSY_BY_WORKER if by_worker else BUSY_BY_QUEUE, grid, self._instants(times))
        return [Busy(name or "", first, last, n, float(b or 0), float(e or 0)) for name, first, last, n, b, e in rows]

    def came_and_ended(self, grid: Grid, times: Sample) -> dict[int, int]:
        """How many of the same messages were created in each bucket."""
        return dict(self.rows(CREATED_ENDED, grid, self._instants(times)))

    def dead(self, grid: Grid, times: Sample) -> dict[int, int]:
        """How many dead letters, by bucket: from their own index, which MySQL does not have."""
        return dict(self.rows(DEAD, grid, self._instants(times)))

    def created(self, grid: Grid, ids: Sample) -> dict[int, int]:
        """How many live messages with these ids were created, by bucket."""
        return dict(self.rows(CREATED_LIVE, grid, ids.slices))

    def falling_due(self, grid: Grid, ids: Sample) -> dict[int, int]:
        """How many live messages with these ids fall due, by bucket; -1 has what is overdue."""
        return dict(self.rows(FALLING_DUE, grid, ids.slices))

    def _instants(self, times: Sample) -> list[list[str]]:
        stored = self._database.dialect.stored
        return [[str(stored(instant(end))) for end in part] for part in times.slices]

    def rows(self, template: str, grid: Grid, slices: Any) -> list[Any]:
        """Those of one such statement, which counts by the buckets of the grid."""
        stored = self._database.dialect.stored
        return self._counted(template, slices, start=stored(grid.start), end=stored(grid.end), width=grid.width)

    def _counted(self, template: str, slices: Any, **parameters: Any) -> list[Any]:
        statement = in_words(template, self._database.dialect, self._only)
        return self._database.counted(statement, {"slices": json.dumps(slices), **self._only, **parameters})


# How dead letters are told apart: statements that read the index of fingerprints, and no more of it than a bound.
#
# What is asked of each of several groups is one statement, with a part for each; `{n}` numbers its parameter.


# A loose scan: one probe per group, and two for its ends, however many dead letters each has.
GROUPS = """
WITH RECURSIVE known (fingerprint) AS (
    SELECT min(fingerprint) FROM delayedq_finishedmessage WHERE fingerprint IS NOT NULL
    UNION ALL
    SELECT (SELECT min(fingerprint) FROM delayedq_finishedmessage AS dead WHERE dead.fingerprint > known.fingerprint)
    FROM known WHERE fingerprint IS NOT NULL
)
SELECT fingerprint,
    (SELECT min(finished_at) FROM delayedq_finishedmessage AS dead WHERE dead.fingerprint = known.fingerprint),
    (SELECT max(finished_at) FROM delayedq_finishedmessage AS dead WHERE dead.fingerprint = known.fingerprint)
FROM known WHERE fingerprint IS NOT NULL LIMIT %(most)s
"""

_NEWEST = """
SELECT {n}, id, error, kind, queue FROM (
    SELECT id, error, kind, queue FROM delayedq_finishedmessage
    WHERE fingerprint = %(group_{n})s
    ORDER BY fingerprint DESC, finished_at DESC, id DESC LIMIT 1
) AS newest_{n}
"""

_SIZES = """
SELECT {n}, count(*) FROM (
    SELECT 1 AS one FROM delayedq_finishedmessage WHERE fingerprint = %(group_{n})s LIMIT %(most)s
) AS counted_{n}
"""

_LATELY = """
SELECT {n}, bucket, count(*) FROM (
    SELECT {{bucket}} AS bucket FROM (
        SELECT finished_at FROM delayedq_finishedmessage
        WHERE fingerprint = %(group_{n})s AND finished_at >= {{start}} AND finished_at < {{end}}
        ORDER BY fingerprint DESC, finished_at DESC LIMIT %(most)s
    ) AS latest_{n}
) AS counted_{n} GROUP BY bucket
"""


def newest(groups: int) -> str:
    return _each(_NEWEST, groups)


def sizes(groups: int) -> str:
    return _each(_SIZES, groups)


def lately(groups: int, dialect: Dialect) -> str:
    bucket = dialect.bucket.format(time="finished_at")
    start, end = dialect.moment.format("start"), dialect.moment.format("end")
    return _each(_LATELY, groups).format(bucket=bucket, start=start, end=end)


def _each(part: str, groups: int) -> str:
    return " UNION ALL ".join(part.format(n=n) for n in range(groups))


# The dead letters by what they failed of: groups of those that share a fingerprint (`core.errors`).


class Extent(NamedTuple):
    """A group, and when its first and its last dead letter ended."""

    fingerprint: int
    first_at: datetime
    last_at: datetime


class Newest(NamedTuple):
    """The dead letter of a group that ended last."""

    id: int
    error: str
    kind: str
    queue: str


class ErrorGroupStore:
    """Those of one database. `groups`: statement that finds them. Every verb may raise django.db.Error."""

    def __init__(self, database: Database, groups: str = GROUPS) -> None:
        self._database = database
        self._groups = groups

    def extents(self, most: int) -> list[Extent]:
        """Up to `most` groups, in no order that says anything; one statement, which reads three rows of each."""
        instant = self._database.dialect.instant
        rows = self._database.counted(self._groups, {"most": most})
        return [Extent(fingerprint, instant(first), instant(last)) for fingerprint, first, last in rows]

    def newest(self, fingerprints: Sequence[int]) -> dict[int, Newest]:
        """The latest of each group that has one; one statement."""
        rows = self._rows(newest(len(fingerprints)), fingerprints)
        return {fingerprints[n]: Newest(id_, error or "", kind, queue) for n, id_, error, kind, queue in rows}

    def sizes(self, fingerprints: Sequence[int], most: int) -> dict[int, int]:
        """How many dead letters each group has, counted up to `most`; one statement."""
        return {fingerprints[n]: size for n, size in self._rows(sizes(len(fingerprints)), fingerprints, most=most)}

    def lately(self, fingerprints: Sequence[int], grid: Grid, most: int) -> dict[int, dict[int, int]]:
        """By group, how many of its latest `most` dead letters ended in each bucket of the grid; one statement."""
        dialect, found = self._database.dialect, {fingerprint: dict[int, int]() for fingerprint in fingerprints}
        times = {"start": dialect.stored(grid.start), "end": dialect.stored(grid.end), "width": grid.width}
        for n, bucket, size in self._rows(lately(len(fingerprints), dialect), fingerprints, most=most, **times):
            found[fingerprints[n]][bucket] = size
        return found

    def _rows(self, statement: str, fingerprints: Sequence[int], **parameters: Any) -> list[tuple[Any, ...]]:
        if not fingerprints:
            return []
        asked = {f"group_{n}": fingerprint for n, fingerprint in enumerate(fingerprints)}
        return self._database.counted(statement, {**asked, **parameters})
