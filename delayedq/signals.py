"""Django signals about messages and workers. delayedq's own logging is connected to them as receivers.

The `django.tasks` signals are sent too, with sender DelayedQBackend. `task_finished` is sent in the thread of the task,
before the end is stored: a message that runs again afterwards, since its worker died or lost its lease at that moment
or since it was replaced while it ran, sends it once more. These carry what those can't:

- `message_retrying` (claimed, error: str, delay: seconds or None): an attempt failed and another will follow.
- `message_failed` (claimed, error: str): the message failed and is in the history as a dead letter.
- `lease_lost` (claimed): the result of an attempt was refused, as another worker holds the lease.
- `worker_started`, `worker_stopped` (worker: str, its name).
- `tick_placed` (nominal_at, message_id): a tick of a cron schedule is in the queue.
- `tick_missed` (nominal_at, until, reason: str): the ticks from `nominal_at` to `until` will not run.
- `schedule_changed` (change: str, taken_back: int): a schedule was installed, created, changed, disabled, enabled,
  retired or deleted; `change` is that word, `taken_back` the number of its ticks that were taken out of the queue.

In `error`, the secrets of a sensitive task are masked; `exception` is the error itself, with all that it says, and
`masked_trace` its traceback with the secrets masked ("" if nothing is). `claimed` has the payload as it is stored.
`claimed` is a `delayedq.store.protocol.Claimed`; the sender is the kind of the message, the name of the worker, or the
name of the schedule. The signals about schedules are sent after commit.
Signals are sent robustly: an exception of a receiver is logged and changes nothing.

    @receiver(message_failed)
    def page_someone(claimed, error, **kwargs): ...
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal, receiver

from delayedq.compat import TASKS_LOGGER, task_finished
from delayedq.exceptions import INTERRUPTIONS
from delayedq.records import is_written, leave_failures_to_us, leave_tasks_to_us

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.store.protocol import Claimed

logger = logging.getLogger("delayedq")

message_retrying = Signal()
message_failed = Signal()
lease_lost = Signal()
worker_started = Signal()
worker_stopped = Signal()
tick_placed = Signal()
tick_missed = Signal()
schedule_changed = Signal()

_django_logger = logging.getLogger(TASKS_LOGGER)


def tell(signal: Signal, sender: object, **said: Any) -> list[tuple[Any, Any]]:
    """Send it robustly, and return the answers. Django takes what interrupts the attempt of this thread for an error of
    a receiver: that is raised.
    """
    answers = signal.send_robust(sender, **said)
    for _, answer in answers:
        if isinstance(answer, INTERRUPTIONS):
            raise answer
    return answers


def wanted(signal: Signal, level: int) -> bool:
    """Whether this signal of django.tasks has a receiver that does something.

    Django connects one receiver, which logs at `level`. If nobody writes that and there is no other receiver, the
    TaskResult that the signal carries need not be built.
    """
    if len(signal.receivers) > 1:
        return True
    if level >= logging.ERROR and signal is task_finished and _django_logger.filters == [leave_failures_to_us]:
        return False
    return leave_tasks_to_us not in _django_logger.filters and is_written(_django_logger, level)


class Floods:
    """At most one line per event, kind and second; the next line says how many were left out."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def left_out(self, event: str, kind: str) -> int | None:
        """How many lines were left out since the last one; None if this one is left out too."""
        moment, (told_at, count) = time.monotonic(), self._told.get((event, kind), (float("-inf"), 0))
        if moment - told_at < 1.0:
            self._told[event, kind] = told_at, count + 1
            return None
        self._told[event, kind] = moment, 0
        return count


_floods = Floods()


def _log(
    level: int, event: str, claimed: Claimed, text: str, exception: BaseException | None = None, masked_trace: str = ""
) -> None:
    left_out = _floods.left_out(event, claimed.kind)
    if left_out is None:
        return
    more = f" ({left_out} more like this were left out)" if left_out else ""
    extra = {"pid": os.getpid(), "message_id": claimed.id, "queue": claimed.queue, "attempt": claimed.attempt}
    trace, shown = (f"\n{masked_trace.rstrip()}", None) if masked_trace else ("", exception)
    logger.log(level, "%s%s%s%s", _name(claimed), text, more, trace, exc_info=shown, extra=extra)


@receiver(message_retrying)
def _log_retrying(
    claimed: Claimed,
    error: str,
    delay: float | None,
    exception: BaseException | None = None,
    masked_trace: str = "",
    **_: Any,
) -> None:
    when = "by its backoff" if delay is None else f"in {delay:.1f} s"
    text = f" will be tried again {when} after attempt {_attempts(claimed)}: {error}"
    _log(logging.WARNING, "retrying", claimed, text, exception, masked_trace)


@receiver(message_failed)
def _log_failed(
    claimed: Claimed, error: str, exception: BaseException | None = None, masked_trace: str = "", **_: Any
) -> None:
    text = f" failed for good after attempt {_attempts(claimed)}: {error}"
    _log(logging.ERROR, "failed", claimed, text, exception, masked_trace)


@receiver(lease_lost)
def _log_lease_lost(claimed: Claimed, **_: Any) -> None:
    text = f": the lease of attempt {claimed.attempt} was lost, and its result refused"
    _log(logging.WARNING, "lost", claimed, text)


def _attempts(claimed: Claimed) -> str:
    """A claim that comes after the last attempt, as its worker vanished, is no attempt."""
    return f"{min(claimed.attempt, claimed.max_attempts)} of {claimed.max_attempts}"


@receiver(worker_started)
def _log_started(worker: str, **_: Any) -> None:
    logger.info("Worker %s started", worker)


@receiver(worker_stopped)
def _log_stopped(worker: str, **_: Any) -> None:
    logger.info("Worker %s stopped", worker)


@receiver(tick_placed)
def _log_placed(sender: str, nominal_at: datetime, message_id: int, **_: Any) -> None:
    logger.debug("Schedule %r: its tick of %s is placed as message %s", sender, nominal_at, message_id)


@receiver(tick_missed)
def _log_missed(sender: str, nominal_at: datetime, until: datetime, reason: str, **_: Any) -> None:
    if nominal_at == until:
        logger.warning("Schedule %r: its tick of %s will not run: %s", sender, nominal_at, reason)
    else:
        logger.warning("Schedule %r: its ticks from %s to %s will not run: %s", sender, nominal_at, until, reason)


@receiver(schedule_changed)
def _log_changed(sender: str, change: str, taken_back: int, **_: Any) -> None:
    logger.info("Schedule %r was %s; %d of its ticks were taken back", sender, change, taken_back)


def _name(claimed: Claimed) -> str:
    return f"{claimed.kind} {claimed.key or claimed.id}"
