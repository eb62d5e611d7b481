"""All exceptions that delayedq raises, and those that a task may raise to control its message.

    Exception
    ├── DelayedQError
    │   ├── InvalidMessage (ValueError)       an offer that can't be stored; nothing was stored
    │   │   ├── InvalidKey                    not a text of 1 to 200 characters
    │   │   ├── InvalidTime                   naive while USE_TZ is on, or not a datetime
    │   │   ├── PayloadTooLarge               over MAX_PAYLOAD_BYTES
    │   │   ├── NotStorable (TypeError)       an argument or result without a JSON form; the error names it
    │   │   └── QueueFull                     a limit of the message has reached its size, and says on_full="raise"
    │   ├── InvalidLimit (ValueError)         a wrong limit, or one of a scope that has no channels
    │   ├── InvalidQueue (ValueError)         a wrong name, serializer, duration or filter of a bare queue
    │   ├── QueueClosed                       a bare queue or its envelope was used after the queue was closed
    │   ├── LeaseLost                         a transaction lasted longer than its lease and was rolled back
    │   ├── InvalidSchedule (ValueError)      a wrong cron expression, time zone, period or name of a schedule
    │   ├── InvalidFlow (ValueError)          a cycle, an unknown predecessor, too many steps, ...
    │   ├── CannotRun                         a stored message that can't be run by any attempt
    │   │   ├── UnknownTask                   its task is not registered here
    │   │   ├── ArgumentsMismatch             its payload can't be read, or does not fit the task's signature
    │   │   └── ReferenceGone                 an object it refers to was deleted
    │   ├── WorkerVanished                    the processes of all its attempts died without reporting an end
    │   ├── WorkerHung                        its worker process did not respond any more and was ended
    │   ├── TaskTimeout (TimeoutError)        an attempt took longer than the task's timeout
    │   ├── TaskCancelled                     the message of the attempt was cancelled while it ran
    │   ├── DeadlineExceeded (TimeoutError)   a message had not ended at its deadline
    │   ├── Expired                           a message was not started while it was worth it
    │   └── PipelineError                     a step of the pipeline on Spark failed; the message says why
    │       ├── JavaMissing                   Spark has to start on this machine, which has no Java 17 or newer
    │       ├── InvalidOption (ValueError)    a wrong option, column or address for Spark; the error names it
    │       ├── DatabaseUnreachable           no connection to the database; the error names its address
    │       ├── SnapshotGone                  the transaction that a DataFrame reads from has ended: load it again
    │       ├── LoadFailed                    the staging table differs from what was written; nothing was offered
    │       ├── LakeUnusable                  the path has no lake, other files, or a lake of a newer schema
    │       ├── LakeDamaged                   files of the lake are missing, or differ from the books
    │       ├── ArchiveBusy                   another process archives, or took over this batch
    │       └── ArchiveFailed                 a batch can't be moved; none of its rows was deleted
    └── Steering                              raised by a task to say what comes next; not an error
        ├── Retry                             try again later; counts as an attempt
        ├── Snooze                            run again later; does not count as an attempt
        ├── Cancel                            end the message as cancelled
        └── Fail                              end the message as failed: a dead letter, whatever attempts are left

Wrong settings raise Django's ImproperlyConfigured, wrong task options Django's InvalidTask.
This module imports no Django: the pipeline uses it too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Never

if TYPE_CHECKING:
    from collections.abc import Iterable


class DelayedQError(Exception):
    """The root of all errors of delayedq."""


class InvalidMessage(DelayedQError, ValueError):
    """An offer that can't be stored. Nothing was stored."""


class InvalidKey(InvalidMessage):
    """A key is a text of 1 to 200 characters."""


class InvalidTime(InvalidMessage):
    """A time is a datetime, and aware while USE_TZ is on."""


class PayloadTooLarge(InvalidMessage):
    """The stored payload would take more than MAX_PAYLOAD_BYTES."""


class NotStorable(InvalidMessage, TypeError):
    """A value has no JSON form; the message names the argument that contains it."""


class QueueFull(InvalidMessage):
    """A limit with on_full="raise" has reached its size. Nothing was stored; there is room again when messages end."""


class InvalidQueue(DelayedQError, ValueError):
    """A wrong name, serializer, duration or filter of a bare queue; the message says which, and why."""


class InvalidLimit(DelayedQError, ValueError):
    """A wrong limit, or a limit of a queue or task whose messages have no channels. Nothing was changed."""


class QueueClosed(DelayedQError):
    """A bare queue, or an envelope of one, was used after the queue was closed or had expired."""


class LeaseLost(DelayedQError):
    """The lease ended or the message was dropped during a transaction; what the transaction wrote is rolled back."""


class InvalidSchedule(DelayedQError, ValueError):
    """A wrong cron expression, time zone, period or name of a schedule; the message says which, and why."""


class InvalidFlow(DelayedQError, ValueError):
    """An invalid flow; the message says why. Nothing was stored."""


class CannotPartition(DelayedQError):
    """The history can't be partitioned, or made one table again; the message says why, and what to do."""


class CannotRun(DelayedQError):
    """A stored message that can't be run; it becomes a dead letter without further attempts."""


class UnknownTask(CannotRun):
    """No task is registered under the path of the message."""


class ArgumentsMismatch(CannotRun):
    """The payload can't be read, or does not fit the signature of its task."""


class ReferenceGone(CannotRun):
    """A model instance that the message refers to was deleted after the message was stored."""


class WorkerVanished(DelayedQError):
    """No attempt reported an end: each time the worker was killed, crashed, or lost its lease (a poison message)."""


class WorkerHung(DelayedQError):
    """An attempt was running in a worker process that had to be ended, as it did not respond any more."""


class TaskTimeout(DelayedQError, TimeoutError):
    """The attempt took longer than the task's timeout."""


class TaskCancelled(DelayedQError):
    """The message of the attempt was cancelled while it ran, or its lease was lost: its result will be refused."""


#: Raised from another thread between any two lines of an attempt: what catches all errors there lets these pass.
INTERRUPTIONS = (TaskTimeout, TaskCancelled)


class DeadlineExceeded(DelayedQError, TimeoutError):
    """The message had not ended by its deadline, which includes all of its attempts."""


class Expired(DelayedQError):
    """The message did not start within `expires`; it ends as expired."""


class PipelineError(DelayedQError):
    """A step of the pipeline on Spark can't be done; the message says why, and what is left to do."""


class JavaMissing(PipelineError):
    """Spark has to start on this machine, and there is no Java, or too old a one; the message names the package."""


class InvalidOption(PipelineError, ValueError):
    """An option, a column or an address that Spark was given; the message names it."""


class DatabaseUnreachable(PipelineError):
    """No connection to the database; the message names where its address is kept, never a password."""


class SnapshotGone(PipelineError):
    """The transaction whose snapshot a DataFrame reads has ended: read inside `with snapshot(...)`."""


class LoadFailed(PipelineError):
    """What is in the staging table is not what was written to it; no message was offered."""


class LakeUnusable(PipelineError):
    """The path holds no lake, something else, or a lake that a newer delayedq has written to."""


class LakeDamaged(PipelineError):
    """Files of the lake are missing, or hold other rows than the books say; what was told before lists them."""


class ArchiveBusy(PipelineError):
    """Another process archives, or took over the batch; this process changed nothing after that."""


class ArchiveFailed(PipelineError):
    """A batch can't be moved; the message says why. None of its rows was deleted."""


class Steering(Exception):
    """The base of the exceptions that a task raises to say what comes next for its message."""


class Retry(Steering):
    """Try again later. Counts as an attempt: after the last attempt, the message fails.

    `delay` (timedelta) replaces the backoff of the task; `reason` is recorded as the error.

        raise Retry("rate limited", delay=timedelta(minutes=1))
    """

    def __init__(self, reason: str = "", *, delay: timedelta | None = None, **others: Never) -> None:
        given: object = reason
        if isinstance(given, int | float | datetime | timedelta):
            raise TypeError(f"The reason of a Retry is a text, not {given!r}. Use delay=timedelta(...).")
        _check_named("Retry", others, "delay=timedelta(...)")
        super().__init__(reason)
        _check_delay(delay)
        self.delay = delay


class Snooze(Steering):
    """Run again after `delay` (timedelta), or at `until` (aware datetime). Does not count as an attempt."""

    def __init__(self, delay: timedelta | None = None, *, until: datetime | None = None, **others: Never) -> None:
        _check_named("Snooze", others, "delay=timedelta(...) or until=")
        if (delay is None) == (until is None):
            raise ValueError("Snooze takes either a delay or a time (until).")
        super().__init__(until if delay is None else delay)
        _check_delay(delay)
        _check_until(until)
        self.delay = delay
        self.until = until


class Cancel(Steering):
    """End the message as cancelled, with this reason."""

    def __init__(self, reason: str = "") -> None:
        given: object = reason
        if isinstance(given, datetime | timedelta):
            raise TypeError(f"{given!r} is not a reason. Use raise Snooze(delay=timedelta(...)) to run it later.")
        super().__init__(reason)
        self.reason = reason


class Fail(Steering):
    """End the message as failed, with this reason: it becomes a dead letter even if attempts are left.

    raise Fail("the card was declined")
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


def _check_named(name: str, others: Iterable[str], cure: str) -> None:
    for other in others:
        time = "the time is" if other in {"countdown", "eta", "at", "when", "delay", "until"} else "its options are"
        raise TypeError(f"{name} has no {other}=: {time} {cure}.")


def _check_delay(delay: object) -> None:
    if isinstance(delay, datetime):
        raise TypeError(f"A delay is a timedelta, not {delay!r}. Use Snooze(until=...) for a time.")
    if delay is not None and not isinstance(delay, timedelta):
        raise TypeError(f"A delay is a timedelta, such as timedelta(minutes=5), not {delay!r}.")


def _check_until(until: object) -> None:
    if until is None:
        return
    if not isinstance(until, datetime):
        raise TypeError(f"A time is a datetime, not {until!r}.")
    if until.utcoffset() is None:
        raise ValueError(f"A time must be aware: {until!r} has no time zone.")
    try:
        until.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{until!r} is outside the range of times that can be stored.") from None
