"""The step `load`: rows of files become messages for a task."""

from __future__ import annotations

import hashlib
import json
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union
from zoneinfo import ZoneInfo

from delayedq.conf import get_settings
from delayedq.core.serialization import dumps
from delayedq.exceptions import InvalidOption, UnknownTask
from delayedq.limits.declared import lines_up
from delayedq.pipeline.models import Load, LoadState
from delayedq.pipeline.spark import load, register, rows
from delayedq.pipeline.spark.rows import Parameter, Recipe, source_of
from delayedq.tasks import parameters_of, task_at

if TYPE_CHECKING:
    import inspect
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from delayedq.pipeline.opening import Options, Pipeline
    from delayedq.tasks import Task

# How the columns of a file become the arguments of a task.


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """How the columns of a file are to be used. A source is the name of a column or a template of several.

    arguments: sources by the task's parameters; columns that are named nowhere are arguments by their own names.
    ignored: columns that are not used.
    strict: True refuses a file with columns that the task does not take; False passes over them.
    """

    task: str
    key: str | None = None
    at: str | None = None
    at_format: str | None = None
    zone: str | None = None
    arguments: Mapping[str, str]
    ignored: Sequence[str] = ()
    strict: bool = True


def recipe_of(mapped: Mapped, columns: Sequence[str]) -> Recipe:
    """How the rows of a file with these columns become messages.

    Raises InvalidOption for what does not fit the task or the file, and names it.
    """
    task = _task(mapped.task)
    if lines_up(task):
        raise InvalidOption(
            f"{task.name} has a channel or a limit, and rows that are loaded would bypass it. Read the file with "
            f"{task.name}.enqueue_bulk(), which keeps both."
        )
    _check_zone(mapped.zone)
    return Recipe(
        queue=task.queue_name,
        kind=task.module_path,
        priority=task.priority,
        max_attempts=task.max_attempts,
        max_payload_bytes=get_settings().MAX_PAYLOAD_BYTES,
        metadata=None if task.metadata is None else dumps(task.metadata),
        parameters=_parameters(task, mapped, columns),
        key=source_of(mapped.key, columns) if mapped.key else None,
        at=source_of(mapped.at, columns) if mapped.at else None,
        at_format=mapped.at_format,
        zone=mapped.zone,
    )


# The task
def _task(path: str) -> Task[..., Any]:
    try:
        return task_at(path)
    except UnknownTask as error:
        raise InvalidOption(str(error)) from None


def _check_zone(zone: str | None) -> None:
    try:
        ZoneInfo(zone or "UTC")
    except (ValueError, OSError, LookupError):
        raise InvalidOption(f"There is no time zone {zone!r}.") from None


def _parameters(task: Task[..., Any], mapped: Mapped, columns: Sequence[str]) -> tuple[Parameter, ...]:
    taken, anything = _taken(task)
    if unknown := [name for name in mapped.arguments if name not in taken and not anything]:
        raise InvalidOption(
            f"{task.module_path} takes no argument {unknown[0]!r}; it takes {', '.join(taken) or 'none'}."
        )
    sources = _sources(task, mapped, columns, taken, anything=anything)
    if missing := [name for name, taker in taken.items() if taker.default is taker.empty and name not in sources]:
        raise InvalidOption(f"There is no column for the argument {missing[0]!r} of {task.module_path}.")
    hints = _hints(task)
    return tuple(_parameter(name, source, taken.get(name), hints.get(name)) for name, source in sources.items())


def _sources(
    task: Task[..., Any], mapped: Mapped, columns: Sequence[str], taken: Collection[str], *, anything: bool
) -> dict[str, rows.Source]:
    """By argument, where its values come from: as the options say, else from the column of its name."""
    sources = {name: source_of(text, columns) for name, text in mapped.arguments.items()}
    named = _named_columns(mapped, sources.values(), columns)
    for column in columns:
        if column in mapped.ignored:
            continue
        if column in taken or (anything and column not in named):
            sources.setdefault(column, source_of(column, columns))
        elif column not in named and mapped.strict:
            raise InvalidOption(
                f"{task.module_path} takes no argument {column!r}; --argument, --key or --at may use the column, "
                "--ignore passes over it."
            )
    return sources


def _named_columns(mapped: Mapped, sources: Iterable[rows.Source], columns: Sequence[str]) -> set[str]:
    """The columns that an option names."""
    named = {column for text in (mapped.key, mapped.at) if text for column in source_of(text, columns).columns}
    return named | {column for source in sources for column in source.columns}


def _taken(task: Task[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """What can be given by name, and whether any name can."""
    taken, anything = {}, False
    for name, parameter in parameters_of(task).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            taken[name] = parameter
        elif parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise InvalidOption(f"{task.module_path} takes {name!r} by position, and columns are given by name.")
        anything |= parameter.kind is parameter.VAR_KEYWORD
    return taken, anything


def _hints(task: Task[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(task.func)
    except (NameError, TypeError):  # annotated with what only type checkers import
        return {}


def _parameter(name: str, source: rows.Source, taker: inspect.Parameter | None, hint: object) -> Parameter:
    required = taker is not None and taker.default is taker.empty
    type_, nullable = _plain(hint)
    if type_ is not None and type_ not in rows.TYPES:
        raise InvalidOption(f"The argument {name!r} is a {type_.__name__}, which no file can hold.")
    return Parameter(name, source, type_, required=required, nullable=nullable)


def _plain(hint: object) -> tuple[type | None, bool]:
    """The type to read a text as (None: leave it a text), and whether it may be nothing."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        others = [option for option in typing.get_args(hint) if option is not types.NoneType]
        nullable = len(others) < len(typing.get_args(hint))
        return (_plain(others[0])[0] if len(others) == 1 else None), nullable
    origin = typing.get_origin(hint) or hint
    return (origin, False) if isinstance(origin, type) and origin is not object else (None, hint in (None, Any))


# Load


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


def _write_rejects(pipeline: Pipeline, rows: DataFrame, counts: load.LoadCounts, path: Path) -> None:
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
