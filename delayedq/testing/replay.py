"""Run messages that have ended again, with the code of today, and tell which of them would end in another way."""

from __future__ import annotations

import gzip
import json
import logging
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from django.db import connections, transaction
from django.utils import timezone

from delayedq.compat import TASKS_LOGGER
from delayedq.conf import get_settings
from delayedq.core.errors import known_errors
from delayedq.exceptions import Cancel, DelayedQError, WorkerHung, WorkerVanished
from delayedq.management.backends import all_stores
from delayedq.models import Message
from delayedq.results import path_of, text_of
from delayedq.store import store_for
from delayedq.store.protocol import BARE
from delayedq.testing.running import WORKER, clock, run_claimed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from delayedq.store.base import Store

# Ended messages in a file: JSON lines, Parquet, or a lake that the archive has written.
#
# Columns are those of the history table, or of the archive, which calls the outcome `state`. A row that can't be read
# is not an error of the file: it comes as an `Unreadable`, with its place and the reason.


#: What stands for the kind of rows that can't be read.
UNREADABLE = "rows that can't be read"

ENDED = ("succeeded", "failed", "cancelled", "expired", "superseded")

LIVE = ("waiting", "leased")

NEEDED = ("kind", "payload")

_PARQUET = b"PAR1"


class HistoryFileError(DelayedQError):
    """There is no file, nothing here can read it, or it has other columns."""


class Ended(NamedTuple):
    """A message as it ended. `where`: its place in the file. Times are None if the file has none."""

    where: str
    id: Any
    kind: str
    outcome: str
    payload: str
    queue: str
    key: str | None
    priority: int
    attempts: int
    max_attempts: int
    metadata: str | None
    errors: str | None
    scheduled_at: datetime | None
    scheduled_at_initially: datetime | None
    created_at: datetime | None
    started_at: datetime | None

    @property
    def last_error(self) -> str | None:
        """The dotted path of the class of its last error."""
        known = known_errors(self.errors)
        return known[-1].get("exception") if known else None


class Unreadable(NamedTuple):
    where: str
    reason: str


class HistoryFile(ABC):
    """What is in a file, read as often as it is asked for, in constant memory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def kinds(self) -> Counter[str]:
        """How many rows there are of each kind, and that can't be read (UNREADABLE)."""
        return Counter(row.kind if isinstance(row, Ended) else UNREADABLE for row in self.rows())

    def rows(self, kind: str | None = None) -> Iterator[Ended | Unreadable]:
        """All rows in their order, or those of one kind. Raises HistoryFileError."""
        for where, row in self._rows(None if kind == UNREADABLE else kind):
            read = row if isinstance(row, Unreadable) else ended_of(row, where)
            if kind is None or kind == (read.kind if isinstance(read, Ended) else UNREADABLE):
                yield read

    @abstractmethod
    def _rows(self, kind: str | None) -> Iterator[tuple[str, Mapping[str, Any] | Unreadable]]:
        """The place and the columns of each row; rows of another kind may be left out."""


def open_history(path: str | Path) -> HistoryFile:
    """Raises HistoryFileError."""
    path = Path(path)
    if path.is_dir():
        return ParquetFiles(path, _published(path) if (path / "_delta_log").is_dir() else path.rglob("*.parquet"))
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_PARQUET)) == _PARQUET
    except OSError as error:
        raise HistoryFileError(f"{path} can't be read: {error.strerror}.") from None
    return ParquetFiles(path, [path]) if is_parquet else JSONLines(path)


class JSONLines(HistoryFile):
    """An object for each line; `.gz` is unpacked."""

    def _rows(self, kind: str | None) -> Iterator[tuple[str, Mapping[str, Any] | Unreadable]]:
        word = kind.encode() if kind is not None and kind.isascii() else b""  # lines without it need not be parsed
        with (gzip.open if self.path.suffix == ".gz" else open)(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if word in line and line.strip():
                    yield f"line {number}", _object(line, f"line {number}")


class ParquetFiles(HistoryFile):
    def __init__(self, path: Path, files: Iterable[Path]) -> None:
        super().__init__(path)
        self._files = sorted(files)
        if not self._files:
            raise HistoryFileError(f"{path} has no Parquet files.")
        try:
            from pyarrow import parquet
        except ImportError:
            raise HistoryFileError(
                f"{path} is Parquet, which pyarrow reads: pip install pyarrow. Or give a file of JSON lines."
            ) from None
        self._open = parquet.ParquetFile

    def _rows(self, kind: str | None) -> Iterator[tuple[str, Mapping[str, Any] | Unreadable]]:
        for path in self._files:
            with self._opened(path) as file:
                names = [name for name in file.schema_arrow.names if name in _READ]
                _check_columns(path, names)
                first = 1
                for batch in file.iter_batches(1_000, columns=names):
                    if kind is None or kind in batch.column("kind").to_pylist():
                        for number, row in enumerate(batch.to_pylist(), first):
                            yield f"{path.name}, row {number}", row
                    first += batch.num_rows

    def _opened(self, path: Path) -> Any:
        try:
            return self._open(path)
        except (OSError, ValueError) as error:  # pyarrow's own are ValueErrors
            raise HistoryFileError(f"{path} can't be read as Parquet: {error}") from None


def _published(lake: Path) -> list[Path]:
    """The files of the lake that count: those of the newest version of its table."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise HistoryFileError(
            f"{lake} is a table of Delta Lake, which deltalake reads: pip install 'delayedq[lake]'."
        ) from None
    try:
        return [Path(unquote(urlsplit(uri).path)) for uri in DeltaTable(lake).file_uris()]
    except (DeltaError, OSError) as error:
        raise HistoryFileError(f"{lake} can't be read as a lake: {error}") from None


def _check_columns(path: Path, names: list[str]) -> None:
    missing = [name for name in NEEDED if name not in names]
    if "outcome" not in names and "state" not in names:
        missing.append("state (or outcome)")
    if missing:
        raise HistoryFileError(f"{path} has no column {', '.join(missing)}: is it history of delayedq?")


def _object(line: bytes, where: str) -> Mapping[str, Any] | Unreadable:
    try:
        row = json.loads(line)
    except ValueError as error:
        return Unreadable(where, f"It is not JSON: {error}")
    return row if isinstance(row, dict) else Unreadable(where, f"It is not a JSON object, but a {type(row).__name__}.")


# One row --------------------------------------------------------------------------------------------------------------
def ended_of(row: Mapping[str, Any], where: str) -> Ended | Unreadable:
    try:
        return Ended(where, row.get("id"), **{name: read(row, name) for name, read in _COLUMNS.items()})
    except ValueError as error:
        return Unreadable(where, str(error))


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"Its {name} is not a text: {_shown(value)}.")
    return value


def _text_or_none(row: Mapping[str, Any], name: str) -> str | None:
    return None if row.get(name) is None else _text(row, name)


def _outcome(row: Mapping[str, Any], _: str) -> str:
    value = row.get("outcome", row.get("state"))
    if value not in ENDED + LIVE:
        raise ValueError(f"Its outcome is not one of {', '.join(ENDED)}: {_shown(value)}.")
    return str(value)


def _queue(row: Mapping[str, Any], _: str) -> str:
    return _text_or_none(row, "queue") or "default"


def _number(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if value is None:
        return 0 if name == "priority" else 1
    if type(value) is not int:
        raise ValueError(f"Its {name} is not a whole number: {_shown(value)}.")
    return value


def _time(row: Mapping[str, Any], name: str) -> datetime | None:
    """Times without a zone are UTC."""
    value = row.get(name)
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, AttributeError):
        raise ValueError(f"Its {name} is not a time: {_shown(value)}.") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"  # noqa: PLR2004 - a line


_COLUMNS: Mapping[str, Any] = {
    "kind": _text,
    "outcome": _outcome,
    "payload": _text,
    "queue": _queue,
    "key": _text_or_none,
    **dict.fromkeys(("priority", "attempts", "max_attempts"), _number),
    **dict.fromkeys(("metadata", "errors"), _text_or_none),
    **dict.fromkeys(("scheduled_at", "scheduled_at_initially", "created_at", "started_at"), _time),
}

_READ = {"id", "state", *_COLUMNS}


# Replay


#: How many messages a report names of those that differ in the same way.
EXAMPLES = 3

_CANCEL, _VANISHED, _HUNG = (path_of(each) for each in (Cancel(), WorkerVanished(), WorkerHung()))


class Difference(NamedTuple):
    """The outcome that a message had, the one that it has now, and the error of now: "" if there is none."""

    kind: str
    then: str
    now: str
    error: str

    def __str__(self) -> str:
        return f"{self.kind} {self.then}, now {self.now}" + (f": {self.error}" if self.error else "")


@dataclass(slots=True)
class ReplayReport:
    """What a replay found. It is true if nothing differs, and printed it says what does.

    same: how many messages ended as before. differences: the others by what they have in common, each with its number
    and its first messages. left_out: how many were not run, by reason. unreadable: the rows that can't be read.
    """

    same: int = 0
    differences: Counter[Difference] = field(default_factory=Counter)
    examples: dict[Difference, list[str]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return not self.differences and not self.unreadable

    def __str__(self) -> str:
        lines = [f"{self.same:,} ended as before, {self.differences.total():,} in another way."]
        for difference, number in self.differences.most_common():
            lines += [f"{number:,} x {difference}", *(f"    {example}" for example in self.examples[difference])]
            if number > EXAMPLES:
                lines.append(f"    and {number - EXAMPLES:,} more")
        if self.unreadable:
            lines.append(f"{self.unreadable.total():,} can't be read:")
            lines += [f"    {reason}" for reason in self.unreadable]
        lines += [f"{number:,} left out: {reason}." for reason, number in self.left_out.most_common()]
        return "\n".join(lines)

    def differs(self, difference: Difference, example: str) -> None:
        """Count one more message that ended in another way."""
        self.differences[difference] += 1
        named = self.examples.setdefault(difference, [])
        if len(named) < EXAMPLES:
            named.append(example)


def replay(path: str | Path, *, kind: str | None = None, using: str | None = None) -> ReplayReport:
    """Run the ended messages of a file again, each in a transaction that is rolled back, and compare how they end.

    path: JSON lines (also `.gz`) or Parquet with the columns of the history, or a lake of the archive. kind: only this
    task. using: the alias of the database; None means that of the first backend of delayedq in TASKS. Each message runs
    once, as the attempt that ended it, while the `clock` of delayedq shows when that started. What its task enqueues
    does not run. What is not in the database can't be rolled back: calls of other services, files, caches.

    Raises HistoryFileError if the file can't be read.

        def test_last_month(db):
            report = replay("history.parquet")
            assert report, str(report)
    """
    store = all_stores()[0] if using is None else store_for(using)
    report = ReplayReport()
    with _quiet():
        for row in open_history(path).rows(kind):
            if not isinstance(row, Ended):
                report.unreadable[f"{row.where}: {row.reason}"] += 1
            elif reason := _reason_to_leave_out(row):
                report.left_out[reason] += 1
            else:
                _compare(store, row, report)
    return report


def _reason_to_leave_out(ended: Ended) -> str | None:
    last_error = ended.last_error
    reasons = (
        (ended.outcome in LIVE, "they had not ended"),
        (BARE in ended.queue, "they are of bare queues, which no task reads"),
        (ended.outcome == "superseded", "they were replaced while they ran"),
        (ended.outcome == "expired", "they expired before they were started"),
        (ended.attempts < 1, "they ended before an attempt began"),
        (ended.outcome == "cancelled" and last_error != _CANCEL, "they were cancelled from outside"),
        (last_error in {_VANISHED, _HUNG}, "they killed or hung their process"),
    )
    return next((reason for applies, reason in reasons if applies), None)


def _compare(store: Store, ended: Ended, report: ReplayReport) -> None:
    now, error, call = _run(store, ended)
    if now == ended.outcome:
        report.same += 1
        return
    text = "" if error is None else f"{type(error).__name__}: {text_of(error).partition('\n')[0]}"
    example = f"{ended.where}: message {ended.id}{call}"
    report.differs(Difference(ended.kind, ended.outcome, now, text), example)


def _run(store: Store, ended: Ended) -> tuple[str, BaseException | None, str]:
    """How it ends now, its error, and its arguments."""
    with _rolled_back(store.alias), clock(ended.started_at or timezone.now()):
        claimed = store.claim_unchanged(_revived(store, ended).pk, 0, get_settings().LEASE, WORKER)
        assert claimed is not None  # nobody else sees it
        report = run_claimed(store, claimed)
    return report.outcome, report.error, f", args {report.args!r}, kwargs {report.kwargs!r}"


def _revived(store: Store, ended: Ended) -> Message:
    """Its row, as it was before the attempt that ended it."""
    now = store.now()
    messages = Message.objects.using(store.alias)
    if ended.key is not None:
        messages.keyed(ended.kind, ended.key).delete()
    before = [record for record in known_errors(ended.errors) if record["attempt"] < ended.attempts]
    return messages.create(
        scheduled_at=ended.scheduled_at or now,
        scheduled_at_initially=ended.scheduled_at_initially or ended.scheduled_at or now,
        created_at=ended.created_at or now,
        priority=ended.priority,
        attempt=ended.attempts - 1,
        max_attempts=max(ended.max_attempts, ended.attempts),
        queue=ended.queue,
        kind=ended.kind,
        key=ended.key,
        payload=ended.payload,
        metadata=ended.metadata,
        errors=json.dumps(before) if before else None,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a line in the log for each failure: the report tells them."""
    loggers = [logging.getLogger(name) for name in ("delayedq", TASKS_LOGGER)]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


@contextmanager
def _rolled_back(alias: str) -> Iterator[None]:
    """Undo what is done here, in this database and in all others whose transaction the test has begun."""
    with ExitStack() as stack:
        for connection in connections.all(initialized_only=True):
            if connection.alias == alias or connection.in_atomic_block:
                stack.enter_context(_undone(connection.alias))
        yield


@contextmanager
def _undone(alias: str) -> Iterator[None]:
    with transaction.atomic(using=alias):
        yield
        transaction.set_rollback(True, using=alias)
