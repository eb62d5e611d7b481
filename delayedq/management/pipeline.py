"""The steps of `run_pipeline`: what they need from the settings, and what they tell.

Each takes the open pipeline and the parsed arguments.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delayedq.conf import get_settings
from delayedq.exceptions import InvalidOption
from delayedq.models import ArchiveBatch, ArchiveState
from delayedq.pipeline import loading
from delayedq.pipeline.address import address_of
from delayedq.pipeline.archiving import BATCH_ROWS, Archiving
from delayedq.spark import load, register, replay
from delayedq.spark.connecting import Address
from delayedq.spark.lake import Lake, as_in_lake
from delayedq.spark.session import spark_session
from delayedq.store import default_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from delayedq.store.protocol import Store

    Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What all steps use. `tell` writes a line for the operator."""

    spark: SparkSession
    store: Store
    address: Address
    tell: Callable[[str], object]
    lake_path: str | None = None

    @property
    def lake(self) -> Lake:
        if self.lake_path is None:
            raise InvalidOption("There is no lake: set DELAYEDQ['LAKE'], or pass --lake.")
        return Lake(self.spark, self.lake_path)


def run(step: str, options: Options, tell: Callable[[str], object]) -> None:
    """Raises PipelineError."""
    steps = {"load": run_load, "archive": run_archive, "report": run_report, "replay": run_replay}
    with opened(options, tell) as pipeline:
        started = time.monotonic()
        steps[step](pipeline, options)
        tell(f"Done in {time.monotonic() - started:.1f} s.")


@contextmanager
def opened(options: Options, tell: Callable[[str], object]) -> Iterator[Pipeline]:
    settings, store = get_settings(), default_store()
    remote = options["remote"] or (None if options["master"] else settings.SPARK_REMOTE)
    master = None if remote else options["master"] or settings.SPARK_MASTER
    where = options["address"] or settings.SPARK_ADDRESS
    progress = {"spark.ui.showConsoleProgress": "true"} if sys.stderr.isatty() and not remote else {}
    with address_of(store.alias) as here, spark_session(master, remote, progress) as spark:
        register(spark)
        address = Address(where) if where else here
        yield Pipeline(spark, store, address, tell, options["lake"] or settings.LAKE)


# Load


def run_load(pipeline: Pipeline, options: Options) -> None:
    spark, tell = pipeline.spark, pipeline.tell
    files = load.Files.of(options["files"], null=options["null"], multiline=options["multiline"])
    mapped = _mapped(options)
    recipe = loading.recipe(mapped, files.columns(spark))
    used = {name: options[name] for name in ("null", "multiline", "duplicates", "spread")}
    load_id = options["load_id"] or loading.load_id_of(files.identity(spark), mapped, used)
    if done := loading.loaded(load_id):
        tell(f"Load {load_id} is loaded since {done.finished_at}: {done.inserted or 0:,} messages. Nothing to do.")
        return
    tell(f"Checking rows for {recipe.kind} ...")
    rows = load.checked(files, spark, recipe, load.Duplicates(options["duplicates"])).persist()
    try:
        counts = load.counts(rows)
        tell(f"{counts.accepted:,} rows are good, {counts.rejected:,} are refused.")
        if counts.rejected:
            _write_rejects(pipeline, rows, counts, _rejects_file(options))
        if options["dry_run"]:
            tell("This was a dry run: nothing is loaded.")
        else:
            _offer(
                pipeline, load.accepted(rows, pipeline.store.now(), options["spread"]), load_id, " ".join(files.paths)
            )
    finally:
        rows.unpersist()


def _mapped(options: Options) -> loading.Mapped:
    return loading.Mapped(
        task=options["task"],
        key=options["key"],
        at=options["at"],
        at_format=options["at_format"],
        zone=options["timezone"],
        arguments=dict(options["argument"]),
        ignored=tuple(options["ignore"]),
        strict=not options["ignore_others"],
    )


def _rejects_file(options: Options) -> Path:
    """Beside the first file; or here, if that is somewhere else than on this machine."""
    if options["rejects"]:
        return Path(options["rejects"])
    first = Path(options["files"][0])
    name = f"{first.name}.rejects.jsonl"
    return first.with_name(name) if first.parent.is_dir() and "*" not in name else Path("rejects.jsonl")


def _write_rejects(pipeline: Pipeline, rows: DataFrame, counts: load.Counts, path: Path) -> None:
    for reason, number in counts.reasons:
        pipeline.tell(f"  {number:>9,}  {reason}")
    with path.open("w", encoding="utf-8") as file:
        for refused in load.rejected(rows):
            file.write(json.dumps(refused, ensure_ascii=False) + "\n")
    pipeline.tell(f"The refused rows, with their reasons, are in {path}.")


def _offer(pipeline: Pipeline, offers: DataFrame, load_id: str, source: str) -> None:
    done = loading.write(offers, pipeline.address, load_id, source)
    pipeline.tell(
        f"Load {load_id}: {done.inserted or 0:,} messages are new, "
        f"{done.duplicates or 0:,} had the key of a live message."
    )


# Archive


def run_archive(pipeline: Pipeline, options: Options) -> None:
    cutoff = pipeline.store.now() - (
        options["older_than"] if options["older_than"] is not None else get_settings().ARCHIVE_AFTER
    )
    archiving = Archiving(
        pipeline.spark, pipeline.store, pipeline.address, pipeline.lake.path, lambda batch: _tell(pipeline, batch)
    )
    moved = 0
    for done in archiving.run(cutoff, options["batch_rows"] or BATCH_ROWS):
        moved += done.row_count
        pipeline.tell(f"Batch {done.name}: {done.row_count:,} messages are in the lake, {done.deleted:,} rows deleted.")
    if not moved:
        pipeline.tell(f"Nothing ended before {cutoff:%Y-%m-%d %H:%M:%S} UTC.")


_NEXT = {
    ArchiveState.PLANNED: "writing what ended before",
    ArchiveState.WRITTEN: "reading back what ended before",
    ArchiveState.VERIFIED: "deleting what ended before",
}


def _tell(pipeline: Pipeline, batch: ArchiveBatch) -> None:
    step = _NEXT[ArchiveState(batch.state)]
    pipeline.tell(f"Batch {batch.name}: {step} {batch.cutoff:%Y-%m-%d %H:%M:%S} UTC ...")


# Report


def run_report(pipeline: Pipeline, options: Options) -> None:
    from delayedq.spark import figures, report
    from delayedq.spark.capacity import Target

    messages = known_messages(pipeline, only_lake=options["only_lake"])
    since, until = options["since"], options["until"]
    if since is None or until is None:
        found = figures.span(messages)
        if found is None:
            pipeline.tell("No message has ended yet: there is nothing to report.")
            return
        since, until = since or found[0], until or found[1]
    pipeline.tell(f"Measuring {since:%Y-%m-%d %H:%M:%S} to {until:%Y-%m-%d %H:%M:%S} UTC ...")
    target = Target(options["within"].total_seconds(), options["share"])
    if until <= since:
        raise InvalidOption(f"--until, {until}, is not later than --since, {since}.")
    measured = figures.measure(messages, since, until, target=target, lease=get_settings().LEASE)
    page = report.write(measured, Path(options["output"]), pipeline.store.now())
    pipeline.tell(f"The report is {page.absolute()}.")


def known_messages(pipeline: Pipeline, *, only_lake: bool) -> DataFrame:
    """All messages of the lake, if there is one, and of the database (LAKE); each once."""
    lake = pipeline.lake.history() if pipeline.lake_path or only_lake else None
    if only_lake and lake is not None:
        return lake
    reader = pipeline.spark.read.format("delayedq").option("address", pipeline.address.reference)
    # Between its publication and its deletion a batch is in both places.
    for batch in ArchiveBatch.objects.filter(is_open=True, state=ArchiveState.VERIFIED):
        reader = reader.option("since", batch.cutoff.isoformat())
    here = as_in_lake(reader.load())
    return here if lake is None else lake.unionByName(here)


# Replay


def run_replay(pipeline: Pipeline, options: Options) -> None:
    speed = options["speed"]
    choice = replay.Choice(
        since=options["since"],
        until=options["until"] or options["since"] + timedelta(days=1),
        states=options["state"] or (["failed"] if speed is None else ["failed", "succeeded"]),
        kinds=options["task"],
    )
    messages = choice.of(pipeline.lake)
    for kind, state, number in replay.counts(messages):
        pipeline.tell(f"  {number:>9,}  {kind} {state}")
    replay_id = options["replay_id"] or hashlib.sha256(f"{choice} {speed}".encode()).hexdigest()[:16]
    if done := loading.loaded(replay_id):
        pipeline.tell(f"Replay {replay_id} was sent at {done.finished_at}. Nothing to do; --replay-id sends it again.")
    elif not options["send"]:
        pipeline.tell(f"This was a dry run of replay {replay_id}: --send sends them.")
    else:
        offers = replay.offers(messages, replay_id, pipeline.store.now(), speed)
        _offer(pipeline, offers, replay_id, f"replay of {choice.since} to {choice.until}")
