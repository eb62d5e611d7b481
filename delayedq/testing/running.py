"""Run what is due in the calling thread: production's store, executor and decisions, without a worker around them."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta, tzinfo
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

from asgiref.sync import async_to_sync
from django.db import Error, connections, transaction
from django.utils import timezone

from delayedq.backend import DelayedQBackend
from delayedq.clock import choose, chosen
from delayedq.compat import task_backends
from delayedq.conf import get_settings
from delayedq.core.lifecycle import AskedSnooze, Impossible, NotStarted, Raised, Returned
from delayedq.core.serialization import load_call
from delayedq.cron.beat import Beats
from delayedq.cron.definitions import definitions_in
from delayedq.exceptions import CannotRun, UnknownTask
from delayedq.flows.sweeping import flow_deadlines, forget_flows, sweep
from delayedq.limits.channels import Channels
from delayedq.limits.setting import rules_for
from delayedq.management.backends import all_stores
from delayedq.results.expiring import expire_results
from delayedq.sql.priority import is_limited
from delayedq.store import serving, store_for
from delayedq.store.protocol import BARE, ClaimRequest, Lane
from delayedq.tasks import task_at
from delayedq.worker.attempt import Attempt
from delayedq.worker.executor import aexecute, execute, execute_exactly_once
from delayedq.worker.reporting import flush
from delayedq.worker.shared_leases import SharedLeases
from delayedq.worker.transitions import AttemptResult, decision, is_spent, send_signals, transition, vanished_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

    from delayedq.core.lifecycle import Decision
    from delayedq.store.base import Store
    from delayedq.store.protocol import Claimed, LaneHead, Settled

# A clock that a test moves.


class Clock:
    """Shows one moment until it is moved."""

    def __init__(self, moment: datetime) -> None:
        self._moment = moment.astimezone(UTC)
        self._zone = moment.tzinfo

    def __call__(self) -> datetime:
        """The moment that it shows, in the time zone that it was given."""
        return self._moment.astimezone(self._zone)

    def advance(self, delta: timedelta | None = None, **units: float) -> datetime:
        """Move on by a timedelta, or by what makes one: `advance(hours=3)`. Elapsed time: a DST change is no jump.

        Raises ValueError for a negative one.
        """
        step = (delta or timedelta()) + timedelta(**units)
        if step < timedelta():
            raise ValueError(f"The clock can only move forward, not by {step}.")
        self._moment += step
        return self()

    def move_to(self, when: datetime | str) -> datetime:
        """Move on to a moment. Raises ValueError for one that is past."""
        moment = moment_of(when, self._zone)
        self.advance(moment - self._moment)
        return self()

    def __repr__(self) -> str:
        return f"<clock at {self().isoformat()}>"


@contextmanager
def clock(when: datetime | str | None = None, tz: tzinfo | str | None = None) -> Iterator[Clock]:
    """Set the time of the database, as delayedq sees it, within the block; the clock stands until it is moved.

    when: an aware datetime, or an ISO text that is a wall time in `tz` (default: the current time zone of Django);
    None is now. It applies to due times, leases, retries, cron, retention, bare queues, QuerySets such as
    `Message.objects.due()`, and `schedule_in`. It does not change `timezone.now()`: if your own code calls that, use
    freezegun or time-machine too.

        with clock("2026-03-08 06:55", "America/New_York") as now:
            now.advance(hours=3)
    """
    zone = ZoneInfo(tz) if isinstance(tz, str) else tz
    moving = Clock(timezone.now() if when is None else moment_of(when, zone))
    with choose(moving):
        yield moving


def moment_of(when: Any, zone: tzinfo | None) -> datetime:
    """An aware datetime. Raises ValueError for a text that is no time, TypeError for what is none at all."""
    try:
        moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    except ValueError:
        raise ValueError(f"{when!r} is not a time; write it like '2026-03-08 06:55'.") from None
    if not isinstance(moment, datetime):
        raise TypeError(f"A moment is a datetime or an ISO text, not {when!r}.")
    return moment if moment.tzinfo else timezone.make_aware(moment, zone)


# Running


WORKER = "run_due"

#: A test that needs more attempts than this says so; without a limit, a task that asks for itself again never ends.
MOST = 10_000


class AttemptReport(NamedTuple):
    """One attempt that `run_due` has made.

    outcome: "succeeded", "failed", "cancelled", "expired", "retry", "snoozed", "superseded" (the message was replaced
    while it ran) or "lease lost" (it was cancelled while it ran). error: what the attempt raised, or an `on_commit`
    callback.
    """

    outcome: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    key: str | None
    queue: str
    attempt: int
    message_id: int
    error: BaseException | None = None


def run_due(
    queue: str | None = None,
    limit: int | None = None,
    *,
    raise_failures: bool = True,
    follow: bool = True,
    using: str | None = None,
) -> list[AttemptReport]:
    """Run the due tasks one after another, in this thread and on its connection, and return the attempts.

    queue: only this queue. limit: at most this many attempts. follow: also run due messages that these tasks enqueue.
    raise_failures: raise the error of the first attempt that fails, after it is recorded. using: the alias of the
    database; None means those of all backends in TASKS.

    It works inside of `django.test.TestCase`: an attempt runs in a savepoint, which is rolled back only if a statement
    has failed in it, and the `on_commit` callbacks that it adds are called after it. A message that waits for a retry
    is due later: move the `clock`. Timeouts of sync tasks are not enforced. Raises RuntimeError after 10,000 attempts
    without a limit, and if no backend in TASKS keeps its messages in the database; ValueError for a limit under 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"run_due() makes at least 1 attempt; its limit is {limit!r}.")
    return _Runner(stores(using), queue, raise_failures=raise_failures).run(limit, follow=follow)


def run_until(
    when: datetime | str,
    queue: str | None = None,
    *,
    raise_failures: bool = True,
    using: str | None = None,
) -> list[AttemptReport]:
    """Play everything up to `when`: move the clock from one due time to the next, place cron ticks, run what is due.

    Needs a `clock`, which shows `when` afterwards. Returns the attempts in order. For the arguments see `run_due`.
    Raises RuntimeError without a clock, ValueError for a time that is past.

        with clock("2026-01-01", "America/New_York"):
            attempts = run_until("2027-01-01")
    """
    moving = _clock()
    end, attempts = moment_of(when, moving().tzinfo), []
    if end < moving():
        raise ValueError(f"run_until({when!r}): the clock is already at {moving()}.")
    runner = _Runner(stores(using), queue, raise_failures=raise_failures)
    beats = [Beats(store, definitions_in(store)) for store in runner.stores]
    while True:
        for each in beats:
            each.beat()
        attempts += runner.run(None, follow=True)
        following = [at for at in runner.due_times() if moving() < at <= end]
        moving.move_to(min(following, default=end))
        runner.prune()
        if not following:
            return attempts


def stores(using: str | None) -> list[Store]:
    """That of this database; None: those of all backends in TASKS. Raises RuntimeError if no backend has one."""
    _check_backends()
    return all_stores() if using is None else [store_for(using)]


def _check_backends() -> None:
    backends = list(task_backends.all())
    if not any(isinstance(backend, DelayedQBackend) for backend in backends):
        names = ", ".join(f"TASKS[{backend.alias!r}] is {type(backend).__qualname__}" for backend in backends)
        raise RuntimeError(
            f"run_due() finds nothing in the database: {names or 'TASKS is empty'}. Use "
            "delayedq.backend.DelayedQBackend in this test; ImmediateBackend runs tasks by itself."
        )


def _clock() -> Clock:
    from delayedq import clock

    source = clock._chosen[-1] if chosen() else None  # noqa: SLF001 - its other half
    if not isinstance(source, Clock):
        raise RuntimeError("run_until() moves the clock: call it within `with delayedq.testing.clock(...)`.")  # noqa: TRY004
    return source


def run_claimed(store: Store, claimed: Claimed) -> AttemptReport:
    """Run one message that was claimed by WORKER, and store how it ended; failures are in the report."""
    return _Runner([store], None, raise_failures=False).attempt(store, claimed)


class _Runner:
    def __init__(self, stores: list[Store], queue: str | None, *, raise_failures: bool) -> None:
        self.stores = stores
        self._queues = None if queue is None else [queue]
        self._raise_failures = raise_failures
        self._shared_leases = SharedLeases(MOST)
        #: The first message of each lane of tasks, due or not, as the last scan has found it.
        self._heads: list[tuple[Store, LaneHead]] = []
        #: When messages with a channel may start, where some wait.
        self._channels_due: list[datetime] = []

    def due_times(self) -> list[datetime]:
        """Those of the first messages of all lanes, when `run` had nothing more to do."""
        deadlines = [at for store in self.stores for at in flow_deadlines(store)]
        return [head.first_at for _, head in self._heads] + self._channels_due + deadlines

    def prune(self) -> None:
        for store in self.stores:
            expire_results(store, limit=MOST)
        retention = get_settings().RETENTION
        if retention is not None:
            for store in self.stores:
                store.prune(retention, MOST)
                forget_flows(store, retention)

    def run(self, limit: int | None, *, follow: bool) -> list[AttemptReport]:
        attempts: list[AttemptReport] = []
        most = MOST if limit is None else limit
        for store in self.stores:
            sweep(store)
        while len(attempts) < most and (claims := self._claim(1 if follow else most)):
            attempts += [self.attempt(store, claimed) for store, claimed in claims]
            if not follow:
                break
        if limit is None and len(attempts) >= MOST:
            last = attempts[-1].task
            raise RuntimeError(
                f"After {MOST:,} attempts, {last} is due again. Give run_due() a limit, or follow=False."
            )
        return attempts

    def _claim(self, limit: int) -> list[tuple[Store, Claimed]]:
        """Of the highest priority first."""
        self._heads = [(store, head) for store in self.stores for head in store.scan(self._queues)]
        self._heads = [(store, head) for store, head in self._heads if BARE not in head.queue]
        limited = {store.alias: store for store, head in self._heads if is_limited(head.priority)}
        self._heads = [(store, head) for store, head in self._heads if not is_limited(head.priority)]
        due = [(store, head) for store, head in self._heads if head.due_in <= 0]
        due.sort(key=lambda one: (-one[1].priority, one[1].first_at))
        claims: list[tuple[Store, Claimed]] = []
        for store, head in due:
            if len(claims) < limit:
                lane, lease = Lane(head.queue, head.priority), get_settings().LEASE
                claims += [
                    (store, claimed)
                    for claimed in store.claim(ClaimRequest([lane], limit - len(claims), lease, WORKER))
                ]
        self._channels_due = []
        for store in limited.values():
            claims += self._claim_channels(store, limit - len(claims))
        return claims

    def _claim_channels(self, store: Store, limit: int) -> list[tuple[Store, Claimed]]:
        rules = rules_for(lambda queue: BARE not in queue and (self._queues is None or queue in self._queues))
        claim = Channels.of(store).claim_at_last(rules, limit, get_settings().LEASE, WORKER)
        if claim.due_in is not None:
            self._channels_due.append(store.now() + timedelta(seconds=claim.due_in))
        return [(store, claimed) for claimed in claim.claimed]

    def attempt(self, store: Store, claimed: Claimed) -> AttemptReport:
        slot = self._shared_leases.hold(claimed.id, claimed.token)
        try:
            with serving(store.alias):
                ended = _timed(self._run(claimed, slot))
            decided = decision(ended)
            settled = ended.settled or store.settle([transition(ended, decided, ended.finished)], WORKER)
        finally:
            self._shared_leases.drop(slot)
        if ended.error is not None and claimed.id not in settled.lost:
            send_signals(ended, decided)
        if isinstance(ended.error, KeyboardInterrupt):  # somebody stops the test
            raise ended.error
        failed = isinstance(ended.outcome, Returned | Raised | Impossible)
        if self._raise_failures and ended.error is not None and failed:
            raise ended.error
        return _report(ended, decided, settled)

    def _run(self, claimed: Claimed, slot: int) -> AttemptResult:
        try:
            attempt = Attempt(claimed, task_at(claimed.kind), WORKER, self._shared_leases, slot)
        except UnknownTask as error:
            nobody: Any = None
            return _refused(Attempt(claimed, nobody, WORKER, self._shared_leases, slot), error)
        if is_spent(claimed, attempt.task.spare_attempts):
            return _refused(attempt, vanished_error(claimed))
        ended: AttemptResult | None = None
        try:
            with as_committed():
                ended = _executed(attempt)
            attempt.written = None  # a step that failed may have rolled it back
            flush(attempt)
        except Exception as error:
            if ended is None:
                raise
            # Of an `on_commit` callback. In a worker it is raised where the task commits, or after an exactly-once one.
            return ended._replace(outcome=ended.outcome if ended.settled else Raised(), error=error)
        return ended


def _executed(attempt: Attempt) -> AttemptResult:
    if iscoroutinefunction(attempt.task.func):
        return async_to_sync(aexecute)(attempt)
    return execute_exactly_once(attempt, nullcontext()) if attempt.task.exactly_once else execute(attempt)


def _timed(ended: AttemptResult) -> AttemptResult:
    """While a test has chosen the moment, an attempt takes no time."""
    if chosen() is None or ended.started is None:
        return ended
    return ended._replace(started=ended.finished)


def _refused(attempt: Attempt, error: Exception) -> AttemptResult:
    return AttemptResult(attempt, Impossible(), None, time.monotonic(), error)


def _report(ended: AttemptResult, decided: Decision, settled: Settled) -> AttemptReport:
    claimed = ended.attempt.claimed
    try:
        args, kwargs = load_call(claimed.payload)
    except CannotRun:
        args, kwargs = [], {}
    outcome = _outcome(ended, decided, settled)
    return AttemptReport(
        outcome, claimed.kind, args, kwargs, claimed.key, claimed.queue, claimed.attempt, claimed.id, ended.error
    )


def _outcome(ended: AttemptResult, decided: Decision, settled: Settled) -> str:
    if ended.attempt.id in settled.lost:
        return "lease lost"
    if ended.attempt.id in settled.superseded:
        return "superseded"
    if decided.outcome is not None:
        return decided.outcome.value
    return "snoozed" if isinstance(ended.outcome, AskedSnooze | NotStarted) else "retry"


@contextmanager
def as_committed() -> Iterator[None]:
    """As if what is done here was committed: in a test's transaction, a savepoint, and `on_commit` callbacks called."""
    with ExitStack() as stack:
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block:
                stack.enter_context(_savepoint(connection))
        yield


@contextmanager
def _savepoint(connection: BaseDatabaseWrapper) -> Iterator[None]:
    waiting, connection.run_on_commit = connection.run_on_commit, []
    try:
        # If a statement has failed in it, it can't be released: Django rolls it back, and says so by an error.
        with suppress(Error), _of_the_test(transaction.atomic(using=connection.alias)):
            yield
    finally:
        added, connection.run_on_commit = connection.run_on_commit, waiting
    for each in added:
        each[1]()


def _of_the_test(block: transaction.Atomic) -> transaction.Atomic:
    """Marked as Django marks those of a TestCase: a durable block, such as that of a step, may be within it."""
    block._from_testcase = True  # type: ignore[attr-defined]  # noqa: SLF001
    return block
