"""From the lake back into the queue: a message for each that ended, with the key `replay:REPLAY:ID`.

To repair is to run again, as soon as workers come to it. To trace is to run again in the rhythm of then: what was due
an hour after the first is due an hour after the start, or sooner by the factor `speed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from delayedq.spark.schema import OFFERS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime

    from pyspark.sql import Column, DataFrame

    from delayedq.spark.lake import Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which messages are sent again: those that finished on the days (UTC) from `since` until before `until`.

    kinds: of these tasks or bare queues only; empty for all.
    """

    since: date
    until: date
    states: Sequence[str] = ("failed",)
    kinds: Sequence[str] = ()

    def of(self, lake: Lake) -> DataFrame:
        messages = lake.history(self.since, self.until).where(F.col("state").isin(*self.states))
        return messages.where(F.col("kind").isin(*self.kinds)) if self.kinds else messages


def counts(messages: DataFrame) -> list[tuple[str, str, int]]:
    """How many of each kind and state."""
    groups = messages.groupBy("kind", "state").count().orderBy("kind", "state")
    return [(row.kind, row.state, row["count"]) for row in groups.collect()]


def offers(messages: DataFrame, replay_id: str, start: datetime, speed: float | None = None) -> DataFrame:
    """The messages (OFFERS) that replay those (LAKE). `speed` None: all are due at once."""
    key = F.concat(F.lit(f"replay:{replay_id}:"), F.col("id").cast("string"))
    columns = {"key": key, "scheduled_at": F.lit(None).cast("timestamp") if speed is None else _due(start, speed)}
    if speed is not None:
        first = messages.agg(F.min("scheduled_at_initially").alias("__first"))
        messages = messages.crossJoin(F.broadcast(first))
    return messages.withColumns(columns).select(OFFERS.names)


def _due(start: datetime, speed: float) -> Column:
    since = F.unix_micros("scheduled_at_initially") - F.unix_micros("__first")
    return F.timestamp_micros(F.unix_micros(F.lit(start)) + (since / F.lit(speed)).cast("long"))
