"""The step `load`: rows of files become messages for a task."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delayedq.pipeline.models import Load, LoadState
from delayedq.pipeline.spark import load, register
from delayedq.pipeline.steps.recipe import Mapped, recipe_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from delayedq.pipeline.opening import Options, Pipeline


def run_load(pipeline: Pipeline, options: Options) -> None:
    """Check the rows, write the refused ones into a file, and offer the others once.

    Raises InvalidOption for options that fit neither the files nor the task; LoadFailed.
    """
    spark, tell = pipeline.spark, pipeline.tell
    files = load.Files.of(options["files"], null=options["null"], multiline=options["multiline"])
    mapped = _mapped(options)
    recipe = recipe_of(mapped, files.columns(spark))
    used = {name: options[name] for name in ("null", "multiline", "duplicates", "spread")}
    load_id = options["load_id"] or load_id_of(files.identity(spark), mapped, used)
    if done := loaded(load_id):
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
            offers = load.accepted(rows, pipeline.store.now(), options["spread"])
            done = offer(pipeline, offers, load_id, " ".join(files.paths))
            tell(
                f"Load {load_id}: {done.inserted or 0:,} messages are new, "
                f"{done.duplicates or 0:,} had the key of a live message."
            )
    finally:
        rows.unpersist()


def _mapped(options: Options) -> Mapped:
    return Mapped(
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


# Loads


def offer(pipeline: Pipeline, offers: DataFrame, load_id: str, source: str, *, once: bool = False) -> Load:
    """Offer the messages (OFFERS) unless this load is loaded. A message with the key of a live one is a duplicate.

    load_id: names the load, also in later runs. source: what was read, for `Load.source`. once: also pass over the keys
    that another load of this kind has offered. Raises LoadFailed.
    """
    options: dict[str, Any] = {
        "address": pipeline.address.reference,
        "load_id": load_id,
        "source": source,
        "once": once,
    }
    register(pipeline.spark)
    offers.write.format("delayedq").mode("append").options(**options).save()
    return Load.objects.get(load_id=load_id)


def load_id_of(identity: str, mapped: Mapped, options: Mapping[str, object]) -> str:
    """The id of a load that was given none: 32 hex digits, the same for the same files and options.

    identity: of the files. So running a load again does nothing.
    """
    told = json.dumps([identity, repr(mapped), sorted(options.items())], default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def loaded(load_id: str) -> Load | None:
    """The load of this id, if it is done."""
    return Load.objects.filter(load_id=load_id, state=LoadState.LOADED).first()
