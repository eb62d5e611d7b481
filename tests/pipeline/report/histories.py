"""Rows of history, given by what a test is about."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from delayedq.pipeline.lake.columns import ARROW
from delayedq.pipeline.spark.schema import LAKE

NOON = datetime(2013, 3, 10, 12, tzinfo=UTC)


def after(seconds):
    return None if seconds is None else NOON + timedelta(seconds=seconds)


def ended(started=1.0, finished=3.0, *, created=-60.0, due=0.0, due_first=None, failures=(), **columns):
    """A message that was due at NOON; times are seconds after it. `failures`: (attempt, ended, seconds)."""
    return {
        "id": 1,
        "state": "succeeded",
        "queue": "mail",
        "kind": "app.send",
        "priority": 0,
        "attempts": 1,
        "max_attempts": 8,
        "created_at": after(created),
        "scheduled_at_initially": after(due if due_first is None else due_first),
        "scheduled_at": after(due),
        "started_at": after(started),
        "finished_at": after(finished),
        "payload": "{}",
        "errors": json.dumps([failure(*each) for each in failures]) if failures else None,
        **columns,
    }


def failure(attempt, at, seconds, exception="app.Boom"):
    return {
        "attempt": attempt,
        "failed_at": after(at).isoformat(),
        "seconds": seconds,
        "worker": "w",
        "exception": exception,
        "message": "boom",
        "traceback": "…",
    }


def frame(spark, *rows, parts=1):
    """In the columns of the lake. With one part a query needs no shuffle, as of a small queue."""
    filled = [{"schema_version": 1, "day": (row["finished_at"] or NOON).date(), **row} for row in rows]
    table = pa.Table.from_pylist([dict.fromkeys(LAKE.names) | row for row in filled], ARROW)
    return spark.createDataFrame(table, LAKE).coalesce(parts)
