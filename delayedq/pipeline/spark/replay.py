"""From history back into the queue: a message for each that ended, with the key `replay:REPLAY:ID`.

To repair is to run again, as soon as workers come to it. To trace is to run again in the rhythm of then: what was due
an hour after the first is due an hour after the start, or sooner by the factor `speed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F

from delayedq.core.masking import MASKED
from delayedq.pipeline.spark.schema import OFFERS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime

    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which messages are sent again: those that finished on the days (UTC) from `since` until before `until`.

    kinds: of these tasks or bare queues only; empty for all.
    """

    since: date
    until: date
    states: Sequence[str] = ("failed",)
    kinds: Sequence[str] = ()

    def of(self, messages: DataFrame) -> DataFrame:
        """Those of the messages (LAKE) that are chosen; of one that ended several times the last end."""
        days = (F.col("day") >= F.lit(self.since)) & (F.col("day") < F.lit(self.until))
        chosen = messages.where(days & F.col("state").isin(*self.states))
        chosen = chosen.where(F.col("kind").isin(*self.kinds)) if self.kinds else chosen
        last = F.row_number().over(Window.partitionBy("id").orderBy(F.col("finished_at").desc()))
        return chosen.withColumn("__end", last).where(F.col("__end") == 1).drop("__end")


class ReplayGroup(NamedTuple):
    """How many chosen messages have all of this in common.

    sent: this replay sent them before. archived: they are in the lake. beside: their key is live again. masked: the
    archive has masked their arguments.
    """

    kind: str
    state: str
    sent: bool
    archived: bool
    beside: bool
    masked: bool
    number: int


def judged(chosen: DataFrame, live: DataFrame, sent: DataFrame) -> DataFrame:
    """The chosen messages, with the columns `sent`, `beside` and `masked` of a Group.

    live: the messages that have not ended. sent: the ids that were sent before, in the column `id`.
    """
    keys = live.where(F.col("key").isNotNull()).select("kind", "key").distinct().withColumn("beside", F.lit(True))
    before = sent.select("id").withColumn("sent", F.lit(True))
    found = chosen.join(before, "id", "left").join(keys, ["kind", "key"], "left")
    known = {name: F.coalesce(name, F.lit(False)) for name in ("sent", "beside")}
    return found.withColumns({**known, "masked": F.col("payload") == MASKED})


def groups(messages: DataFrame) -> list[ReplayGroup]:
    """Of judged messages."""
    names = ReplayGroup._fields[:-1]
    return [ReplayGroup(*row) for row in messages.groupBy(*names).count().orderBy(*names).collect()]


def prefix(replay_id: str) -> str:
    """Of the keys of what this replay sends."""
    return f"replay:{replay_id}:"


def offers(messages: DataFrame, replay_id: str, start: datetime, speed: float | None = None) -> DataFrame:
    """The messages (OFFERS) that replay those (LAKE). `speed` None: all are due at once."""
    key = F.concat(F.lit(prefix(replay_id)), F.col("id").cast("string"))
    columns = {"key": key, "scheduled_at": F.lit(None).cast("timestamp") if speed is None else _due(start, speed)}
    if speed is not None:
        first = messages.agg(F.min("scheduled_at_initially").alias("__first"))
        messages = messages.crossJoin(F.broadcast(first))
    return messages.withColumns(columns).select(OFFERS.names)


def _due(start: datetime, speed: float) -> Column:
    since = F.unix_micros("scheduled_at_initially") - F.unix_micros("__first")
    return F.timestamp_micros(F.unix_micros(F.lit(start)) + (since / F.lit(speed)).cast("long"))
