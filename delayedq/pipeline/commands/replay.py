"""The step `replay`: messages that ended are sent again, each once.

What was sent is known by message, in a table that is written in the transaction of the offers. So a replay is completed
by running it again, after it was killed or when more messages of its days have ended, and two at once share the work.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.functions import coalesce, col, lit

from delayedq.core.bounds import KEY_LENGTH, NAME_LENGTH, is_storable
from delayedq.exceptions import InvalidOption
from delayedq.limits.declared import UNLIMITED, lines_up, rules_known
from delayedq.pipeline.commands.load import offer
from delayedq.pipeline.commands.view import viewed
from delayedq.pipeline.models import ReplayedMessage
from delayedq.pipeline.spark import replay
from delayedq.store.protocol import BARE
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from delayedq.pipeline.commands.view import View
    from delayedq.pipeline.opening import Options, Pipeline
    from delayedq.pipeline.spark.replay import Choice, ReplayGroup

#: So that key and load, which have it in them beside an id and a token, can be stored.
ID_LENGTH = min(KEY_LENGTH - len(replay.prefix("")) - len(str(2**63 - 1)), NAME_LENGTH - 20)


def run_replay(pipeline: Pipeline, options: Options) -> None:
    """Tell what the options choose; with `send`, offer what was not sent yet.

    Raises LakeUnusable, InvalidOption, LoadFailed.
    """
    speed = options["speed"]
    choice = replay.Choice(
        since=options["since"],
        until=options["until"] or options["since"] + timedelta(days=1),
        states=options["state"] or (["failed"] if speed is None else ["failed", "succeeded"]),
        kinds=options["task"],
    )
    if choice.until <= choice.since:
        raise InvalidOption(f"--until, {choice.until}, is not later than --since, {choice.since}.")
    replay_id = options["replay_id"] or hashlib.sha256(f"{choice} {speed}".encode()).hexdigest()[:16]
    _check_id(replay_id)
    with viewed(pipeline, since=choice.since, until=choice.until) as view:
        messages = _judged(pipeline, view, choice, replay_id)
        groups = replay.groups(messages)
        _check_kinds(choice, groups)
        _check_masked(groups)
        number = _told(pipeline, groups)
        if not number:
            pipeline.tell(f"Replay {replay_id} has nothing to send.")
        elif not options["send"]:
            pipeline.tell(f"This was a dry run of replay {replay_id}: --send sends {number:,} messages.")
        else:
            unknown = [group.kind for group in groups if not _is_known(group.kind)]
            rest = messages.where(~col("sent") & ~col("kind").isin(*unknown))
            offers = replay.offers(rest, replay_id, pipeline.store.now(), speed)
            _send(pipeline, offers, replay_id, f"replay of {choice.since} to {choice.until}")


def _send(pipeline: Pipeline, offers: DataFrame, replay_id: str, source: str) -> None:
    done = offer(pipeline, offers, f"{replay_id}:{secrets.token_hex(8)}", source, once=True)
    pipeline.tell(f"Replay {replay_id}: {done.inserted or 0:,} messages were sent.")
    if done.duplicates:
        pipeline.tell(f"{done.duplicates:,} others were sent by another run of it meanwhile.")


def _judged(pipeline: Pipeline, view: View, choice: Choice, replay_id: str) -> DataFrame:
    """The chosen messages, and what is known of each; those that this replay itself has sent are not chosen."""
    prefix = replay.prefix(replay_id)
    messages = view.database.withColumn("archived", lit(False))
    if view.lake is not None:
        messages = messages.unionByName(view.lake.withColumn("archived", lit(True)))
    own = coalesce(col("key").rlike(f"^{re.escape(prefix)}[0-9]+$"), lit(False))
    keys = ReplayedMessage.objects.filter(key__startswith=prefix).values_list("key", flat=True)
    numbers = (key.removeprefix(prefix) for key in keys.iterator())
    # Those of a replay whose id begins like this one hold more than a number.
    ids = [int(number) for number in numbers if number.isdecimal()]
    sent = pipeline.spark.createDataFrame(pa.table({"id": pa.array(ids, pa.int64())}))
    live = view.database.where(col("finished_at").isNull())
    return replay.judged(choice.of(messages.where(~own)), live, sent)


def _told(pipeline: Pipeline, groups: list[ReplayGroup]) -> int:
    """Tell what there is; returns how many are to be sent."""
    kept = [group for group in groups if not group.sent and _is_known(group.kind)]
    totals: dict[tuple[str, str], int] = {}
    for group in kept:
        totals[group.kind, group.state] = totals.get((group.kind, group.state), 0) + group.number
    for (kind, state), number in totals.items():
        pipeline.tell(f"  {number:>9,}  {kind} {state}")
    left_out = sorted({group.kind for group in groups if not _is_known(group.kind)})
    limited = [kind for kind in left_out if kind in registered or BARE in kind]
    unknown = [kind for kind in left_out if kind not in limited]
    for number, what in (
        (_sum(group for group in kept if not group.archived), "of them are not archived yet"),
        (
            _sum(group for group in kept if group.beside),
            "of them have a key that is live again, and run beside it",
        ),
        (_sum(group for group in groups if group.sent), "others were sent before by this replay"),
        (
            _sum(group for group in groups if group.kind in unknown and not group.sent),
            f"others are of tasks that are not registered here, and are left out: {', '.join(unknown)}",
        ),
        (
            _sum(group for group in groups if group.kind in limited and not group.sent),
            f"others have channels or limits, which a replay would pass by, and are left out: {', '.join(limited)}",
        ),
    ):
        if number:
            pipeline.tell(f"  {number:>9,}  {what}")
    return _sum(kept)


def _sum(groups: Iterable[ReplayGroup]) -> int:
    return sum(group.number for group in groups)


def _is_known(kind: str) -> bool:
    """Is it a bare queue, or a task that a worker of this project would run? What has limits is not sent past them."""
    if BARE in kind:
        return rules_known(kind).scopes[0][1] == UNLIMITED
    return kind in registered and not lines_up(registered[kind])


def _check_kinds(choice: Choice, groups: list[ReplayGroup]) -> None:
    there = {group.kind for group in groups}
    if unknown := [kind for kind in choice.kinds if kind not in there and kind not in registered]:
        raise InvalidOption(
            f"--task {unknown[0]}: no such task is registered, and no message of these days has it; "
            f"there are {', '.join(sorted(there)) or 'no messages of the chosen states and tasks'}."
        )


def _check_masked(groups: list[ReplayGroup]) -> None:
    if kinds := sorted({group.kind for group in groups if group.masked and not group.sent}):
        raise InvalidOption(
            f"The arguments of {', '.join(kinds)} were masked when they were archived (ARCHIVE_SENSITIVE), so these "
            "messages can't be sent again: choose others by --task or --since."
        )


def _check_id(replay_id: str) -> None:
    if not 1 <= len(replay_id) <= ID_LENGTH or not is_storable(replay_id):
        raise InvalidOption(f"--replay-id: 1 to {ID_LENGTH} characters that name this replay, not {replay_id[:40]!r}.")
