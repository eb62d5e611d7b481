"""The message a task was started for, as the task sees it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import cache, cached_property
from inspect import iscoroutinefunction
from math import inf
from typing import TYPE_CHECKING, Any, overload

from asgiref.sync import sync_to_async

from delayedq import clock
from delayedq.core.backoff import as_backoff
from delayedq.core.metadata import EXPIRES, PARENT, ROOT, as_given, own, shortest_deadline, stored_duration
from delayedq.core.progress import checked
from delayedq.cron.ticks import later
from delayedq.exceptions import DeadlineExceeded, TaskCancelled, TaskTimeout
from delayedq.flows.rules import has_step_only
from delayedq.limits.rules import channel_of, has_channel_only
from delayedq.steps.running import Steps, StoredRecords, call_of
from delayedq.worker.reporting import report_now

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from delayedq.attempt_log import KeptLog
    from delayedq.core.progress import Report
    from delayedq.steps.running import Records
    from delayedq.store.protocol import Claimed
    from delayedq.tasks import Task
    from delayedq.worker.shared_leases import ClaimTimes, SharedLeases


_is_async = cache(iscoroutinefunction)


class Attempt:
    """One claimed message on its way through a worker; `current_message()` returns it inside the task.

    `task` None: it is unknown here, so the attempt never starts, and has no task (`is_known` is False).
    """

    task: Task[..., Any]
    #: Whether it runs in a thread; async tasks share the event loop.
    threaded: bool
    #: Who writes what it reports; see `worker.reporting`.
    reporter: Callable[[Attempt], None] = staticmethod(report_now)
    #: Entered around what its thread asks the database beside its task; see `worker.silence`.
    asking: AbstractContextManager[None] = nullcontext()
    reported: Report | None = None
    #: What of it is in the database.
    written: Report | None = None
    first_reported_at: datetime | None = None
    written_at = -inf
    #: Where its steps are recorded; None: in the database of the queue.
    records: Records | None = None
    #: When it was claimed; None: its lease is no matter, as in tests of tasks.
    claim: ClaimTimes | None = None
    #: Its last log lines, where an `AttemptHandler` keeps them.
    log: KeptLog | None = None
    #: What `delayedq.tracing` says of its span; None: it has none.
    span: Any = None

    def __init__(
        self, claimed: Claimed, task: Task[..., Any] | None, worker: str, leases: SharedLeases, slot: int
    ) -> None:
        self.claimed = claimed
        self.is_known = task is not None
        if task is not None:
            self.task = task
            self.threaded = not _is_async(task.func)
        self.worker = worker
        self.slot = slot
        self._leases = leases

    def __repr__(self) -> str:
        return f"<{self.kind} {self.key or self.id}, attempt {self.attempt} of {self.max_attempts}>"

    def backoff(self, attempt: int) -> timedelta:
        """The pause after a failed attempt of this number (1 is the first), by the task's policy."""
        return as_backoff(self.task.backoff)(attempt)

    @property
    def is_plain(self) -> bool:
        """Whether nothing limits its time, nor interrupts it, nor says anything else of this message: most are."""
        task, metadata = self.task, self.claimed.metadata
        return (
            (metadata is None or has_channel_only(metadata) or has_step_only(metadata))
            and task.timeout is None
            and task.deadline is None
            and task.expires is None
            and not task.interruptible
        )

    @property
    def expires(self) -> timedelta | None:
        """How long after it was due it may start for the first time."""
        return stored_duration(self.claimed.metadata, EXPIRES, self.task.expires)

    @property
    def deadline(self) -> timedelta | None:
        """How long after it was first due it must have ended, with all of its attempts."""
        return shortest_deadline(self.claimed.metadata, self.task.deadline)

    @property
    def is_limited(self) -> bool:
        """Whether the time of this attempt is limited."""
        return self.task.timeout is not None or self.deadline is not None

    @property
    def may_be_interrupted(self) -> bool:
        """Whether something may be raised in its thread: when its time is over, or if it is cancelled."""
        return self.task.interruptible or self.is_limited

    def left(self) -> timedelta | None:
        """The time until its deadline, by the clock of this host; None: it has none."""
        deadline = self.deadline
        return None if deadline is None else later(self.scheduled_at_initially, deadline) - clock.now()

    def time_limit(self) -> float:
        """How many seconds this attempt may take from now on: those of its timeout, or until its deadline.

        A deadline that is over is no limit: the attempt does not start.
        """
        limits = [limit.total_seconds() for limit in (self.task.timeout, self.left()) if limit is not None]
        return min((limit for limit in limits if limit > 0), default=inf)

    def overtime(self) -> TaskTimeout | DeadlineExceeded:
        """The error of this attempt, whose time is over."""
        left = self.left()
        if left is not None and left <= timedelta():
            return DeadlineExceeded(f"It did not end within {self.deadline} after it was first due.")
        return TaskTimeout(f"It took longer than {self.task.timeout}.")

    @property
    def id(self) -> int:
        return self.claimed.id

    @property
    def kind(self) -> str:
        return self.claimed.kind

    @property
    def key(self) -> str | None:
        return self.claimed.key

    @property
    def queue(self) -> str:
        return self.claimed.queue

    @property
    def channel(self) -> str | None:
        """None: it has none."""
        return channel_of(self.claimed.metadata)

    @property
    def attempt(self) -> int:
        """1 at the first attempt."""
        return self.claimed.attempt

    @property
    def max_attempts(self) -> int:
        return self.claimed.max_attempts

    @property
    def scheduled_at(self) -> datetime:
        """When this attempt was due."""
        return self.claimed.scheduled_at

    @property
    def scheduled_at_initially(self) -> datetime:
        """When the first attempt was due."""
        return self.claimed.scheduled_at_initially

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The metadata stored with the message; empty if there is none."""
        stored = as_given(self.claimed.metadata)
        metadata: dict[str, Any] = json.loads(stored) if stored else {}
        return metadata

    @property
    def parent_id(self) -> int | None:
        """The id of the message whose task has enqueued this one; None if no task has, or if it has a key."""
        parent: int | None = own(self.claimed.metadata, PARENT)
        return parent

    @property
    def root_id(self) -> int:
        """The id of the first message of that line; that of this one if it has no parent."""
        root: int = own(self.claimed.metadata, ROOT) or self.id
        return root

    @property
    def schedule(self) -> str | None:
        """The name of the cron schedule whose tick this is; None if it is no tick."""
        name: str | None = self.cron.get("schedule")
        return name

    @property
    def nominal_at(self) -> datetime | None:
        """The instant that the schedule names; a missed or retried tick starts later. None if it is no tick."""
        nominal_at = self.cron.get("nominal_at")
        return None if nominal_at is None else datetime.fromisoformat(nominal_at)

    @property
    def cron(self) -> dict[str, Any]:
        """What the metadata says of the tick that this is, if it is one."""
        about = self.metadata.get("cron")
        return about if isinstance(about, dict) else {}

    @property
    def lease_lost(self) -> bool:
        """True as soon as another worker may run this message: it was cancelled, or its lease expired.

        The result of the attempt is refused then, so a long task should check this from time to time, and stop.
        """
        return self._leases.is_lost(self.slot, self.claimed.token)

    @property
    def cancelled(self) -> bool:
        """True as soon as it is known that the message was cancelled: a long task should check this, and stop.

        The same as `lease_lost`: whatever the reason, the result of the attempt is refused.
        """
        return self.lease_lost

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled if the message was cancelled."""
        if self.lease_lost:
            raise TaskCancelled("Its message was cancelled, or another worker may run it.")

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far it has come: `done` of `total` (None: unknown), and what it does (at most 200 characters).

        It may be called as often as you like: it is written at most once a second, and the last one before the attempt
        ends, not here. Results have it as `progress`. Raises ValueError for a value that is negative or not a number.

            current_message().progress(300, 1000, "importing")
        """
        self.reported = checked(done, total, note)
        self.reporter(self)

    @property
    def is_written(self) -> bool:
        """Whether the database has what it reported last; True if it reported nothing."""
        return self.reported is self.written

    @cached_property
    def steps(self) -> Steps:
        """What `step` and `sleep` have to do with; made by the first of them."""
        return Steps(self.task, self.records or StoredRecords(self.claimed, self.asking))

    @overload
    def step[**P, R](self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step[R](self, name: str, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R: ...
    def step(self, name: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function once for this message, whatever number of attempts it takes; return its result.

        What it writes into the queue's database (and enqueues there), and its result, commit in one transaction. An
        attempt that comes to a recorded step returns the recorded result, and calls nothing. Without a name, it is that
        of the function; a name that is used again is numbered.

        Raises LeaseLost, and rolls the step back, if another worker may run this message; NotStorable or
        PayloadTooLarge for its result; RuntimeError within a transaction, another step, or an exactly-once task;
        TypeError or ValueError if it is not a valid step.

            receipt = current_message().step("charge", charge, order_id)
        """
        return self.steps.run(call_of(name, args, kwargs))

    @overload
    async def astep[**P, R](self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def astep(self, name: str | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
    async def astep(self, name: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The async version of `step`. A sync function runs in a thread, in one transaction with its record.

        An async function has no transaction: its result is recorded after it, so it may be called again if its process
        is killed between the two.
        """
        return await self.steps.arun(call_of(name, args, kwargs))

    def sleep(self, delay: timedelta) -> None:
        """As `sleep_until`, until `delay` after the first attempt that comes here."""
        self.steps.sleep_for(delay)

    def sleep_until(self, when: datetime) -> None:
        """End this attempt, uncharged, and run again at `when` (an aware datetime); the attempt that comes here then
        passes. No thread waits. The moment is recorded as a step: another one in a later attempt changes nothing.

        It raises Snooze, so do not catch that. Raises InvalidTime or TypeError for what is no such time, and what
        `step` raises.
        """
        self.steps.sleep_until(when)

    async def asleep(self, delay: timedelta) -> None:
        """The async version of `sleep`."""
        await sync_to_async(self.sleep)(delay)

    async def asleep_until(self, when: datetime) -> None:
        """The async version of `sleep_until`."""
        await sync_to_async(self.sleep_until)(when)

    def start(self) -> bool:
        """Record that it starts; False if it must not, as its lease was lost or has run out while it waited for a
        thread.
        """
        self._leases.start(self.slot)
        return not self.lease_lost and (self.claim is None or self._leases.is_current(self.claim))
