"""The floor of SQLite and MariaDB: the protocol as bare SQL over Django's connection, on the tables of delayedq.

A batch is a transaction of four statements: record what has ended, delete it, find what is due, lease it.
"""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime, timedelta

from django.db import connection, transaction

from tests.benchmarks.contenders import stopwatch
from tests.benchmarks.contenders.delayedq import enqueue, fill, prepare

__all__ = ["SETTINGS", "drain", "enqueue", "fill", "prepare"]

BATCH = 500
SETTINGS = f"the same tables; a transaction of four statements per {BATCH} messages ends a batch and claims the next"
LEASE = timedelta(seconds=60)

COPIED = (
    "scheduled_at, scheduled_at_initially, created_at, priority, max_attempts, queue, kind, payload, metadata, errors"
)
RECORD = f"""
INSERT INTO delayedq_finishedmessage (id, finished_at, started_at, attempts, outcome, worker, result, {COPIED})
SELECT id, %s, claimed_at, attempt, 'succeeded', leased_by, 'null', {COPIED}
FROM delayedq_message WHERE lease_token = %s AND id IN
"""
END = "DELETE FROM delayedq_message WHERE lease_token = %s AND id IN"
FIND = """
SELECT id, payload, scheduled_at FROM delayedq_message
WHERE queue = 'default' AND priority = 0 AND scheduled_at <= %s AND scheduled_at >= %s
    AND (lease_token IS NULL OR leased_until <= %s)
ORDER BY scheduled_at, id LIMIT %s
"""
CLAIM = """
UPDATE delayedq_message
SET lease_token = %s, leased_until = %s, claimed_at = %s, leased_by = 'floor', attempt = attempt + 1 WHERE id IN
"""


def drain(_count: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT min(scheduled_at) FROM delayedq_message")
        ((floor,),) = cursor.fetchall()
        ids: list[int] = []
        old = 0
        while True:
            token = secrets.randbits(62)
            rows = _end_and_claim(cursor, ids, old, token, floor)
            for _, payload, _ in rows:
                stopwatch.lap(*json.loads(payload)["args"])
            if not rows:
                return
            ids, old, floor = [row[0] for row in rows], token, min(row[2] for row in rows)


def _end_and_claim(cursor, ids: list[int], old: int, token: int, floor: object) -> list[tuple]:
    moment = datetime.now(UTC)
    now, until = (connection.ops.adapt_datetimefield_value(one) for one in (moment, moment + LEASE))
    skip = " FOR UPDATE SKIP LOCKED" if connection.features.has_select_for_update_skip_locked else ""
    with transaction.atomic():
        if ids:
            cursor.execute(RECORD + _places(ids), [now, old, *ids])
            cursor.execute(END + _places(ids), [old, *ids])
        cursor.execute(FIND + skip, [now, floor, now, BATCH])
        rows = list(cursor.fetchall())
        if rows:
            cursor.execute(CLAIM + _places(rows), [token, until, now, *(row[0] for row in rows)])
    return rows


def _places(values: list) -> str:
    return f"({', '.join(['%s'] * len(values))})"
