"""Instants as integers: microseconds since 1970-01-01 UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def microseconds(instant: datetime) -> int:
    return (instant - EPOCH) // MICROSECOND


def instant(microseconds: int) -> datetime:
    return EPOCH + microseconds * MICROSECOND
