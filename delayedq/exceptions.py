"""Everything delayedq raises, and what a task may raise to steer its message.

    Exception
    ├── DelayedQError
    │   ├── InvalidMessage (ValueError)       what was offered can't be stored, and nothing was
    │   │   ├── InvalidKey                    not a text of 1 to 200 characters
    │   │   ├── InvalidTime                   naive while USE_TZ is on, or not a datetime
    │   │   ├── PayloadTooLarge               over MAX_PAYLOAD_BYTES
    │   │   └── NotStorable (TypeError)       an argument or result that has no JSON form, named
    │   ├── InvalidQueue (ValueError)         a name, serializer, duration or filter that gives no queue
    │   ├── QueueClosed                       a bare queue, or an envelope of one, was used after its end
    │   ├── LeaseLost                         a transaction outlived its lease, and was rolled back
    │   ├── InvalidSchedule (ValueError)      a cron expression, time zone, period or name that gives no schedule
    │   ├── CannotRun                         a stored message that no attempt can run
    │   │   ├── UnknownTask                   its task is not registered here
    │   │   ├── ArgumentsMismatch             its payload can't be read, or does not fit the task's signature
    │   │   └── ReferenceGone                 an object it refers to was deleted
    │   ├── WorkerVanished                    its attempts ended without a word, as often as it may be tried
    │   ├── TaskTimeout (TimeoutError)        an attempt took longer than the task's timeout
    │   └── PipelineError                     a step of the pipeline on Spark can't be done; the message says why
    │       ├── JavaMissing                   Spark has to start here, and there is no Java
    │       ├── InvalidOption (ValueError)    an option, a column or an address that Spark was given, named
    │       ├── DatabaseUnreachable           no connection to the database, whose address names it
    │       ├── SnapshotGone                  what a DataFrame reads is no longer held: load it again
    │       ├── LoadFailed                    what was staged is not what was written; nothing was offered
    │       ├── LakeUnusable                  no lake, something else, or one of a newer schema
    │       ├── ArchiveBusy                   somebody else archives, or took the batch over
    │       └── ArchiveFailed                 a batch can't be moved; nothing of it was deleted
    └── Steering                              raised by a task; never an error
        ├── Retry                             try again later; counts as an attempt
        ├── Snooze                            not now; does not count
        └── Cancel                            not any more

Wrong settings raise Django's ImproperlyConfigured, wrong task options Django's InvalidTask.
This module imports no Django: the pipeline uses it too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class DelayedQError(Exception):
    """The root of all errors of delayedq."""


class InvalidMessage(DelayedQError, ValueError):
    """What was offered can't be stored, and nothing was."""


class InvalidKey(InvalidMessage):
    """A key is a text of 1 to 200 characters."""


class InvalidTime(InvalidMessage):
    """A time is a datetime, and aware while USE_TZ is on."""


class PayloadTooLarge(InvalidMessage):
    """The stored payload would take more than MAX_PAYLOAD_BYTES."""


class NotStorable(InvalidMessage, TypeError):
    """A value has no JSON form; the message names the argument it sits in."""


class InvalidQueue(DelayedQError, ValueError):
    """A name, serializer, duration or filter that gives no queue; the message says which, and why."""


class QueueClosed(DelayedQError):
    """A bare queue, or an envelope of one, was used after the queue was closed or had expired."""


class LeaseLost(DelayedQError):
    """The message went to somebody else while a transaction worked on it; what the transaction wrote is undone."""


class InvalidSchedule(DelayedQError, ValueError):
    """A cron expression, time zone, period or name that gives no schedule; the message says which, and why."""


class CannotRun(DelayedQError):
    """A stored message that no attempt can run; it is set aside as failed at once."""


class UnknownTask(CannotRun):
    """No task is registered under the path of the message."""


class ArgumentsMismatch(CannotRun):
    """The payload can't be read, or does not fit the signature of its task."""


class ReferenceGone(CannotRun):
    """An object that the message refers to was deleted meanwhile."""


class WorkerVanished(DelayedQError):
    """Every attempt ended without a word: its worker was killed, crashed, or lost its lease."""


class TaskTimeout(DelayedQError, TimeoutError):
    """The attempt took longer than the task's timeout."""


class PipelineError(DelayedQError):
    """A step of the pipeline on Spark can't be done; the message says why, and what is left to do."""


class JavaMissing(PipelineError):
    """Spark has to start on this machine, and there is no Java; the message names the package."""


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


class ArchiveBusy(PipelineError):
    """Somebody else archives, or took the batch over; this archive changed nothing after that."""


class ArchiveFailed(PipelineError):
    """A batch can't be moved, and the message says why; nothing of it was deleted."""


class Steering(Exception):
    """The root of what a task raises to say how its message goes on."""


class Retry(Steering):
    """Try again: counts as an attempt, and ends in failure when there are none left.

    `delay` (a timedelta) overrides the backoff of the task.
    """

    def __init__(self, reason: str = "", *, delay: timedelta | None = None) -> None:
        super().__init__(reason)
        _check_delay(delay)
        self.delay = delay


class Snooze(Steering):
    """Not now: run again after `delay`, or at the aware datetime `until`. The attempt is not counted."""

    def __init__(self, delay: timedelta | None = None, *, until: datetime | None = None) -> None:
        if (delay is None) == (until is None):
            raise ValueError("Snooze takes either a delay or a time (until).")
        super().__init__(until if delay is None else delay)
        _check_delay(delay)
        _check_until(until)
        self.delay = delay
        self.until = until


class Cancel(Steering):
    """Not any more: the message ends as cancelled, with this reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


def _check_delay(delay: object) -> None:
    if delay is not None and not isinstance(delay, timedelta):
        raise TypeError(f"A delay is a timedelta, not {delay!r}.")


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
        raise ValueError(f"{until!r} lies outside of all time that can be stored.") from None
