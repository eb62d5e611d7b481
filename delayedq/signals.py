"""What happens to messages, told to whoever listens. Logging is a listener like any other.

The `django.tasks` signals are sent too, with sender DelayedQBackend. Ours know what those can't say:

- `message_retrying` (claimed, error, delay): an attempt failed and another will follow.
- `message_failed` (claimed, error): set aside; it is in the history as a dead letter.
- `lease_lost` (claimed): the result of an attempt was refused, because its lease had gone to somebody else.
- `worker_started`, `worker_stopped` (worker: its name).

`claimed` is a `delayedq.store.protocol.Claimed`; the sender is the kind of the message, or the name of the worker.
A receiver that raises is logged and harms nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal, receiver

if TYPE_CHECKING:
    from delayedq.store.protocol import Claimed

logger = logging.getLogger("delayedq")

message_retrying = Signal()
message_failed = Signal()
lease_lost = Signal()
worker_started = Signal()
worker_stopped = Signal()

_django_logger = logging.getLogger("django.tasks")


def wanted(signal: Signal, level: int) -> bool:
    """Does anybody listen to this signal of django.tasks?

    Django connects one receiver of its own, which logs at `level`. While that would write nothing and nobody else
    listens, the result objects that the signals carry need not be built.
    """
    return len(signal.receivers) > 1 or _django_logger.isEnabledFor(level)


@receiver(message_retrying)
def _log_retrying(claimed: Claimed, error: str, delay: float | None, **_: Any) -> None:
    when = "by its backoff" if delay is None else f"in {delay:.1f} s"
    logger.warning(
        "%s will be tried again %s after attempt %s of %s: %s",
        _name(claimed), when, claimed.attempt, claimed.max_attempts, error,
        extra={"message_id": claimed.id, "queue": claimed.queue, "attempt": claimed.attempt},
    )  # fmt: skip


@receiver(message_failed)
def _log_failed(claimed: Claimed, error: str, **_: Any) -> None:
    logger.error(
        "%s failed for good after attempt %s of %s: %s",
        _name(claimed), claimed.attempt, claimed.max_attempts, error,
        extra={"message_id": claimed.id, "queue": claimed.queue, "attempt": claimed.attempt},
    )  # fmt: skip


@receiver(lease_lost)
def _log_lease_lost(claimed: Claimed, **_: Any) -> None:
    logger.warning(
        "%s: the lease of attempt %s was lost, and its result refused",
        _name(claimed), claimed.attempt,
        extra={"message_id": claimed.id, "queue": claimed.queue, "attempt": claimed.attempt},
    )  # fmt: skip


@receiver(worker_started)
def _log_started(worker: str, **_: Any) -> None:
    logger.info("Worker %s started", worker)


@receiver(worker_stopped)
def _log_stopped(worker: str, **_: Any) -> None:
    logger.info("Worker %s stopped", worker)


def _name(claimed: Claimed) -> str:
    return f"{claimed.kind} {claimed.key or claimed.id}"
