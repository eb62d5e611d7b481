"""Run messages that have ended again, with the code of today, and tell which of them would end in another way."""

from __future__ import annotations

import json
import logging
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from django.db import connections, transaction
from django.utils import timezone

from delayedq.compat import TASKS_LOGGER
from delayedq.conf import get_settings
from delayedq.core.error_records import known_errors
from delayedq.exceptions import Cancel, WorkerHung, WorkerVanished
from delayedq.management.backends import all_stores
from delayedq.models import Message
from delayedq.results import path_of, text_of
from delayedq.store import store_for
from delayedq.store.protocol import BARE
from delayedq.testing.history_files import LIVE, Ended, open_history
from delayedq.testing.moving import clock
from delayedq.testing.running import WORKER, run_claimed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from delayedq.store.base import Store

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
