"""The tables of a report as DuckDB has them: written from what docs/pipeline-reference.md says, not from our code.

Percentiles are exact here, by the nearest rank. Moments are in seconds since 1970, and durations in seconds.
"""

from __future__ import annotations

_RECORDS = '[{"attempt": "INTEGER", "failed_at": "VARCHAR", "seconds": "DOUBLE", "exception": "VARCHAR"}]'

# DuckDB's greatest() passes over NULL.
_NO_LESS = "CREATE TEMP MACRO no_less(seconds) AS CASE WHEN seconds < 0 THEN 0 ELSE seconds END"

# One row for each message that was in the queue at some time of the window.
_MESSAGES = """
CREATE TEMP TABLE messages AS
WITH given AS (
    SELECT id, state, queue, kind, attempts, epoch_us(created_at) / 1e6 AS created,
        epoch_us(scheduled_at_initially) / 1e6 AS first_due, epoch_us(scheduled_at) / 1e6 AS last_due,
        epoch_us(started_at) / 1e6 AS started, epoch_us(finished_at) / 1e6 AS ended, errors,
        metadata ->> '$.cron.schedule' AS schedule,
        epoch_us(CAST(metadata ->> '$.cron.nominal_at' AS TIMESTAMPTZ)) / 1e6 AS nominal
    FROM history
), asked AS (
    SELECT * FROM given WHERE created < $until AND (ended IS NULL OR ended >= $since)
), named AS (  -- the tasks of which most messages ended in the window
    SELECT kind AS task FROM asked GROUP BY kind
    ORDER BY count(*) FILTER (ended BETWEEN $since AND $last) DESC, kind LIMIT 50
), judged AS (
    SELECT *, attempts <= 1 AND (errors IS NULL OR state IN ('succeeded', 'failed')) AS is_only,
        is_only AND coalesce(started - last_due < -1, false) AS moved,
        CASE WHEN is_only AND NOT moved THEN last_due ELSE first_due END AS due
    FROM asked
)
SELECT judged.* REPLACE (CASE WHEN task IS NULL THEN 'other tasks' ELSE kind END AS kind), judged.kind AS task,
    CASE WHEN started IS NULL AND coalesce(ended < due, false) THEN NULL ELSE greatest(created, due) END
    AS arrived
FROM judged LEFT JOIN named ON named.task = judged.kind
"""

# One row for each recorded failure.
_FAILED = f"""
CREATE TEMP TABLE failed AS
WITH records AS (SELECT id, kind, queue, state, attempts, arrived, unnest(from_json(errors, '{_RECORDS}')) AS record
    FROM messages WHERE errors IS NOT NULL)
SELECT id, kind, queue, state, attempts, arrived, record.attempt AS attempt, record.exception AS exception,
    epoch_us(CAST(record.failed_at AS TIMESTAMPTZ)) / 1e6 AS ended, record.seconds AS run, ended - run AS began
FROM records WHERE record.attempt BETWEEN 1 AND attempts
"""

# When each message first began, and when it stopped waiting.
_LIVES = """
CREATE TEMP TABLE lives AS
WITH first AS (
    SELECT m.*, CASE WHEN m.attempts <= 1 THEN coalesce(m.started, f.began) ELSE f.began END AS began
    FROM messages m LEFT JOIN failed f ON f.id = m.id AND f.attempt = 1
), known AS (
    SELECT *, CASE
        WHEN coalesce(began, started, ended) IS NOT NULL THEN coalesce(began, started, ended)
        WHEN ended IS NULL AND attempts >= 1 THEN arrived  -- it was started, nobody knows when
    END AS went FROM first
)
SELECT *, CASE WHEN went IS NOT NULL THEN greatest(went, arrived) END AS gone,
    CASE WHEN moved OR began - arrived < -1 THEN NULL ELSE no_less(began - arrived) END AS wait
FROM known
"""

# One row for each attempt that has ended and whose times are known: recorded failures, and last attempts without one.
_ATTEMPTS = """
CREATE TEMP TABLE attempts AS
SELECT id, kind, queue, arrived, began, ended, run, attempt = attempts AS is_last FROM failed WHERE run IS NOT NULL
UNION ALL
SELECT id, kind, queue, arrived, started, ended, no_less(ended - started), true FROM messages m
WHERE started IS NOT NULL AND ended IS NOT NULL
    AND NOT EXISTS (FROM failed f WHERE f.id = m.id AND f.attempt = m.attempts)
"""

# One row for each duration, at the moment that it was over.
_DURATIONS = """
CREATE TEMP TABLE durations AS
SELECT * FROM (
    SELECT 'wait' AS measure, queue, kind, gone AS moment, wait AS seconds FROM lives WHERE arrived IS NOT NULL
    UNION ALL SELECT 'run', queue, kind, ended, run FROM attempts
    UNION ALL SELECT 'turnaround', queue, kind, ended, no_less(ended - arrived) FROM messages
) WHERE seconds IS NOT NULL AND moment >= $since AND moment < $until
"""

# One row for each event. What was waiting or running when the window began happened then.
_EVENTS = """
CREATE TEMP TABLE events AS
WITH raw AS (
    SELECT CASE WHEN arrived < $since THEN 'carried' ELSE 'arrived' END AS event, queue, kind, arrived AS moment
    FROM lives
    WHERE arrived < $until AND (gone IS NULL OR gone >= $since)
    UNION ALL SELECT 'left', queue, kind, gone FROM lives WHERE arrived IS NOT NULL AND gone BETWEEN $since AND $last
    UNION ALL SELECT 'started', queue, kind, began FROM attempts WHERE ended >= $since AND began < $until
    UNION ALL SELECT 'stopped', queue, kind, ended FROM attempts WHERE ended BETWEEN $since AND $last
    UNION ALL SELECT state, queue, kind, ended FROM messages WHERE ended BETWEEN $since AND $last
)
SELECT event, queue, kind, greatest(moment, $since) AS moment FROM raw
"""

_TABLES = (_NO_LESS, _MESSAGES, _FAILED, _LIVES, _ATTEMPTS, _DURATIONS, _EVENTS)

_NEAREST = ", ".join(f"min(seconds) FILTER (rank * 100 >= n * {percent}) AS p{percent}" for percent in (50, 95, 99))


def _percentiles(rows: str, *by: str) -> str:
    """by, n, mean, p50, p95, p99, longest of the `seconds` of these rows."""
    keys = ", ".join(by)
    ranked = f"SELECT *, row_number() OVER (w ORDER BY seconds) AS rank, count(*) OVER w AS n FROM ({rows})"
    window = f"WINDOW w AS (PARTITION BY {keys})"
    return (
        f"SELECT {keys}, count(*) AS n, avg(seconds) AS mean, {_NEAREST}, max(seconds) AS longest "
        f"FROM ({ranked} {window}) GROUP BY {keys}"
    )


_RECOVERED = """
SELECT kind, no_less(ended - failed_at) AS seconds FROM messages JOIN firsts USING (id)
WHERE state = 'succeeded' AND ended BETWEEN $since AND $last
"""

_LATE = "SELECT schedule, no_less(began - nominal) AS seconds FROM ticks WHERE began IS NOT NULL"

_BUCKET = "floor(moment / $width) * $width"

# The work that arrived in each period.
_OFFERED = """
WITH parts AS (
    SELECT queue, floor(arrived / ($period / 60)) * ($period / 60) AS part, count(*) AS attempts,
        count(*) FILTER (is_last) AS messages, sum(run) AS work, sum(run * run) AS squares
    FROM attempts WHERE arrived >= $recent AND arrived < $until GROUP BY ALL
)
SELECT floor(part / $period) * $period AS period, queue, sum(messages) AS messages, sum(attempts) AS attempts,
    sum(work) AS work, sum(squares) AS squares,
    (sum(messages * messages) / 60 - pow(sum(messages) / 60, 2)) / nullif(sum(messages) / 60, 0) AS dispersion
FROM parts GROUP BY ALL
"""

# Erlang's B of n threads follows from that of n - 1, and C from B; Allen and Cunneen scale the waits of those who wait.
# Each period adds threads until 95% of its messages start within a second.
_CAPACITY = f"""
WITH RECURSIVE each AS ({_OFFERED}),
together AS (
    SELECT period, 'all queues' AS queue, sum(messages) AS messages, sum(attempts) AS attempts, sum(work) AS work,
        sum(squares) AS squares, sum(messages * coalesce(dispersion, 1)) / greatest(sum(messages), 1) AS dispersion
    FROM each WHERE (SELECT count(DISTINCT queue) > 1 FROM each) GROUP BY period
), traffic AS (
    SELECT queue, period, work,
        greatest(least(period + $period, $until) - greatest(period, $recent), least($period, $until - $recent) / 2)
            AS seconds,
        work / seconds AS load, work / attempts AS run,
        CASE WHEN messages >= 30 THEN coalesce(dispersion, 1) ELSE 1 END AS arrivals,
        CASE WHEN work > 0 THEN greatest(0, squares / attempts / (run * run) - 1) ELSE 0 END AS runs
    FROM (FROM each UNION ALL BY NAME FROM together)
), tried AS (
    SELECT queue, period, load, run * (arrivals + runs) / 2 AS scale, 0 AS threads, CAST(1 AS DOUBLE) AS b,
        false AS is_enough
    FROM traffic
    UNION ALL
    SELECT queue, period, load, scale, n, blocked,
        n > load AND (busy <= 0.05 OR scale / (n - load) * ln(busy / 0.05) <= 1)
    FROM (
        SELECT *, threads + 1 AS n, load * b / (n + load * b) AS blocked,
            blocked / (1 - load / n * (1 - blocked)) AS busy
        FROM tried WHERE NOT is_enough
    )
), needs AS (
    SELECT queue, period, load, threads, row_number() OVER (PARTITION BY queue ORDER BY threads) AS rank,
        row_number() OVER (PARTITION BY queue ORDER BY threads DESC, load DESC) = 1 AS is_peak,
        count(*) OVER (PARTITION BY queue) AS n
    FROM tried WHERE is_enough
)
SELECT queue, any_value(total) / ($until - $recent) AS mean_load, min(threads) FILTER (rank * 20 >= n * 19) AS threads,
    max(threads) AS peak_threads, any_value(period) FILTER (is_peak) AS peak_begins,
    any_value(load) FILTER (is_peak) AS peak_load
FROM needs JOIN (SELECT queue, sum(work) AS total FROM traffic GROUP BY queue) USING (queue) GROUP BY queue
"""

#: What each table holds, by its name there.
QUERIES = {
    "overall": _percentiles("SELECT measure, seconds FROM durations", "measure"),
    "by_kind": _percentiles("SELECT measure, kind, seconds FROM durations", "measure", "kind"),
    "by_time": _percentiles(f"SELECT measure, {_BUCKET} AS bucket, seconds FROM durations", "measure", "bucket"),
    "flow": f"""
        SELECT bucket, queue, kind, event, count(*) AS n, sum(least(bucket + $width, $until) - moment) AS remaining
        FROM (SELECT *, {_BUCKET} AS bucket FROM events) GROUP BY ALL""",
    # Each event is counted where it lies, and a level at an instant is what came before it, less what went.
    "backlog": """
        WITH buckets AS (
            SELECT unnest(range(CAST(floor($since / $width) AS BIGINT), CAST(ceil($until / $width) AS BIGINT))) * $width
                AS bucket
        ), cells AS (
            SELECT bucket, queue, greatest(bucket, $since) AS begins, least(bucket + $width, $until) AS ends
            FROM buckets CROSS JOIN (SELECT DISTINCT queue FROM events)
        ), steps AS (
            SELECT queue, moment, event, CASE WHEN event IN ('carried', 'arrived') THEN 1 WHEN event = 'left' THEN -1
                ELSE 0 END AS waits, CASE event WHEN 'started' THEN 1 WHEN 'stopped' THEN -1 ELSE 0 END AS runs
            FROM events
        )
        SELECT c.bucket, c.queue, c.ends - c.begins AS seconds,
            count(*) FILTER (event = 'arrived' AND moment >= c.begins) AS arrived,
            coalesce(sum(waits), 0) AS waiting, coalesce(sum(runs), 0) AS running,
            coalesce(sum(waits * (c.ends - greatest(moment, c.begins))), 0) / (c.ends - c.begins) AS waiting_mean,
            coalesce(sum(runs * (c.ends - greatest(moment, c.begins))), 0) / (c.ends - c.begins) AS running_mean
        FROM cells c LEFT JOIN steps s ON s.queue = c.queue AND s.moment < c.ends
        GROUP BY c.bucket, c.queue, c.ends, c.begins
        """,
    "retries": """
        SELECT kind, state, attempts, count(*) AS n, count(*) FILTER (arrived IS NULL) AS early
        FROM messages WHERE ended BETWEEN $since AND $last GROUP BY ALL""",
    "failures": """
        WITH told AS (SELECT *, min(attempt) OVER (PARTITION BY id, exception) < attempt AS again FROM failed)
        SELECT kind, exception, count(*) AS attempts, count(*) FILTER (NOT again) AS messages,
            count(*) FILTER (state = 'failed' AND attempt = told.attempts) AS dead, sum(run) AS wasted
        FROM told WHERE run IS NOT NULL AND exception IS NOT NULL AND ended BETWEEN $since AND $last
        GROUP BY kind, exception""",
    "recoveries": f"""
        WITH firsts AS (SELECT id, min_by(ended, attempt) AS failed_at FROM failed GROUP BY id)
        SELECT kind, n, p50, p95, longest FROM ({_percentiles(_RECOVERED, "kind")})""",
    "drift": f"""
        WITH ticks AS (SELECT * FROM lives WHERE schedule IS NOT NULL AND ended BETWEEN $since AND $last),
        late AS ({_percentiles(_LATE, "schedule")}),
        counts AS (SELECT schedule, count(*) FILTER (began IS NULL) AS cancelled,
            count(began) - count(DISTINCT CASE WHEN began IS NOT NULL THEN (nominal, task, queue) END) AS repeated
            FROM ticks GROUP BY schedule)
        SELECT schedule, coalesce(n, 0) AS n, p50, p95, longest, cancelled, repeated
        FROM counts LEFT JOIN late USING (schedule)""",
    "offered": _OFFERED,
    "capacity": _CAPACITY,
    "leases": """
        WITH spoken AS (SELECT id, count(*) AS records, bool_or(attempt = attempts) AS last FROM failed GROUP BY id),
        ended_here AS (
            SELECT m.*, CASE WHEN coalesce(records, 0) >= 20 THEN 0 ELSE greatest(0, m.attempts - coalesce(records, 0)
                - CASE WHEN state <> 'failed' AND NOT coalesce(last, false) THEN 1 ELSE 0 END) END AS unspoken
            FROM messages m LEFT JOIN spoken USING (id) WHERE ended BETWEEN $since AND $last
        )
        SELECT kind, sum(attempts) AS attempts, sum(unspoken) AS silent,
            count(*) FILTER (state = 'superseded') AS superseded,
            (SELECT max(seconds) FROM durations d WHERE d.measure = 'run' AND d.kind = ended_here.kind) AS longest
        FROM ended_here GROUP BY kind""",
    "still_open": """
        WITH open AS (SELECT *, CASE WHEN ended IS NULL THEN state ELSE 'ended later' END AS stands,
            coalesce(arrived < $until, false) AS is_due FROM messages WHERE ended IS NULL OR ended >= $until)
        SELECT kind, stands AS state, count(*) AS n, count(*) FILTER (is_due) AS due,
            max($until - arrived) FILTER (is_due) AS oldest
        FROM open GROUP BY ALL""",
}

#: What tells the rows of a table apart.
KEYS = {
    "overall": ("measure",),
    "by_kind": ("measure", "kind"),
    "by_time": ("measure", "bucket"),
    "flow": ("bucket", "queue", "kind", "event"),
    "backlog": ("bucket", "queue"),
    "retries": ("kind", "state", "attempts"),
    "failures": ("kind", "exception"),
    "recoveries": ("kind",),
    "drift": ("schedule",),
    "offered": ("period", "queue"),
    "capacity": ("queue",),
    "leases": ("kind",),
    "still_open": ("kind", "state"),
}


def judged(history, window):
    """By the name of each table and by its keys: the row as DuckDB has it. `history`: Arrow, in the lake's columns."""
    import duckdb

    values = {"since": window.since, "until": window.until, "width": float(window.width), "period": window.period}
    values["recent"] = max(window.since, window.until - 366 * 86_400)
    values["last"] = window.until - 1e-6  # moments are microseconds
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
        connection.register("history", history)
        for statement in _TABLES:
            connection.execute(statement, _named(statement, values))
        return {name: _by_keys(connection, name, values) for name in QUERIES}


def _by_keys(connection, name, values):
    answer = connection.execute(QUERIES[name], _named(QUERIES[name], values))
    names = [column for column, *_ in answer.description]
    rows = (dict(zip(names, row, strict=True)) for row in answer.fetchall())
    return {tuple(row[key] for key in KEYS[name]): row for row in rows}


def _named(statement, values):
    """DuckDB takes only the values that a statement names."""
    return {name: value for name, value in values.items() if f"${name}" in statement}
